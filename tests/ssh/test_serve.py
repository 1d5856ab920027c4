"""`launch serve --on` a pool: a host with a disk of its own is sent the checkpoint, and serves it."""

import sys

import pytest
from served_job import TRAIN, check_served, check_watched, trained, write_app

pytestmark = pytest.mark.nightly

SAVES = "checkpoints"


@pytest.mark.timeout(600)
def test_a_host_serves(desk):
    check_served(desk, "--on", "pool", "--set", f"ssh.python={sys.executable}")


def test_a_program_of_this_disk_is_refused(desk):
    write_app(desk)
    run, _ = trained(desk)
    said = desk.launch("serve", run, "--app", "serving.py", "--on", "pool", check=2).stderr
    assert "--app: pool does not see this machine's disk" in said
    said = desk.launch("serve", run, "--app", "serving", "--on", "pool", "--watch", check=2).stderr
    assert f"--watch: pool does not see this machine's disk, where {run} saves" in said


@pytest.mark.timeout(600)
def test_where_a_run_was_trained_what_it_saves_is_taken_over(desk):
    there = ("--on", "pool", "--set", f"ssh.python={sys.executable}")
    write_app(desk)
    run, expected = trained(desk, *there, train=TRAIN.replace('"checkpoints", ', ""))  # saves where launch says
    [index] = [place for place in range(len(desk.hosts.nodes)) if desk.there(place, run, SAVES).is_dir()]
    desk.launch("fetch", run)
    check_watched(desk, desk.there(index, run, SAVES), run, expected, *there)
