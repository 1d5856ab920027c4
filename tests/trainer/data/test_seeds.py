"""Generators are seeded by place, and put back as if nothing had been."""

# ruff: noqa: NPY002 - data sets of strangers draw from NumPy's global generator

import random

import numpy as np
import pytest
import torch
from sample_sets import generator_states, three_draws

from trainer.data.seeds import IsolatedDraws, seed_draws


def draws_at(*words):
    with IsolatedDraws():
        seed_draws(*words)
        return [three_draws() for _ in range(3)]


def test_what_is_drawn_follows_from_the_words_alone():
    first = draws_at(1, 2, 3)
    three_draws()
    assert draws_at(1, 2, 3) == first


def test_other_words_draw_other_numbers():
    drawn = {tuple(draws_at(seed, epoch, at)[0]) for seed in (0, -1, 2**70) for epoch in (0, 1) for at in (0, 32)}
    assert len(drawn) == 12
    assert all(len({run[place] for run in drawn}) == 12 for place in range(4))


@pytest.mark.parametrize("normal_deviates", [0, 1, 2, 3])
def test_the_process_own_generators_stay_as_they_are(normal_deviates):
    """NumPy makes normal deviates in pairs: after an odd number of them one is waiting."""
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    np.random.randn(normal_deviates)
    before = generator_states()
    draws_at(1)
    assert generator_states() == before
    drawn = np.random.randn(3)
    np.random.seed(5)
    assert np.array_equal(np.random.randn(normal_deviates + 3)[normal_deviates:], drawn)


def test_they_stay_as_they_are_when_fetching_fails():
    before = generator_states()

    def fail():
        with IsolatedDraws():
            seed_draws(1)
            three_draws()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert generator_states() == before


def test_one_inside_of_another():
    def drawn(interrupted):
        with IsolatedDraws():
            seed_draws(1)
            first = three_draws()
            if interrupted:
                draws_at(2)
            return first, three_draws()

    assert drawn(interrupted=True) == drawn(interrupted=False)


def test_a_bit_generator_of_the_users_choice_stays_in_place():
    mine = np.random.PCG64(3)
    usual = np.random.get_bit_generator()
    np.random.set_bit_generator(mine)
    try:
        np.random.randn()
        before = repr(np.random.get_state(legacy=False))
        inside = draws_at(4)
        assert np.random.get_bit_generator() is mine
        assert repr(np.random.get_state(legacy=False)) == before
    finally:
        np.random.set_bit_generator(usual)
    assert inside == draws_at(4)


def test_without_knowledge_of_the_raw_state_the_result_is_the_same(monkeypatch):
    np.random.randn()
    monkeypatch.setattr("trainer.data.seeds._raw_state_is_known", False)
    before = generator_states()
    draws_at(1)
    assert generator_states() == before


def test_the_raw_state_is_known_in_this_release_of_numpy():
    from trainer.data import seeds

    assert seeds._raw_state_is_known
