"""`launch serve --on` a Slurm cluster: the server is a job."""

import pytest
from served_job import check_served

pytestmark = pytest.mark.nightly


@pytest.mark.timeout(600)
def test_a_job_serves(desk):
    check_served(desk, "--on", "slurm")
