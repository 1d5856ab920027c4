"""Test that a record damaged by the soak can be recognised as damaged, and never becomes another valid one."""

import random

import pytest

from launcher.run.durable import Damaged, readable, write_record
from launcher.run.fence import fence, raise_fence
from launcher.run.identity import this_process
from launcher.run.layout import RunDir
from launcher.run.records import Intent
from tests.chaos.records import harm

SEEDS = range(150)
INTENT = Intent(
    attempt=1, token="48db0861ec25d2a8" * 4, cluster="local", reason="submit", cause=None, created_at=1795471351.07,
    created_by=this_process(),
)  # fmt: skip


def test_a_harmed_record_is_no_other_one(tmp_path):
    path, ways = tmp_path / "token.json", set()
    for seed in SEEDS:
        write_record(path, INTENT, fsync=False)
        ways.add(harm(path, random.Random(seed)))
        assert readable(path, Intent) in (None, INTENT), seed
    assert ways == {"cut", "flipped", "zeros"}


def test_a_harmed_fence_names_no_other_attempt(tmp_path):
    run, damaged = RunDir(tmp_path), 0
    for seed in SEEDS:
        run.fence.unlink(missing_ok=True)
        raise_fence(run, 1, fsync=False)
        harm(run.fence, random.Random(seed))
        try:
            assert fence(run) == 1, seed
        except Damaged:
            damaged += 1
    assert damaged


@pytest.mark.parametrize("how", ["cut", "flipped", "zeros"])
def test_something_is_changed(tmp_path, how):
    path = tmp_path / "token.json"
    write_record(path, INTENT, fsync=False)
    before = path.read_bytes()
    seed = next(seed for seed in SEEDS if random.Random(seed).choice(["cut", "flipped", "zeros"]) == how)
    assert harm(path, random.Random(seed)) == how and path.read_bytes() != before
