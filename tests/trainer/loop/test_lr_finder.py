import copy
import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from trainer.errors import TrainerError
from trainer.loop.lr_finder import learning_rate_finder, put_back, steepest

NUMPY = np.random  # the global generator, which user code draws from


class Place:
    def __init__(self):
        self.at = 3

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def trained(steps, optimizer="adam"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
    groups = [{"params": model[0].parameters()}, {"params": model[3].parameters(), "lr": 0.02}]
    made = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer](groups, lr=0.01)
    for _ in range(steps):
        one_step(model, made)
    return model, made


def one_step(model, optimizer):
    x = torch.randn(16, 4)
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def everything(model, optimizer, place):
    generators = (random.random(), NUMPY.random(), torch.rand(1).item())
    gradients = [parameter.grad for parameter in model.parameters()]
    return copy.deepcopy([model.state_dict(), optimizer.state_dict(), gradients, place.at, generators])


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.nightly
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_a_sweep_leaves_no_trace(steps, kind):
    def run(sweep):
        random.seed(1)
        NUMPY.seed(1)
        model, optimizer = trained(steps, kind)
        place = Place()
        if sweep:
            with put_back(model, optimizer, None, place, torch.device("cpu")):
                place.at = 99
                model.eval()
                random.random()
                NUMPY.random()
                learning_rate_finder(lambda: one_step(model.train(), optimizer), optimizer, highest=1.0)
        assert all(part.training for part in model.modules())
        return everything(model, optimizer, place)

    assert same(run(sweep=True), run(sweep=False))


def test_the_suggestion_is_where_the_loss_falls_fastest():
    rates = [10 ** (n / 10) for n in range(-60, 10)]
    # The loss is flat, falls as a smooth step around 1e-2, and runs away above 1.
    losses = [2 - 1 / (1 + (1e-2 / rate) ** 2) + max(0.0, rate - 1) for rate in rates]
    assert steepest(rates, losses) == pytest.approx(1e-2, rel=0.2)


def test_a_suggested_rate_trains(capsys):
    model, optimizer = trained(0, "sgd")
    with put_back(model, optimizer, None, Place(), torch.device("cpu")):
        sweep = learning_rate_finder(lambda: one_step(model, optimizer), optimizer)
    print(sweep.suggestion)
    assert 1e-4 < sweep.suggestion < 1
    assert list(sweep.rates) == sorted(sweep.rates)
    assert len(sweep.rates) == len(sweep.losses)


def test_groups_keep_their_ratio():
    _, optimizer = trained(0)
    seen = []

    def step():
        seen.append([group["lr"] for group in optimizer.param_groups])
        return 1 / len(seen)

    learning_rate_finder(step, optimizer, steps=20)
    assert all(second == pytest.approx(2 * first) for first, second in seen)
    assert seen[0][0] == pytest.approx(1e-7)
    assert seen[-1][0] == pytest.approx(10)


def test_a_loss_that_falls_nowhere_is_told():
    _, optimizer = trained(0)
    with pytest.raises(TrainerError, match="the loss fell at no rate"):
        learning_rate_finder(lambda: 1.0, optimizer)
    with pytest.raises(TrainerError, match="the loss fell at no rate"):
        learning_rate_finder(lambda: math.nan, optimizer)
