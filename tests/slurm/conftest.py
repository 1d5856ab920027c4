"""A Slurm cluster of four nodes and a user on its login node: real daemons, real jobs."""

import pytest
from lab import Lab

from tests.lab.fixtures import accounted_lab, lab_possible, shared_accounted_lab, shared_lab

__all__ = ["accounted_lab", "lab_possible", "shared_accounted_lab", "shared_lab"]


@pytest.fixture
def slurm(shared_lab):
    """Four idle nodes, without accounting."""
    shared_lab.well()
    yield shared_lab
    shared_lab.clear()


@pytest.fixture
def desk(tmp_path, slurm):
    yield from desk_at(tmp_path, slurm)


@pytest.fixture
def accounted_desk(tmp_path, accounted_lab):
    yield from desk_at(tmp_path, accounted_lab)


def desk_at(folder, slurm):
    """A project and a state folder; when the test is over, no process of its runs may be left on any node."""
    desk = Lab(folder)
    desk.env |= slurm.env
    yield desk
    try:
        slurm.ask("scancel", "--user=root")
        desk.until("the end of every process of its runs", lambda: not desk.processes(), timeout_s=40)
    finally:
        desk.tidy()
