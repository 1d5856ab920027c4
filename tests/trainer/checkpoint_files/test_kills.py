"""Killed at every system call of everything that changes a checkpoints folder: nothing acknowledged is lost."""

import os

import pytest
from checkpoint_lab import (
    SharedFlags,
    calls_of,
    check_sound,
    invalid,
    points,
    save,
    set_stage,
    strike,
    write_rank,
)

from tests.lab.requirements import need
from trainer.checkpoint_files import catalog, commit, fence
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.layout import draft_name, folder_name

pytestmark = pytest.mark.nightly


@pytest.fixture(autouse=True)
def strace():
    need("strace")


def kill_everywhere(memory, stage, operation, check):
    """Strike `operation(folder)` at each of its calls in turn, and `check(folder)` what is left; how many fired."""
    counted = stage.fresh(memory / "counted")
    made = points(calls_of(lambda: operation(counted)))
    fired = 0
    for call, when in made:
        folder = stage.fresh(memory / "struck")
        end = strike(
            lambda folder=folder: operation(folder),
            "-e",
            f"trace={call}",
            "-e",
            f"inject={call}:signal=SIGKILL:when={when}",
        )
        fired += end.code == -9
        try:
            check(folder)
        except Exception as error:
            raise AssertionError(f"killed at {call} {when}: {type(error).__name__}: {error}") from error
    assert fired == len(made), f"only {fired} of {len(made)} kills fired"
    return fired


def entry(folder, step, kind="step"):
    return Entry(kind, step, folder / folder_name(step, kind))


def bests(folder):
    return [entry.step for entry in catalog.entries(folder) if entry.kind == "best"]


@pytest.mark.daily
def test_save_and_prune(memory):
    stage = set_stage(memory / "template", 1, 2)
    acknowledged = SharedFlags()

    def operation(folder):
        acknowledged.clear()
        save(folder, 3, stage.mine)
        acknowledged.mark(3)
        commit.remove([folder / folder_name(1)])

    kills = kill_everywhere(
        memory, stage, operation, lambda folder: check_sound(folder, {2} | acknowledged.found(), {1, 2, 3})
    )
    assert kills > 70


def test_publish_best(memory):
    stage = set_stage(memory / "template", 1, 2, best=1)

    def check(folder):
        assert invalid(folder) == []
        assert bests(folder) in ([1], [1, 2], [2])
        check_sound(folder, {1, 2}, {1, 2})
        mine = commit.take_over(folder)
        commit.publish_best(entry(folder, 2), mine)
        assert bests(folder) == [2] and invalid(folder) == []

    assert kill_everywhere(memory, stage, lambda folder: commit.publish_best(entry(folder, 2), stage.mine), check) > 50


def test_prune_many(memory):
    stage = set_stage(memory / "template", 1, 2, 3)

    def operation(folder):
        commit.remove([folder / folder_name(1), folder / folder_name(2)])

    assert kill_everywhere(memory, stage, operation, lambda folder: check_sound(folder, {3}, {1, 2, 3})) > 30


def test_take_over(memory):
    stage = set_stage(memory / "template", 1)
    for nonce in ("dead", "gone"):
        draft = stage.template / draft_name(2, 0, nonce)
        draft.mkdir()
        write_rank(draft, 2, 0)
    draft.rename(stage.template / ".trash-gone")

    def check(folder):
        newest = fence.read_token(folder)
        assert newest is not None and newest.count in (stage.mine.count, stage.mine.count + 1)
        check_sound(folder, {1}, {1})
        assert fence.read_token(folder).count > newest.count

    assert kill_everywhere(memory, stage, commit.take_over, check) > 50


def test_the_first_take_over(memory):
    stage = set_stage(memory / "template")
    for name in os.listdir(stage.template):
        (stage.template / name).unlink()
    kill_everywhere(memory, stage, commit.take_over, lambda folder: check_sound(folder, set(), {0}))


def test_set_aside(memory):
    stage = set_stage(memory / "template", 1, 2)
    os.truncate(stage.template / folder_name(2) / "rank-00001.data", 5)

    def check(folder):
        for found in catalog.entries(folder):
            if found.step == 2:
                commit.set_aside(found)
        assert len(catalog.set_aside(folder)) == 1
        check_sound(folder, {1}, {1})

    kill_everywhere(memory, stage, lambda folder: commit.set_aside(entry(folder, 2)), check)


def careless_save(folder, step):
    """Into its final place at once."""
    final = folder / folder_name(step)
    final.mkdir()
    for rank in range(2):
        write_rank(final, step, rank)


def careless_replacement(folder, mine):
    """Room is made first."""
    commit.discard(folder / folder_name(1))
    save(folder, 1, mine)


@pytest.mark.parametrize("careless", [careless_save, careless_replacement])
def test_the_kills_find_a_careless_writer(memory, careless):
    stage = set_stage(memory / "template", 1)
    second = {careless_save: 2, careless_replacement: stage.mine}[careless]
    with pytest.raises(AssertionError, match="killed at"):
        kill_everywhere(
            memory, stage, lambda folder: careless(folder, second), lambda folder: check_sound(folder, {1}, {1, 2})
        )
