"""`launch serve --on` a cluster behind a login node: the checkpoint goes there with the run that serves it."""

import pytest
from login_node import Laptop
from served_job import check_served

from tests.waits import until

pytestmark = pytest.mark.nightly


class Desk(Laptop):  # type: ignore[misc] # found on pytest's path
    """A machine with a login node, where what is trained is trained on this machine."""

    until = staticmethod(until)

    def submit(self, spec):
        return super().submit(spec=spec, on="local")

    def wait(self, run):
        self.launch("wait", run)


@pytest.fixture
def desk(tmp_path, login_node):
    there = Desk(tmp_path / "near", login_node)
    yield there
    until("the end of its processes here", lambda: not there.processes())


@pytest.mark.timeout(600)
def test_a_run_there_serves(desk):
    check_served(desk, "--on", "hpc")
