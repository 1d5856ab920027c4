"""When whom a proof kills: by the seed alone, spread over the training, never at its end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.apps.proof.schedule import held_at, planned
from launcher.errors import BadInput

SEEDS, KILLS, STEPS = st.integers(0, 10**6), st.integers(1, 20), st.integers(1, 10_000)


@given(SEEDS, KILLS, STEPS)
def test_each_stretch_of_the_training_has_one(seed, kills, steps):
    last = int(steps * 0.85)
    if last < kills:
        with pytest.raises(BadInput, match=f"expected at most {last} of a training of {steps} steps"):
            planned(seed, "warm", kills, steps)
        return
    found = [one.step for one in planned(seed, "warm", kills, steps)]
    assert found == sorted(set(found))
    assert len(found) == kills
    assert found[0] >= 1 and found[-1] <= last < steps
    assert all(last * number // kills < step <= last * (number + 1) // kills for number, step in enumerate(found))


@given(SEEDS, KILLS, STEPS, st.integers(0, 10_000))
def test_none_comes_before_the_first_checkpoint_if_there_is_room(seed, kills, steps, saved):
    last = int(steps * 0.85)
    if last < kills:
        return
    found = [one.step for one in planned(seed, "warm", kills, steps, saved)]
    assert len(set(found)) == kills and found[-1] <= last
    assert found[0] > saved or last - saved < kills


@given(SEEDS)
def test_a_seed_draws_the_same_again_and_each_mode_something_else(seed):
    assert planned(seed, "warm", 5, 1000) == planned(seed, "warm", 5, 1000) != planned(seed, "power", 5, 1000)


@given(SEEDS, st.integers(1, 1000))
def test_whom_it_picks_is_there(seed, count):
    assert all(0 <= one.among(count) < count for one in planned(seed, "warm", 5, 1000))


def test_where_ranks_wait_is_where_they_are_killed():
    kills = planned(7, "warm", 3, 60)
    pairs = [word.split("@") for word in held_at(kills, 4).split(",")]
    assert pairs == [[str(one.step), str(one.among(4))] for one in kills]
