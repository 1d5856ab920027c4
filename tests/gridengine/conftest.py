"""A Grid Engine cluster of three nodes and a user on its login node: real daemons, real jobs."""

import pytest
from lab import Lab

from tests.lab.fixtures import grid_engine_lab as grid
from tests.lab.fixtures import lab as slurm
from tests.lab.fixtures import lab_possible, shared_grid_engine_lab, shared_lab
from tests.lab.gridengine import GridEngineLab

__all__ = ["grid", "lab_possible", "shared_grid_engine_lab", "shared_lab", "slurm"]  # slurm: the user's other cluster


@pytest.fixture
def desk(tmp_path, grid):
    yield from desk_at(tmp_path, grid)


def desk_at(folder, grid):
    """A project and a state folder; when the test is over, no process of its runs may be left on any node."""
    desk = Lab(folder)
    desk.env |= grid.env
    yield desk
    try:
        grid.run("qdel", "-u", "root")
        desk.until("the end of every process of its runs", lambda: not desk.processes())
    finally:
        desk.tidy()


@pytest.fixture
def new_grid(lab_possible, tmp_path_factory):
    """A qmaster that has lost no host yet: of one that it has lost before it does not put the next job back."""
    with GridEngineLab(tmp_path_factory.mktemp("new-lab")) as lab:
        yield lab


@pytest.fixture
def new_desk(tmp_path, new_grid):
    yield from desk_at(tmp_path, new_grid)
