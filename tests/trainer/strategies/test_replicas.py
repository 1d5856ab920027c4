"""Copies under DDP: the same buckets from the first step on, so that a process that starts later sums alike."""

import copy

import pytest
import torch
from ranks import spawn_ranks
from strategy_trials import Trial, adamw, one_step, pixel_batch, start
from torch import nn

from trainer.strategies import StrategySettings, replicas

pytestmark = pytest.mark.nightly

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


def _trains(trial, dealt_out, saved=None):
    """Train to the end, from `saved` if given; return the state after RESUMED_AT steps and at the end."""
    torch.set_num_threads(1)
    if not dealt_out:
        assert callable(replicas._Replica.make_buckets)
        replicas._Replica.make_buckets = lambda _: None
    strategy, world = start(trial)
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


def _is_bit_equal(settings, dealt_out=True):
    trial = Trial(settings, model=_crossed, batch=pixel_batch, optimizer=adamw)
    undisturbed = spawn_ranks(_trains, 3, trial, dealt_out)
    resumed = spawn_ranks(_trains, 3, trial, dealt_out, [kept for kept, _, _ in undisturbed])
    return all(
        losses == others and all(torch.equal(value, theirs[name]) for name, value in mine.items())
        for (_, losses, mine), (_, others, theirs) in zip(undisturbed, resumed, strict=True)
    )


@pytest.mark.parametrize("words", [{"strategy": "ddp"}, {"strategy": "zero1"}, {"unused_parameters": True}], ids=str)
def test_a_process_that_starts_later_goes_on_bit_for_bit(words):
    assert _is_bit_equal(StrategySettings(**{"strategy": "ddp"} | words))


def test_as_ddp_deals_them_out_by_itself_the_last_bits_differ():
    """If this fails, torch does it otherwise than it did, and `make_buckets` may be in vain."""
    assert not _is_bit_equal(StrategySettings(strategy="ddp"), dealt_out=False)


def _buckets(strategy):
    """Return the names of the parameters in each of DDP's gradient buckets."""
    names = {parameter: name for name, parameter in strategy.module.named_parameters()}
    return [
        [names[one] for one in bucket.parameters()] for bucket in strategy.model.reducer._get_zeros_like_grad_buckets()
    ]


def _before_and_after_steps(trial):
    strategy, _ = start(trial)
    found = [_buckets(strategy)]
    for step in range(3):
        one_step(strategy, trial, step)
        strategy.step()
        found.append(_buckets(strategy))
    return found


@pytest.mark.daily
def test_buckets_go_from_the_last_parameter_to_the_first_and_stay():
    trial = Trial(StrategySettings(strategy="ddp", bucket_mb=0.01), model=_crossed, batch=pixel_batch)
    names = [name for name, _ in _crossed().named_parameters()]
    for first, *later in spawn_ranks(_before_and_after_steps, 2, trial):
        assert len(first) > 1
        assert [name for bucket in first for name in bucket] == names[::-1]
        assert later == [first] * 3
