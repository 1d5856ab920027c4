"""The model: fitted to steps on a few numbers of ranks that were drawn from a known one, it foretells others."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.apps.scaling.model import Fit, Observed, fitted, least_squares

TRUTHS = [
    Fit(0.05, 0.95, 0.002, 0.06),
    Fit(0.2, 0.8, 0.0, 0.15),
    Fit(0.01, 0.5, 0.01, 0.0),
    Fit(0.0, 1.0, 0.0, 0.0),
    Fit(0.05, 0.95, 0.006, 0.05, tree=True),
    Fit(0.02, 0.6, 0.02, 0.0, tree=True),
]


def observed(truth, ranks, seed, noise=0.03):
    draw = random.Random(seed)

    def of(count):
        steps = [truth.step(count) * (1 + draw.gauss(0, noise)) for _ in range(6)]
        share = truth.communication(count) / truth.step(count)
        return Observed(count, steps, [max(0.0, share * (1 + draw.gauss(0, 0.05)))])

    return [of(count) for count in ranks]


@pytest.mark.parametrize("truth", TRUTHS)
def test_from_1_2_and_4_ranks_8_are_foretold_within_the_range(truth):
    inside, widths = 0, []
    expected = truth.step(1) / truth.step(8)
    for seed in range(20):
        found = fitted(observed(truth, (1, 2, 4), seed), weak=False)
        assert found is not None
        usual, low, high = found.speedup(8, base=1)
        inside += low <= expected <= high
        widths.append((high - low) / usual)
    assert inside >= 16, f"{inside} of 20"
    assert sum(widths) / len(widths) < 0.5, "so wide a range says nothing"


def test_weak_scaling_is_foretold_too():
    truth = Fit(1.0, 0.0, 0.003, 0.1)
    found = fitted(observed(truth, (1, 2, 4), 5), weak=True)
    assert found is not None
    usual, low, high = found.speedup(8, base=1, times=8)
    assert low <= 8 * truth.step(1) / truth.step(8) <= high
    assert 6 < usual < 8


def test_without_noise_the_parts_come_back():
    truth = Fit(0.05, 0.95, 0.002, 0.06)
    found = fitted(observed(truth, (1, 2, 4), 1, noise=0.0), weak=False)
    assert found is not None
    usual = found.usual
    assert usual.serial == pytest.approx(truth.serial, rel=0.3)
    assert usual.divided == pytest.approx(truth.divided, rel=0.05)
    assert usual.communication(4) == pytest.approx(truth.communication(4), rel=0.15)


def test_of_one_number_with_messages_latency_and_transfer_cannot_be_told_apart():
    truth = Fit(0.05, 0.95, 0.004, 0.04)
    two = fitted(observed(truth, (1, 2), 3), weak=False)
    three = fitted(observed(truth, (1, 2, 4), 3), weak=False)
    assert two is not None and three is not None
    assert (two.latency_known, three.latency_known) == (False, True)
    _, low, high = two.speedup(16, base=1)
    _, less, more = three.speedup(16, base=1)
    assert high - low > more - less, "who knows less says so"
    assert low <= truth.step(1) / truth.step(16) <= high


@pytest.mark.parametrize("tree", [True, False])
def test_a_ring_is_told_from_a_tree_once_there_is_enough_to_tell_them_by(tree):
    truth = Fit(0.05, 0.95, 0.02, 0.02, tree=tree)
    found = fitted(observed(truth, (1, 2, 4, 8, 16, 32, 64), 4), weak=False)
    assert found is not None and found.usual.tree == tree
    assert found.usual.communication(128) == pytest.approx(truth.communication(128), rel=0.3)


def test_one_number_of_ranks_says_nothing():
    assert fitted(observed(TRUTHS[0], (4,), 1), weak=False) is None


def test_what_does_not_follow_the_model_makes_it_unsure():
    steady = [Observed(1, [1.0] * 5, [0.0]), Observed(2, [0.5] * 5, [0.0]), Observed(4, [0.25] * 5, [0.0])]
    odd = [*steady[:2], Observed(4, [0.5] * 5, [0.0])]
    sure, unsure = fitted(steady, weak=False), fitted(odd, weak=False)
    assert sure is not None and unsure is not None
    assert sure.misfit < 0.01 < unsure.misfit
    _, low, high = sure.speedup(8, base=1)
    _, least, most = unsure.speedup(8, base=1)
    assert high - low < 0.1 < most - least


@given(st.floats(0.001, 10), st.floats(0.001, 10))
def test_least_squares_find_what_is_there(a, b):
    rows = [(1.0, 1 / count, a + b / count) for count in (1, 2, 4, 8)]
    found = least_squares(rows)
    assert found == pytest.approx((a, b), rel=1e-6, abs=1e-6)


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5), st.floats(0, 5)), max_size=5))
def test_nothing_is_negative(rows):
    assert min(least_squares(rows)) >= 0
