"""Test what a step does with gradients: of everything that is trained, and nothing else."""

import pytest
import torch
from torch import nn

from trainer.strategies import StrategySettings, Turns, build
from trainer.world import World

ALONE = World(0, 1, 0, 1, torch.device("cpu"))


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_step_reads_nothing_from_the_device(clip_norm):
    """Of the meta device nothing can be read: to try it is an error."""
    world = World(0, 1, 0, 1, torch.device("meta"))
    settings = StrategySettings(strategy="none", clip_norm=clip_norm)
    strategy = build(nn.Linear(4, 2), world, settings, torch.optim.AdamW)
    with strategy.forward_context(sync=True):
        loss = strategy.model(torch.zeros(3, 4, device="meta")).sum()
    strategy.backward(loss)
    norm = strategy.step()
    assert (norm is None) == (clip_norm is None)


def test_a_number_of_a_sparse_gradient_is_clipped_once():
    """It comes in parts, one for each time that a token was there."""
    strategy = build(
        nn.EmbeddingBag(4, 1, mode="sum", sparse=True), ALONE, StrategySettings(strategy="none", clip_value=1.0),
        lambda parameters: torch.optim.SGD(parameters, lr=1.0),
    )  # fmt: skip
    before = strategy.module.weight.detach().clone()
    strategy.backward(strategy.model(torch.tensor([[1, 1, 1]])).sum())
    strategy.step()
    assert (before - strategy.module.weight.detach()).flatten().tolist() == pytest.approx([0, 1, 0, 0])


class Pair(nn.ModuleDict):
    """The sum of both; of `right` a thousand times as much."""

    def __init__(self):
        super().__init__({name: nn.Linear(2, 1, bias=False) for name in ("left", "right")})

    def forward(self, x):
        return self["left"](x).float().sum() + 1000 * self["right"](x).float().sum()


def of_the_left(parameters):
    return torch.optim.SGD(parameters.split("left.*")[0], lr=0.1)


def one_each(parameters):
    return {name: torch.optim.SGD(parameters.split(f"{name}.*")[0], lr=0.1) for name in ("left", "right")}


def forgetful(**settings):
    """`right` is in no optimizer."""
    return build(Pair(), ALONE, StrategySettings(**{"strategy": "none", **settings}), of_the_left)


def one_step(strategy, scale=1.0):
    with strategy.forward_context(sync=True):
        loss = strategy.model(torch.ones(1, 2))
    strategy.backward(loss * scale)
    return strategy.step()


def test_what_no_optimizer_has_is_neither_clipped_nor_kept():
    strategy = forgetful(clip_norm=1.0)
    norms = [one_step(strategy).item() for _ in range(3)]
    assert norms == pytest.approx([2**0.5] * 3)
    assert strategy.module["right"].weight.grad is None
    one_step(strategy)
    strategy.skip_step()
    assert strategy.module["right"].weight.grad is None


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_one_bad_batch_does_not_stay_where_no_optimizer_is(precision):
    strategy = forgetful(precision=precision)
    counts = []
    for scale in (1e-9, torch.nan, 1e-9):  # times the scale of fp16 it is finite
        one_step(strategy, scale)
        counts.append(strategy.skips.read())
    assert counts == [(0, 0), (1, 1), (1, 0)]


def test_groups_that_are_added_later_are_clipped_too():
    strategy = forgetful(clip_norm=1.0)
    strategy.optimizer.add_param_group({"params": [strategy.module["right"].weight]})
    assert one_step(strategy).item() > 1000


def test_who_has_no_gradient_is_left_alone_by_the_scaler():
    model = Pair()
    strategy = build(model, ALONE, StrategySettings(strategy="none", precision="fp16"), one_each)
    for name in ("left", "right", "left"):
        before = {key: part.weight.detach().clone() for key, part in model.items()}
        with strategy.forward_context(sync=True):
            loss = model[name](torch.ones(1, 2)).float().sum()
        strategy.backward(loss * 1e-3)
        strategy.step()
        assert {key for key, part in model.items() if not torch.equal(part.weight, before[key])} == {name}
    strategy.step()  # of nothing at all
    assert strategy.skips.read() == (0, 0)


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_turn_without_gradients_asks_nothing_of_the_device(clip_norm):
    world = World(0, 1, 0, 1, torch.device("meta"))
    settings = StrategySettings(strategy="none", clip_norm=clip_norm)
    strategy = build(Pair(), world, settings, one_each, own_step=True)
    turns, weight = Turns(strategy), strategy.module["left"].weight
    weight.grad = torch.ones_like(weight)
    turns.step("left")
    turns.step("right")
    assert (turns.end() is None) == (clip_norm is None)
