"""One lab of each kind for a whole test process, as it was new for every test. A folder's conftest.py imports these."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.gridengine import GridEngineLab
from tests.lab.hosts import HostLab
from tests.lab.requirements import no_lab, skip_or_fail
from tests.lab.slurm import SlurmLab
from tests.lab.up_and_down import Lab

_PLAIN = pytest.StashKey[Lab]()
_ACCOUNTED = pytest.StashKey[Lab]()
_GRID_ENGINE = pytest.StashKey[Lab]()
_HOSTS = pytest.StashKey[Lab]()


@pytest.fixture(scope="session")
def shared_lab(request, lab_possible, tmp_path_factory):
    yield from _up(request.config, _PLAIN, lambda: SlurmLab(tmp_path_factory.mktemp("lab")))


@pytest.fixture(scope="session")
def shared_accounted_lab(request, lab_possible, tmp_path_factory):
    yield from _up(request.config, _ACCOUNTED, lambda: SlurmLab(tmp_path_factory.mktemp("lab"), accounting=True))


@pytest.fixture(scope="session")
def shared_grid_engine_lab(request, lab_possible, tmp_path_factory):
    yield from _up(request.config, _GRID_ENGINE, lambda: GridEngineLab(tmp_path_factory.mktemp("lab")))


@pytest.fixture(scope="session")
def shared_hosts(request, lab_possible):
    with open_folder() as folder:
        yield from _up(request.config, _HOSTS, lambda: HostLab(folder))


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


@pytest.fixture
def grid_engine_lab(shared_grid_engine_lab):
    """A Grid Engine cluster of three idle nodes."""
    shared_grid_engine_lab.well()
    yield shared_grid_engine_lab
    shared_grid_engine_lab.clear()


@pytest.fixture
def hosts(shared_hosts):
    """Four hosts with a sshd and a disk each, and no scheduler."""
    shared_hosts.well()
    yield shared_hosts
    shared_hosts.clear()


@pytest.fixture(scope="session")
def lab_possible():
    """Skips where there can be no lab, and says why; where everything is tested, that is a failure."""
    if (reason := no_lab()) is not None:
        skip_or_fail(reason)


@contextmanager
def open_folder() -> Iterator[Path]:
    """A new folder that every user may pass through, with a path short enough for sockets below it."""
    with tempfile.TemporaryDirectory(prefix="hosts-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def _up(config, key, make: Callable[[], Lab]) -> Iterator[Lab]:
    if (up := config.stash.get(key, None)) is not None:
        yield up  # by another folder's conftest.py, which takes it down after this one
        return
    with make() as lab:
        config.stash[key] = lab
        yield lab
        del config.stash[key]
