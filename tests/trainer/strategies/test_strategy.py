"""A step is given to the device, and not waited for."""

import pytest
import torch
from torch import nn

from trainer.strategies import StrategySettings, build
from trainer.world import World


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
