"""`launch prove` on the hosts of a pool: a rank is killed where it is, and all of the run on one of two hosts."""

import json
import sys

import pytest

from launcher.errors import Exit


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_ranks_are_killed_on_their_hosts(desk):
    # Its checkpoints have second copies: with all of node 0 killed the others resume from there.
    desk.script("in_place.py")
    spec = desk.spec(
        "name: proved\nrun: {script: in_place.py, args: {steps: 150, pause: 0.05}}\n"
        "resources: {nodes: 2, ranks_per_node: 1, gpus_per_node: 0, cpus_per_rank: 1}\n"
        f"checkpoint: {{every: 10 steps}}\nssh: {{python: {sys.executable}}}\n"
    )
    words = ("--steps", "150", "--kills", "1", "--seed", "5")
    settings = ("--set", "recovery.lease=4s", "--set", "recovery.wait=60s")
    done = desk.launch("prove", spec, "--on", "pool", *words, *settings, "--json", check=None, timeout=580)
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    proof = json.loads(done.stdout)
    assert {one["mode"]: (one["verdict"], one["kills"][0]["missed"]) for one in proof["compared"]} == {
        "warm": ("exact", ""), "power": ("exact", ""), "hot": ("exact", ""),
    }  # fmt: skip
    assert all(one["steps"] > 75 for one in proof["compared"]), proof
    assert len({proof["fingerprint"], *(one["fingerprint"] for one in proof["compared"])}) == 1
    desk.until("nothing is left on the hosts", lambda: not desk.left())
