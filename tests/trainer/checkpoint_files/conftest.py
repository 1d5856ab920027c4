"""Folders for tests of checkpoints as files; a random test's seed is in what it prints."""

import shutil
import tempfile
from pathlib import Path

import pytest
from checkpoint_lab import FencingToken, commit


@pytest.fixture
def memory(tmp_path):
    """A folder in memory where there is one: for what is about the order of calls and not about the disk."""
    shared = Path("/dev/shm")
    if not shared.is_dir():
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-files-", dir=shared))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def folder(memory) -> Path:
    folder = memory / "checkpoints"
    folder.mkdir()
    return folder


@pytest.fixture
def mine(folder) -> FencingToken:
    return commit.take_over(folder)


@pytest.fixture
def seed() -> int:
    from tests.sizes import SEED  # late: not known when pytest loads this file

    print("seed", SEED)
    return SEED
