"""BatchNorm over all ranks is that of one process that has all of their samples."""

import pytest
import torch
from ranks import spawn_ranks
from strategy_trials import Trial, one_step, pixel_batch, pixels, start, whole
from torch import nn

from trainer.errors import BadSettings
from trainer.strategies import StrategySettings
from trainer.strategies.batch_norm import sync_batch_norm
from trainer.world import World


def _no_dropout():
    model = pixels()
    model.layers[1][3].p = 0.0
    model.layers[0][1].momentum = None  # the mean of all batches
    return model


def _trained(trial):
    torch.set_num_threads(1)
    strategy, _ = start(trial)
    losses = []
    for step in range(trial.steps):
        losses.append(one_step(strategy, trial, step))
        strategy.step()
    buffers = {name: buffer.clone() for name, buffer in strategy.module.named_buffers()}
    return losses, {**whole(strategy.module), **buffers}, list(strategy.module.state_dict())


@pytest.mark.parametrize(("strategy", "ranks", "recomputed"), [("ddp", 2, False), ("fsdp", 3, True)])
def test_it_trains_like_one_process_that_has_all_samples(strategy, ranks, recomputed):
    settings = StrategySettings(strategy=strategy, sync_batchnorm=True, activation_checkpointing=recomputed)
    trial = Trial(settings, model=_no_dropout, batch=pixel_batch)
    losses, wanted, names = _trained(trial.with_(strategy="none", sync_batchnorm=False, activation_checkpointing=False))
    found = spawn_ranks(_trained, ranks, trial)
    assert [sum(step) / ranks for step in zip(*(one for one, _, _ in found), strict=True)] == pytest.approx(losses)
    for _, state, theirs in found:
        assert theirs == names
        for name, value in wanted.items():
            torch.testing.assert_close(
                state[name], value, rtol=2e-4, atol=2e-5, msg=lambda text, n=name: f"{n}: {text}"
            )


def _is_left_alone(settings):
    strategy, _ = start(Trial(settings, model=pixels))
    norms = [part for part in strategy.module.modules() if isinstance(part, nn.BatchNorm2d)]
    strategy.module.eval()
    images = torch.ones(1, 1, 8, 8)  # one sample on this rank alone: nobody waits for anybody
    return all(type(norm) is nn.BatchNorm2d for norm in norms), strategy.module(images).shape


def test_a_world_of_one_and_an_evaluation_need_nobody():
    assert spawn_ranks(_is_left_alone, 1, StrategySettings(sync_batchnorm=True)) == [(True, (1, 7))]


class Rectified(nn.BatchNorm2d):
    """A BatchNorm layer with an activation in it."""

    def forward(self, x):
        return super().forward(x).relu()


@pytest.mark.parametrize("size", [1, 2])
def test_a_layer_with_a_forward_of_its_own_is_refused(size):
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Sequential(Rectified(3)))
    with pytest.raises(BadSettings, match=r"sync_batchnorm: 1\.0: expected torch's own forward, got that of Rectified"):
        sync_batch_norm(model, World(0, size, 0, size, torch.device("cpu")))
    assert type(model[0]) is nn.BatchNorm2d


def test_a_model_that_is_prepared_twice_is_the_same():
    model, world = nn.Sequential(nn.BatchNorm2d(3)), World(0, 2, 0, 2, torch.device("cpu"))
    for _ in range(2):
        sync_batch_norm(model, world)
    assert isinstance(model[0], nn.BatchNorm2d)
