"""A pass that leaves no trace: what is drawn, gathered and added up in it has not happened."""

import random

import numpy as np
import pytest
import torch
from ranks import spawn_ranks
from strategy_trials import Trial, loss_of, pixel_batch, pixels, share, start
from torch import nn

from trainer.strategies import StrategySettings
from trainer.strategies.strategy import undone


def _drawn():
    """A number of each generator."""
    return random.random(), np.random.random(), torch.rand(()).item()  # noqa: NPY002 - the global one is what is put back


def _draws(trial):
    """Generators, buffers and gradients before and after a rehearsal, and what was seen in it."""
    torch.set_num_threads(1)
    strategy, world = start(trial)
    seen = []

    def run_micro_batch():
        seen.append(_drawn())
        return loss_of(strategy.model, share(pixel_batch(0), world.rank, world.size))

    before = {name: buffer.clone() for name, buffer in strategy.module.named_buffers()}
    weights = [parameter.clone() for parameter in strategy.module.parameters()]
    strategy.rehearse(run_micro_batch, sync=True)
    return (
        seen == [_drawn()],
        all(torch.equal(buffer, before[name]) for name, buffer in strategy.module.named_buffers()),
        all(parameter.grad is None for parameter in strategy.module.parameters()),
        all(map(torch.equal, strategy.module.parameters(), weights)),
        len(strategy.optimizer.state),
    )


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_it_leaves_no_trace(precision):
    trial = Trial(StrategySettings(strategy="ddp", precision=precision), model=pixels, batch=pixel_batch)
    assert spawn_ranks(_draws, 3, trial) == [(True, True, True, True, 0)] * 3


def _fails_after_a_pass(model):
    loss_of(model, pixel_batch(1)).backward()
    raise ZeroDivisionError


def test_gradients_that_were_there_are_put_back_even_after_an_error():
    model = pixels()
    loss_of(model, pixel_batch(0)).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    values = [gradient.clone() for gradient in gradients]
    norm = next(one for one in model.modules() if isinstance(one, nn.BatchNorm2d))
    counts = norm.num_batches_tracked.item()
    with pytest.raises(ZeroDivisionError), undone(model, torch.device("cpu")):
        _fails_after_a_pass(model)
    assert all(parameter.grad is gradient for parameter, gradient in zip(model.parameters(), gradients, strict=True))
    assert all(map(torch.equal, gradients, values))
    assert norm.num_batches_tracked == counts == 1
