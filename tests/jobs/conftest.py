"""A user's project with the jobs that ship."""

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(lab):
    """A project that has the jobs; the trainer is installed."""
    shutil.copytree(ROOT / "jobs", lab.project / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
    return lab
