"""A Slurm cluster of four nodes and a user on its login node: real daemons, real jobs."""

import pytest
from runs import desk_at

from tests.lab.fixtures import accounted_lab, lab_possible, shared_accounted_lab, shared_lab
from tests.lab.fixtures import lab as slurm

__all__ = ["accounted_lab", "lab_possible", "shared_accounted_lab", "shared_lab", "slurm"]


@pytest.fixture
def desk(tmp_path, slurm):
    yield from desk_at(tmp_path, slurm)


@pytest.fixture
def accounted_desk(tmp_path, accounted_lab):
    yield from desk_at(tmp_path, accounted_lab)
