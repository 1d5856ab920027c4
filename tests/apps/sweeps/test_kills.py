"""Killed before any change of the disk, a conductor's successor loses no trial and starts none twice."""

import subprocess
import sys
from pathlib import Path

import pytest
import struck_conductor

from tests.sizes import SCALE, SEED

EVERY = 9 if SCALE == 1 else 1


@pytest.mark.nightly
@pytest.mark.parametrize("search", ["random", "tpe", "grid", struck_conductor.HALVING])
def test_killed_before_any_change_of_the_disk(tmp_path, search):
    words = [sys.executable, struck_conductor.__file__, str(tmp_path), search, str(EVERY), str(SEED)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[3], timeout=280)
    assert done.returncode == 0, f"seed {SEED}\n{done.stdout}\n{done.stderr}"
    assert " kills of " in done.stdout


def test_the_check_bites():
    """A trial without a run, a run without a trial, another point, and one that is told of otherwise."""
    entries = [(n, "complete", {"run.args.n": n}, f"x-t{n}", 1.0) for n in range(struck_conductor.TRIALS)]
    runs = {one[3]: [f"run.args.n={one[0]}"] for one in entries}
    said = ("succeeded", [(one[0], one[1], one[3]) for one in entries])
    good = entries, runs, said
    struck_conductor.check(good, good, "random")
    lost, doubled = dict([*runs.items()][1:]), {**runs, "x-t9": []}
    other = {**runs, "x-t0": ["run.args.n=9"]}
    for bad in (
        (entries, lost, said),
        (entries, doubled, said),
        (entries, other, said),
        (entries[1:], lost, said),
        (entries, runs, ("running", said[1])),
        (entries, runs, (said[0], said[1][1:])),
    ):
        with pytest.raises(AssertionError):
            struck_conductor.check(bad, good, "random")
