"""Tensors of any kind become rank 0's."""

import pytest
import torch
from ranks import spawn_ranks
from strategy_trials import Trial, start, whole, words
from torch import nn

from trainer.strategies import StrategySettings
from trainer.strategies.broadcast import PersistentBuffers, broadcast_from_first
from trainer.world import join


def _mixed(rank):
    """Sizes of elements that do not divide each other's offsets, shapes without an element or a dimension."""
    generator = torch.Generator().manual_seed(rank)
    return [
        torch.tensor([True, False, rank > 0]),
        torch.tensor(rank, dtype=torch.int64),
        torch.randn(3, generator=generator).to(torch.bfloat16),
        torch.empty(0, 4),
        torch.randn(2, 3, generator=generator).t(),
        torch.randn(5, dtype=torch.float64, generator=generator),
        torch.randn(1, 2, 3, 3, generator=generator).contiguous(memory_format=torch.channels_last),
    ]


def _taken():
    world = join(group=True, device="cpu")
    tensors = _mixed(world.rank)
    strides = [tensor.stride() for tensor in tensors]
    broadcast_from_first(tensors)
    assert [tensor.stride() for tensor in tensors] == strides
    return tensors


def test_every_rank_has_what_rank_0_has():
    for tensors in spawn_ranks(_taken, 3):
        for ours, wanted in zip(tensors, _mixed(0), strict=True):
            assert ours.dtype == wanted.dtype and torch.equal(ours, wanted)


def _begins(strategy):
    """Return the weights with which the strategy starts if each rank has drawn its own."""
    settings = StrategySettings(strategy=strategy)
    world = join(group=True, device="cpu")
    return whole(start(Trial(settings, model=lambda: words(seed=world.rank)))[0].module)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_training_begins_with_the_weights_of_rank_0(strategy):
    wanted = words(seed=0)
    for found in spawn_ranks(_begins, 2, strategy):
        for name, parameter in wanted.named_parameters():
            assert torch.equal(found[name], parameter)


def _kept_apart(*_, **__):
    raise AssertionError("the whole state, with all parameters, was asked for")


def test_buffers_that_are_not_saved_do_not_travel_and_others_are_found_without_the_whole_state():
    module = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2, affine=False))
    module.register_buffer("mask", torch.zeros(1000), persistent=False)
    module.register_buffer("twice", module[0].running_mean)
    module.register_buffer("later", None)
    wanted = {id(buffer) for buffer in module.state_dict(keep_vars=True).values() if not buffer.requires_grad}
    module.state_dict = _kept_apart
    buffers = PersistentBuffers(module)
    assert len(buffers.tensors()) == len(wanted) == 6
    assert {id(buffer) for buffer in buffers.tensors()} == wanted
    module[0].running_mean, module.later = torch.ones(2), torch.ones(3)
    assert {id(buffer) for buffer in buffers.tensors()} > {id(module.later), id(module[0].running_mean)}
