"""`launch serve --on` a pool: a host with a disk of its own is sent the checkpoint, and serves it."""

import re
import signal
import subprocess
import sys

import pytest
from served_job import TRAIN, asked, check_served, check_watched, trained, write_app

from launcher.apps.serving.how_to_ask import read_token

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


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_through_a_tunnel_a_server_that_only_its_host_reaches(desk):
    write_app(desk)
    run, expected = trained(desk)
    there = ("--on", "pool", "--set", f"ssh.python={sys.executable}")
    words = [sys.executable, "-m", "launcher.cli.main", "serve", run, "--app", "serving", "--workers", "1"]
    with subprocess.Popen(
        [*words, *there, "--tunnel", "--port", "0"],
        env=desk.env, cwd=desk.project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as tunnel:  # fmt: skip
        try:
            job = tunnel.stdout.readline().strip()
            address = tunnel.stdout.readline().strip()
            token = read_token(desk.run_dir(job) / "serve.header")
            assert asked(address, token) == (pytest.approx(expected, abs=1e-4), "3")
            inside = re.search(r"serves (http://\S+)", desk.status(job)["message"])[1]
            assert inside.startswith("http://127.0.0.1:")
            assert inside != address
        finally:
            tunnel.send_signal(signal.SIGINT)
        assert tunnel.wait(60) == 0, tunnel.stderr.read()
        said = tunnel.stderr.read()
    assert f"launch serve {job} --tunnel" in said
    desk.launch("cancel", job)
