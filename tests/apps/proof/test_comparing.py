"""Two runs beside each other: what they reported, and what their checkpoints hold."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saved_checkpoints import save_kept, save_model

from launcher.apps.proof.comparing import compared_rows, compared_states, departure_of, is_of_the_training
from launcher.apps.proof.findings import Departure
from trainer.checkpoint_files.differences import Differences, OtherTensor

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
ROWS = st.dictionaries(st.integers(1, 30), st.dictionaries(st.sampled_from(["loss", "lr", "at"]), NUMBERS), max_size=20)
RANKS = st.dictionaries(st.integers(0, 3), ROWS, max_size=3)


@given(RANKS)
def test_a_run_is_like_itself(ranks):
    assert compared_rows(ranks, ranks).first is None


@given(RANKS, st.data())
def test_the_first_number_that_is_another_one_is_found(ranks, data):
    places = [
        (step, rank, name) for rank, rows in ranks.items() for step, row in rows.items() for name in row if name != "at"
    ]
    if not places:
        return
    step, rank, name = data.draw(st.sampled_from(places))
    other = {key: {at: dict(row) for at, row in rows.items()} for key, rows in ranks.items()}
    before = other[rank][step][name]
    after = other[rank][step][name] = 1.5 if before != 1.5 else 2.5
    first = compared_rows(ranks, other).first
    assert first is not None
    assert (first.step, first.rank, first.metric, first.disturbed) == (step, rank, name, after)


def test_only_steps_and_ranks_that_both_have_count():
    one, other = {0: {1: {"loss": 1.0}, 2: {"loss": 2.0}}, 1: {3: {"loss": 3.0}}}, {0: {2: {"loss": 2.0}}}
    assert (compared_rows(one, other).at, compared_rows(one, other).first) == ((2,), None)


def test_times_and_rates_do_not_count_but_what_is_chosen_does():
    one, other = {0: {1: {"loss": 1.0, "tokens_per_s": 5.0}}}, {0: {1: {"loss": 1.0, "tokens_per_s": 6.0}}}
    assert compared_rows(one, other).metrics == ("loss",)
    assert compared_rows(one, other, ["tokens_per_s"]).first == Departure(1, 0, "tokens_per_s", 5.0, 6.0)


@pytest.mark.parametrize("name", ["loss", "val_loss", "accuracy", "norm", "lr", "train/acc"])
def test_it_is_of_the_training(name):
    assert is_of_the_training(name)


@pytest.mark.parametrize("name", ["samples_per_s", "seconds/data", "memory_gb", "elapsed_s", "own_seconds/least"])
def test_it_is_a_matter_of_time(name):
    assert not is_of_the_training(name)


def test_nan_is_like_nan():
    assert compared_rows({0: {1: {"loss": math.nan}}}, {0: {1: {"loss": math.nan}}}).first is None
    assert compared_rows({0: {1: {"loss": math.nan}}}, {0: {1: {"loss": 1.0}}}).first is not None


def test_checkpoints_are_compared_until_two_differ(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for step in (4, 8, 12):
        save_model(one, step, (1.0, 2.0, 3.0), ("a", "b"))
        save_model(other, step, (1.0, 2.0, 3.0 + (step > 4)), ("a", "b"))
    places = [{step: folder / f"step-{step:08d}" for step in (4, 8, 12)} for folder in (one, other)]
    found = compared_states(*places, untouched=4, every=True)
    assert found.steps == (4, 8)
    first = found.first
    assert first is not None
    assert (first.step, first.tensor, first.index, first.undisturbed, first.disturbed) == (8, "model/a", (2,), "3", "4")
    assert (first.different, first.tensors) == (2, 2)
    assert compared_states(*places, untouched=4, every=False).steps == (12,)
    del places[1][8], places[1][12]
    assert compared_states(*places, untouched=4, every=True).first is None


def test_a_checkpoint_that_cannot_be_read_is_said(tmp_path):
    folder = save_model(tmp_path / "one", 4)
    (folder / "rank-00000.data").write_bytes(struct.pack("<f", 1.0) + b"more")
    found = compared_states({4: folder}, {4: folder}, untouched=4, every=True)
    assert (found.steps, found.first) == ((), None)
    assert "expected 4 bytes, got 8" in found.unread


def test_what_differs_before_the_first_kill_differs_between_any_two_runs(tmp_path):
    """A generator that nobody has seeded; the place in the data went lost by the kill."""
    places = []
    for run in (0, 1):
        folders = {}
        for step in (4, 8, 12):
            kept = {"generators": {"python": run}, "objects": {"data": {"done": step + run * (step > 8)}}}
            folders[step] = save_kept(tmp_path / str(run), step, **{"rank/00000": kept})
        places.append(folders)
    found = compared_states(*places, untouched=9, every=True)
    assert found.steps == (4, 8, 12)
    assert found.first is not None
    assert (found.first.step, found.first.kept) == (12, ("rank/00000/objects/data/done",))
    assert compared_states(*places, untouched=3, every=True).first is None, "nobody knows what is usual"


KEPT = ("rank/00000/generators/python", "shared/objects/mine/at")


def test_kept_state_that_differs_between_any_two_runs_says_nothing():
    found = Differences(3, (), None, KEPT)
    assert departure_of(8, found, usual=None) is None
    assert departure_of(8, found, usual=set(KEPT)) is None
    lost = departure_of(8, found, usual={"shared/objects/mine/at"})
    assert lost is not None
    assert lost.kept == ("rank/00000/generators/python",)
    assert departure_of(8, found, usual={"rank/00000/generators/python"}) is None, "a user's object may keep a time"
    with_tensor = Differences(3, ("a",), OtherTensor("a", (0,), "1", "2"), KEPT)
    told = departure_of(8, with_tensor, usual=None)
    assert told is not None
    assert (told.tensor, told.kept) == ("a", KEPT)
