"""`launch prove` in Slurm jobs: a rank is killed on its node, and all of the run on one of two."""

import json

import pytest
from runs import two_nodes

from launcher.errors import Exit


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_ranks_are_killed_on_their_nodes(desk, slurm):
    words = ("--steps", "150", "--kills", "1", "--seed", "5", "--set", "run.args.pause=0.1")
    settings = ("--set", "recovery.lease=4s", "--set", "recovery.wait=60s")
    done = desk.launch(
        "prove", two_nodes(desk, 100_000), "--on", "slurm", *words, *settings, "--json", check=None, timeout=580
    )
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    proof = json.loads(done.stdout)
    assert {one["mode"]: (one["verdict"], one["kills"][0]["missed"]) for one in proof["compared"]} == {
        "warm": ("exact", ""), "power": ("exact", ""), "hot": ("exact", ""),
    }  # fmt: skip
    assert all(one["steps"] > 75 for one in proof["compared"]), proof
    assert len({proof["fingerprint"], *(one["fingerprint"] for one in proof["compared"])}) == 1
