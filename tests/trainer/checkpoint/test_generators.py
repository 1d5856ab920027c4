import random

import numpy as np
import torch

from trainer.checkpoint.generators import restore_generators, seed_all, state_of_generators
from trainer.checkpoint.tree import from_json, to_json

CPU = torch.device("cpu")


def draws():
    numpy = [np.random.random_sample(), np.random.standard_normal()]  # noqa: NPY002 - the global one
    return [random.random(), random.gauss(0, 1), *numpy, *torch.rand(3).tolist(), *torch.randperm(5).tolist()]


def test_after_a_resume_the_same_is_drawn():
    draws()
    random.gauss(0, 1)  # the second one of a pair is waiting in the generator
    np.random.standard_normal()  # noqa: NPY002 - the same
    text = to_json(state_of_generators(CPU), "x", {})
    first = draws()
    assert draws() != first
    restore_generators(from_json(text, {}.__getitem__), CPU)
    assert draws() == first


def test_taking_the_state_draws_nothing():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    state_of_generators(CPU)
    assert torch.equal(torch.rand(1), expected)


def test_a_state_from_a_gpu_may_be_taken_to_a_cpu():
    state = state_of_generators(CPU)
    assert state["devices"] == []
    restore_generators(state | {"devices": [torch.zeros(16, dtype=torch.uint8)]}, CPU)


def drawn(*words):
    seed_all(*words)
    return draws()


def test_the_same_words_give_the_same_numbers_and_others_give_others():
    assert drawn(3, 1) == drawn(3, 1)
    seen = [number for words in ((3, 0), (3, 1), (3,), (4, 0), (2**63, 0)) for number in drawn(*words)[:7]]
    assert len(set(seen)) == len(seen)
