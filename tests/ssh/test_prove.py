"""`launch prove` on the hosts of a pool: a rank is killed where it is, and all of the run on one of two hosts."""

import json

import pytest

from launcher.errors import Exit


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_ranks_are_killed_on_their_hosts(desk):
    words = ("--steps", "150", "--kills", "1", "--seed", "5", "--set", "run.args.pause=0.1")
    settings = ("--set", "recovery.lease=4s", "--set", "recovery.wait=60s")
    done = desk.launch("prove", desk.job(), "--on", "pool", *words, *settings, "--json", check=None, timeout=580)
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    proof = json.loads(done.stdout)
    assert {one["mode"]: (one["verdict"], one["kills"][0]["missed"]) for one in proof["compared"]} == {
        "warm": ("exact", ""), "power": ("exact", ""), "hot": ("exact", ""),
    }  # fmt: skip
    assert all(one["steps"] > 75 for one in proof["compared"]), proof
    assert len({proof["fingerprint"], *(one["fingerprint"] for one in proof["compared"])}) == 1
    desk.until("nothing is left on the hosts", lambda: not desk.left())
