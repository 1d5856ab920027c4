"""A pass before the first one, so that a process that starts later sums in the same order."""

import copy
import random

import numpy as np
import pytest
import torch
from ranks import spawn_ranks
from strategy_trials import Trial, adamw, loss_of, one_step, pixel_batch, share, start
from torch import nn

from trainer.strategies import StrategySettings
from trainer.strategies.undone import undone

STEPS, RESUMED_AT = 6, 3


class Crossed(nn.Module):
    """Gradients arrive in another order than that of the parameters; sums are long enough to round."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 7)
        self.first = nn.Linear(64, 96)
        self.middle = nn.Sequential(nn.Linear(96, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2))

    def forward(self, images):
        return self.last(self.middle(torch.relu(self.first(images.flatten(1)))))


def _crossed():
    torch.manual_seed(4)
    return Crossed()


def _trains(trial, settles, saved=None):
    """To the end from `saved`, or from the beginning; what there is after RESUMED_AT steps, and at the end."""
    torch.set_num_threads(1)
    strategy, world = start(trial)
    if settles:
        strategy.settle(lambda: loss_of(strategy.model, share(trial.batch(0), world.rank, world.size)))
    begin = 0
    if saved is not None:
        model, optimizer, begin = saved[world.rank]["model"], saved[world.rank]["optimizer"], RESUMED_AT
        strategy.module.load_state_dict(model)
        inner = getattr(strategy.optimizer, "optim", strategy.optimizer)
        inner.load_state_dict(optimizer)
    kept, losses = {}, []
    for step in range(begin, STEPS):
        torch.manual_seed(100 * step + world.rank)
        losses.append(one_step(strategy, trial, step))
        strategy.step()
        if step + 1 == RESUMED_AT:
            inner = getattr(strategy.optimizer, "optim", strategy.optimizer)
            model = {name: value.clone() for name, value in strategy.module.state_dict().items()}
            kept = {"model": model, "optimizer": copy.deepcopy(inner.state_dict())}
    weights = {name: value.clone() for name, value in strategy.module.state_dict().items()}
    return kept, losses[-(STEPS - RESUMED_AT) :], weights


def _is_bit_equal(strategy, settles):
    trial = Trial(StrategySettings(strategy=strategy), model=_crossed, batch=pixel_batch, optimizer=adamw)
    undisturbed = spawn_ranks(_trains, 3, trial, settles)
    resumed = spawn_ranks(_trains, 3, trial, settles, [kept for kept, _, _ in undisturbed])
    return all(
        losses == others and all(torch.equal(value, theirs[name]) for name, value in mine.items())
        for (_, losses, mine), (_, others, theirs) in zip(undisturbed, resumed, strict=True)
    )


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_a_process_that_starts_later_goes_on_bit_for_bit(strategy):
    assert _is_bit_equal(strategy, settles=True)


def test_without_it_the_last_bits_differ():
    """If this fails, torch deals out buckets otherwise than it did, and `settle` may be in vain."""
    assert not _is_bit_equal("ddp", settles=False)


def _drawn():
    """A number of each generator."""
    return random.random(), np.random.random(), torch.rand(()).item()  # noqa: NPY002 - the global one is what is put back


def _draws(trial):
    """Generators, buffers and gradients before and after settling, and what was seen in it."""
    torch.set_num_threads(1)
    strategy, world = start(trial)
    seen = []

    def run_micro_batch():
        seen.append(_drawn())
        return loss_of(strategy.model, share(pixel_batch(0), world.rank, world.size))

    before = {name: buffer.clone() for name, buffer in strategy.module.named_buffers()}
    weights = [parameter.clone() for parameter in strategy.module.parameters()]
    strategy.settle(run_micro_batch)
    return (
        seen == [_drawn()],
        all(torch.equal(buffer, before[name]) for name, buffer in strategy.module.named_buffers()),
        all(parameter.grad is None for parameter in strategy.module.parameters()),
        all(map(torch.equal, strategy.module.parameters(), weights)),
        len(strategy.optimizer.state),
    )


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_it_leaves_no_trace(precision):
    trial = Trial(StrategySettings(strategy="ddp", precision=precision), model=_crossed, batch=pixel_batch)
    assert spawn_ranks(_draws, 3, trial) == [(True, True, True, True, 0)] * 3


def _passes(trial):
    strategy, _ = start(trial)
    calls = []

    def run_micro_batch():
        calls.append(1)
        return loss_of(strategy.model, trial.batch(0))

    strategy.settle(run_micro_batch)
    return len(calls)


@pytest.mark.parametrize(
    ("strategy", "ranks", "passes"), [("none", 1, 0), ("ddp", 2, 0), ("ddp", 3, 1), ("zero1", 3, 1), ("fsdp", 3, 0)]
)
def test_it_costs_a_pass_only_where_it_is_needed(strategy, ranks, passes):
    assert spawn_ranks(_passes, ranks, Trial(StrategySettings(strategy=strategy))) == [passes] * ranks


def _fails_after_a_pass(model):
    loss_of(model, pixel_batch(1)).backward()
    raise ZeroDivisionError


def test_gradients_that_were_there_are_put_back_even_after_an_error():
    model = _crossed()
    loss_of(model, pixel_batch(0)).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    values = [gradient.clone() for gradient in gradients]
    counts = model.middle[1].num_batches_tracked.item()
    with pytest.raises(ZeroDivisionError), undone(model, torch.device("cpu")):
        _fails_after_a_pass(model)
    assert all(parameter.grad is gradient for parameter, gradient in zip(model.parameters(), gradients, strict=True))
    assert all(map(torch.equal, gradients, values))
    assert model.middle[1].num_batches_tracked == counts == 1
