import math
import random

import torch

from tests.sizes import SEED
from trainer.loop.sums import Sums, exact_sum, means


def test_the_mean_is_the_same_however_the_batches_are_dealt_out():
    seed = SEED
    print(f"seed {seed}")
    dice = random.Random(seed)
    batches = [(dice.uniform(-1, 1) * 10 ** dice.randint(-9, 9), dice.randint(1, 9)) for _ in range(200)]
    found = set()
    for ranks in (1, 2, 3, 7):
        sums = [Sums() for _ in range(ranks)]
        dice.shuffle(batches)
        for place, (value, samples) in enumerate(batches):
            sums[place % ranks].add("loss", (torch.tensor(value).double() * samples, samples))
            sums[place % ranks].add("hits", (torch.tensor(samples // 2), samples))
        found.add(tuple(means(one.terms() for one in sums).items()))
    assert len(found) == 1
    [values] = found
    samples = sum(count for _, count in batches)
    assert dict(values)["hits"] == sum(count // 2 for _, count in batches) / samples


def test_a_sum_may_come_with_a_count_of_its_own():
    sums = Sums()
    sums.add("per_token", (torch.tensor(6.0), torch.tensor(4)))
    sums.add("per_token", (torch.tensor(2.0), torch.tensor(1)))
    assert means([sums.terms()]) == {"per_token": 8 / 5}


def test_a_rank_without_a_batch_and_a_count_of_nothing():
    sums = Sums()
    sums.add("rare", (torch.tensor(0.0), torch.tensor(0)))
    [value] = means([Sums().terms(), sums.terms()]).values()
    assert math.isnan(value)
    assert means([Sums().terms()]) == {}


def test_a_loss_that_is_nan_or_infinite_shows():
    assert math.isnan(exact_sum([1.0, math.nan]))
    assert exact_sum([1.0, math.inf]) == math.inf
    assert exact_sum([0.1] * 10) == 1.0
