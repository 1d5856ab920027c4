"""One lab of each kind for a whole test process, as it was new for every test. A folder's conftest.py imports these."""

import os
from collections.abc import Iterator
from typing import NoReturn

import pytest

from tests.lab.requirements import what_is_missing
from tests.lab.slurm import SlurmLab

_PLAIN = pytest.StashKey[SlurmLab]()
_ACCOUNTED = pytest.StashKey[SlurmLab]()


@pytest.fixture(scope="session")
def shared_lab(request, lab_possible, tmp_path_factory):
    yield from _up(request.config, tmp_path_factory, _PLAIN, accounting=False)


@pytest.fixture(scope="session")
def shared_accounted_lab(request, lab_possible, tmp_path_factory):
    yield from _up(request.config, tmp_path_factory, _ACCOUNTED, accounting=True)


@pytest.fixture
def lab(shared_lab):
    """A Slurm cluster of four idle nodes, without accounting."""
    shared_lab.well()
    yield shared_lab
    shared_lab.clear()


@pytest.fixture
def accounted_lab(shared_accounted_lab):
    """The same with slurmdbd, so that `sacct` answers."""
    shared_accounted_lab.well()
    yield shared_accounted_lab
    shared_accounted_lab.clear()


@pytest.fixture(scope="session")
def lab_possible():
    """Skips where there can be no lab, and says why; where everything is tested, that is a failure."""
    if (reason := what_is_missing()) is not None:
        skip_or_fail(reason)


def skip_or_fail(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _up(config, folders, key, *, accounting) -> Iterator[SlurmLab]:
    if (up := config.stash.get(key, None)) is not None:
        yield up  # by another folder's conftest.py, which takes it down after this one
        return
    with SlurmLab(folders.mktemp("lab"), accounting=accounting) as lab:
        config.stash[key] = lab
        yield lab
        del config.stash[key]
