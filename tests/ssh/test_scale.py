"""`launch scale --on` a pool of hosts, each with a disk of its own."""

import sys

import pytest
from scaled_training import check_on_nodes

pytestmark = pytest.mark.nightly


@pytest.mark.timeout(600)
def test_one_host_and_two(desk):
    check_on_nodes(desk, "--on", "pool", "--set", f"ssh.python={sys.executable}")
    assert all(not list((desk.hosts.home(index) / "launch" / "runs").glob("tiny-*")) for index in (0, 1))
