"""`launch serve --on` a pool: a host with a disk of its own is sent the checkpoint, and serves it."""

import sys

import pytest
from served_job import check_served, trained, write_app

pytestmark = pytest.mark.dealt(2)


@pytest.mark.timeout(600)
def test_a_host_serves(desk):
    check_served(desk, "--on", "pool", "--set", f"ssh.python={sys.executable}")


def test_a_program_of_this_disk_is_refused(desk):
    write_app(desk)
    run, _ = trained(desk)
    said = desk.launch("serve", run, "--app", "serving.py", "--on", "pool", check=2).stderr
    assert "--app: pool does not see this machine's disk" in said
