"""`launch scale --on` a Slurm cluster: its jobs, on one node and on two."""

import pytest
from runs import jobs
from scaled_training import check_on_nodes

pytestmark = pytest.mark.nightly


@pytest.mark.timeout(600)
def test_one_node_and_two(desk, slurm):
    check_on_nodes(desk, "--on", "slurm")
    desk.until("the end of its jobs", lambda: not jobs(slurm))
