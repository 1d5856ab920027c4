"""This machine is brought up to date, and a login node is not yet."""

import sys

import pytest
from older import OLDER, unpack

from launcher.states import VERSION
from tests.waits import until

pytestmark = pytest.mark.nightly

JOB = "name: job\nrun:\n  script: train.py\n  preload: []\n  args: [{gate}]\nresources: {{ranks_per_node: 2}}\n"
TRAIN = """
import pathlib, sys, time
print("is up", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
"""


@pytest.fixture(params=OLDER)
def older(request, login_node, tmp_path):
    """The environment of that version, which the login node has."""
    env = unpack(request.param, tmp_path / "older")
    folder = env["PYTHONPATH"]
    login_node.program(f'export PYTHONPATH={folder}\nexec {sys.executable} -P -m launcher.cli.main "$@"')
    return env


def test_a_run_from_before_is_watched_to_its_end(laptop, login_node, older, tmp_path):
    """The versions understand each other as long as the wire between them is the same one (hostlink/rpc/wire.py)."""
    gate = tmp_path / "go-on"
    laptop.script("train.py", TRAIN)
    laptop.spec(JOB.format(gate=gate))
    run = laptop.submit(env=older)
    until("both ranks", lambda: laptop.launch("logs", run).stdout.count("is up") == 2)
    assert laptop.launch("--version").stdout == f"launch {VERSION}\n"
    gate.touch()
    assert laptop.launch("wait", run).stdout.startswith(f"{run} succeeded")
    again = laptop.submit()
    assert laptop.launch("wait", again).stdout.startswith(f"{again} succeeded")
