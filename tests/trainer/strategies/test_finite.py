"""Steps that are not finite are left out on all ranks, and counted."""

import math

import pytest
import torch
from ranks import spawn_ranks
from strategy_trials import Trial, adamw, one_step, start, whole
from torch import nn

from trainer.errors import TrainerError
from trainer.strategies import StrategySettings
from trainer.strategies.finite import Skips, are_finite, first_gradient, step_fused, step_with_zeros

pytestmark = pytest.mark.nightly


def disturbed(trial, kind):
    """Four steps; in the second and third the last rank meets what is not finite. State and counts after each."""
    torch.set_num_threads(1)
    strategy, world = start(trial)
    states = []
    for step in range(4):
        mine = step in (1, 2) and world.rank == world.size - 1
        scale = math.nan if mine and kind == "loss" else 1.0
        one_step(strategy, Trial(trial.settings, scale=scale, optimizer=trial.optimizer), step)
        if mine and kind == "gradient":
            gradient = next(p.grad for p in strategy.module.parameters() if p.grad is not None and _own(p.grad).numel())
            _own(gradient).view(-1)[0] = math.inf
        strategy.step()
        states.append((whole(strategy.module), strategy.skips.read()))
    return states


def _own(gradient):
    return gradient.to_local() if hasattr(gradient, "to_local") else gradient


@pytest.mark.daily
@pytest.mark.parametrize(
    ("strategy", "ranks", "kind", "clip_norm"),
    [
        ("none", 1, "loss", None), ("none", 1, "gradient", 1.0), ("ddp", 2, "loss", None), ("ddp", 2, "loss", 1.0),
        ("zero1", 2, "loss", 1.0), ("zero2", 2, "gradient", None), ("fsdp", 2, "loss", 1.0),
        ("fsdp", 3, "gradient", None), ("hsdp", 4, "loss", 1.0),
    ],
)  # fmt: skip
def test_what_is_not_finite_on_one_rank_skips_the_step_on_all(strategy, ranks, kind, clip_norm):
    settings = StrategySettings(strategy=strategy, clip_norm=clip_norm, shard_size=2 if strategy == "hsdp" else None)
    for states in spawn_ranks(disturbed, ranks, Trial(settings, optimizer=adamw), kind):
        (first, none), (second, one), (third, two), (fourth, after) = states
        assert [none, one, two, after] == [(0, 0), (1, 1), (2, 2), (2, 0)]
        assert all(torch.equal(parameter, third[name]) for name, parameter in first.items()), "a step was taken"
        assert all(torch.equal(parameter, second[name]) for name, parameter in first.items())
        assert not all(torch.equal(parameter, fourth[name]) for name, parameter in first.items())
        assert all(parameter.isfinite().all() for parameter in fourth.values())


def stepped(optimizer, finite, step):
    """Weights after a good step, and after one more that is as said."""
    parameter = nn.Parameter(torch.ones(3))
    made = optimizer([parameter])
    parameter.grad = torch.full((3,), 0.5)
    made.step()
    before = parameter.detach().clone()
    parameter.grad = torch.tensor([1.0, math.nan if not finite else 2.0, 3.0])
    step(torch.tensor(finite), made, parameter)
    return before, parameter.detach(), made


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    ],
    ids=["adamw", "sgd"],
)
def test_a_fused_optimizer_is_told_on_the_device(optimizer):
    def tell(finite, made, _parameter):
        step_fused(finite, made)

    before, after, made = stepped(optimizer, False, tell)
    assert torch.equal(before, after)
    assert not hasattr(made, "found_inf"), "the next step would be left out too"
    before, after, _ = stepped(optimizer, True, tell)
    assert not torch.equal(before, after)


def test_any_other_gets_zeros_there():
    def zeros(finite, made, parameter):
        step_with_zeros(finite, made, [parameter])

    before, after, _ = stepped(lambda p: torch.optim.SGD(p, lr=0.1), False, zeros)
    assert torch.equal(before, after)
    _, after, _ = stepped(lambda p: torch.optim.AdamW(p, lr=0.1), False, zeros)
    assert after.isfinite().all()


def test_every_kind_of_gradient_is_looked_at():
    good = [torch.ones(2), torch.ones(2, dtype=torch.bfloat16), torch.ones(0), torch.ones(2, dtype=torch.complex64)]
    with torch.sparse.check_sparse_tensor_invariants():
        sparse = [torch.sparse_coo_tensor([[0, 1]], [1.0, value], (3,)) for value in (2.0, math.inf)]
    assert are_finite([*good, sparse[0]], shared=False)
    assert are_finite([], shared=False)
    bad = [
        torch.tensor([1.0, math.nan]),
        torch.tensor([math.inf]).double(),
        torch.tensor([complex(1, math.nan)]),
        sparse[1],
    ]
    for gradient in bad:
        assert not are_finite([*good, gradient], shared=False)


@pytest.mark.daily
def test_a_loss_is_one_number():
    with pytest.raises(TrainerError, match=r"loss: expected one number, got a tensor of shape \(32,\)"):
        first_gradient(torch.ones(32))


def test_counts_come_back():
    skips = Skips()
    for finite in (True, False, torch.tensor(False)):
        skips.count(finite)
    assert skips.read() == (2, 2)
    again = Skips()
    again.load_state_dict(skips.state_dict())
    again.count(True)
    assert again.read() == (2, 0)
