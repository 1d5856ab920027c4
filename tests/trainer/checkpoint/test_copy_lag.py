"""How far second copies may be behind: who waits for them, for how long, and what a training without copies does."""

import logging
import os
from functools import partial

import pytest
from nodes_apart import bring_together, disks, start_apart
from small_trainings import Recipe, train

from tests.waits import until
from trainer.checkpoint.copy_lag import CopyLag, bytes_in
from trainer.checkpoint_files import catalog
from trainer.checkpoint_files.retention import Parts, Save
from trainer.wire import Every


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def two_disks(steps, copied):
    """Return two disks, each with its own files of these steps, and with the other's files of the steps in `copied`."""
    both = frozenset({"a", "b"})

    def disk(own):
        return {
            Save(step, str(step)): Parts(both if step in copied else frozenset(own), both - {own} - set(copied and own))
            for step in steps
        }

    return [disk("a"), disk("b")]


@pytest.mark.parametrize(
    ("limit", "copied", "waits"),
    [
        (Every(steps=10), (), True),  # nothing is copied yet: 30 steps behind
        (Every(steps=30), (), False),
        (Every(steps=10), (20,), False),
        (Every(steps=9), (20,), True),
        (Every(steps=1), (20, 30), False),
        (Every(seconds=100.0), (20,), False),
        (Every(seconds=99.0), (20,), True),
        (Every(seconds=199.0), (), True),
        (Every(seconds=200.0), (), False),
        (Every(seconds=1.0), (30,), False),
    ],
)
def test_who_waits(limit, copied, waits):
    disks = two_disks((10, 20, 30), copied)
    assert CopyLag(limit).waits(disks, 0, {10: 1000.0, 20: 1100.0, 30: 1200.0}) is waits


def test_a_single_disk_has_nobody_to_wait_for():
    assert not CopyLag(Every(steps=1)).waits(two_disks((10, 20), ())[:1], 0, {10: 0.0, 20: 1.0})


def test_where_nothing_comes_it_is_said_once_and_nobody_waits_again_until_copies_are_near(caplog):
    clock = Clock()
    behind, near = two_disks((10, 20), ()), two_disks((10, 20), (20,))
    lag = CopyLag(Every(steps=10), patience_s=60.0, now=clock)
    waits = partial(lag.waits, saved_at={10: 0.0, 20: 1.0})
    with caplog.at_level(logging.WARNING, "trainer"):
        assert waits(behind, 100)
        clock.now = 59.0
        assert waits(behind, 200), "more has come"
        clock.now = 118.0
        assert waits(behind, 200)
        clock.now = 119.0
        assert not waits(behind, 200)
        clock.now = 500.0
        assert not waits(behind, 300), "the next save"
        assert not waits(near, 400)
        assert waits(behind, 400)
    assert [record.message for record in caplog.records] == [
        "step 20: no checkpoint has a second copy, and no part of one has arrived for 60 s: saves no longer wait"
    ]


def test_a_copy_that_comes_is_seen_wherever_it_is_written(tmp_path):
    (tmp_path / "step-00000010").mkdir()
    assert bytes_in(tmp_path) == 0
    (tmp_path / "step-00000010" / "rank-00000.data").write_bytes(b"12345")
    (tmp_path / "copy").write_bytes(b"123")
    assert bytes_in(tmp_path) == 8


def train_with_lag(folder, lag, *args):
    os.environ["LAUNCH_CHECKPOINT_COPY_LAG"] = lag
    return train(folder, *args)


def newest(base):
    return min(max(catalog.steps(folder), default=0) for folder in disks(base)) if len(disks(base)) == 2 else 0


def test_a_save_waits_for_the_copies_of_the_one_before_and_no_longer(tmp_path):
    """A training that goes on without them would have saved its last step before anybody copied."""
    ranks = start_apart(train_with_lag, tmp_path, "4 steps", Recipe("ddp", every="4 steps"))
    seen = []
    for step in (8, 12, 16, 20):
        until(f"step {step}", lambda step=step: newest(tmp_path) >= step)
        seen.append(newest(tmp_path))
        assert bring_together(disks(tmp_path)).step == step
    assert {ended.step for ended in ranks.results()} == {24}
    assert seen == [8, 12, 16, 20]
