import random

import numpy as np
import torch

from trainer.loop.seeding import seed_all

NUMPY = np.random  # the global generator, which user code draws from


def drawn(*words):
    seed_all(*words)
    return random.random(), NUMPY.random(), torch.rand(1).item()


def test_the_same_words_give_the_same_numbers_and_others_give_others():
    assert drawn(3, 1) == drawn(3, 1)
    everything = [number for words in ((3, 0), (3, 1), (3,), (4, 0), (2**63, 0)) for number in drawn(*words)]
    assert len(set(everything)) == len(everything)
