"""A Slurm cluster of four nodes and a user on its login node: real daemons, real jobs."""

import pytest
from runs import desk_at

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
