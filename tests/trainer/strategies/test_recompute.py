"""Activation checkpointing changes what is kept for the backward pass, and nothing else."""

import copy

import pytest
import torch
from ranks import spawn_ranks
from strategy_trials import Block, Trial, loss_of, pixel_batch, pixels, run, start, word_batch, words
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from trainer.errors import TrainerError
from trainer.strategies import StrategySettings

pytestmark = pytest.mark.nightly


def _trial(strategy="none", recomputed=True, **others):
    settings = StrategySettings(
        strategy=strategy, activation_checkpointing=recomputed, shard_size=2 if strategy == "hsdp" else None
    )
    return Trial(settings, **others)


def _drops():
    return words(dropout=0.3)


def _one_pass(trial):
    """Gradients, buffers, the generator afterwards, and the bytes that were kept for the backward pass."""
    strategy, _ = start(trial)
    torch.manual_seed(7)
    kept = []
    with (
        torch.autograd.graph.saved_tensors_hooks(
            lambda saved: (kept.append(saved.nbytes), saved)[1], lambda saved: saved
        ),
        strategy.forward_context(sync=True),
    ):
        loss = loss_of(strategy.model, trial.batch(0))
    strategy.backward(loss)
    gradients = {name: parameter.grad for name, parameter in strategy.module.named_parameters()}
    return gradients, dict(strategy.module.named_buffers()), torch.get_rng_state(), sum(kept)


@pytest.mark.daily
@pytest.mark.parametrize(("model", "batch"), [(_drops, word_batch), (pixels, pixel_batch)])
def test_gradients_buffers_and_generators_are_bit_equal_and_less_is_kept(model, batch):
    with_it, without = (_one_pass(_trial(recomputed=on, model=model, batch=batch)) for on in (True, False))
    for ours, theirs in zip(with_it[:2], without[:2], strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert torch.equal(with_it[2], without[2])
    assert with_it[3] < 0.6 * without[3]


def _flops(**settings):
    """Return the operations of one forward and backward pass, and the gradients."""
    trial = _trial(recomputed=bool(settings), model=_drops).with_(**settings)
    strategy, _ = start(trial)
    torch.manual_seed(7)
    with FlopCounterMode(display=False) as counted:
        strategy.backward(loss_of(strategy.model, trial.batch(0)))
    return counted.get_total_flops(), [parameter.grad for parameter in strategy.module.parameters()]


def test_what_is_recomputed_is_chosen_by_block_and_by_operation():
    plain, wanted = _flops()
    of_a_block = 2 * (12 * 5) * 10 * 20  # its first layer: nobody asks for what the second one gave
    for more, settings in [
        (3 * of_a_block, {"recompute_every": 1}),
        (2 * of_a_block, {"recompute_every": 2}),  # the first and the third
        (0, {"recompute_keeps": ("matmul", "attention")}),
        (3 * of_a_block, {"recompute_keeps": ("convolution",)}),
    ]:
        flops, gradients = _flops(**settings)
        assert flops == plain + more, settings
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(gradients, wanted, strict=True)), settings


def test_buffers_are_those_of_the_first_pass_where_operations_are_kept_too():
    def found(**settings):
        strategy, _ = start(_trial(model=pixels).with_(**settings))
        torch.manual_seed(7)
        strategy.backward(loss_of(strategy.model, pixel_batch(0)))
        module = strategy.module
        return [*(parameter.grad for parameter in module.parameters()), *module.buffers()]

    ours, theirs = found(recompute_keeps=("convolution",)), found(activation_checkpointing=False)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


class _Turning(nn.Module):
    """A buffer that each training pass changes and then uses, as spectral normalization does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("turn", torch.ones(4))

    def forward(self, x):
        self.turn.mul_(1.5)
        return self.layer(x) * self.turn


def test_the_repetition_sees_the_buffers_of_the_first_pass():
    def gradients(recomputed):
        torch.manual_seed(5)
        model = nn.Sequential(_Turning(), nn.Tanh(), _Turning())
        strategy, _ = start(_trial(recomputed=recomputed, model=lambda: model))
        loss = strategy.model(torch.ones(2, 4)).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return [parameter.grad for parameter in model.parameters()], [buffer.clone() for buffer in model.buffers()]

    for ours, theirs in zip(gradients(True), gradients(False), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("strategy", ["ddp", "zero2", "fsdp", "hsdp"])
@pytest.mark.parametrize(("model", "batch"), [(_drops, word_batch), (pixels, pixel_batch)])
def test_training_is_bit_equal_under_each_strategy(strategy, model, batch):
    ranks = 4 if strategy == "hsdp" else 2
    trial = _trial(strategy, model=model, batch=batch, accumulate=2, steps=2)
    ours, theirs = spawn_ranks(run, ranks, trial), spawn_ranks(run, ranks, trial.with_(activation_checkpointing=False))
    for one, other in zip(ours, theirs, strict=True):
        assert one.losses == other.losses
        assert all(torch.equal(parameter, other.parameters[name]) for name, parameter in one.parameters.items())


@pytest.mark.daily
def test_the_model_keeps_its_names_and_types():
    model = words()
    names, text = list(model.state_dict()), repr(model)
    strategy, _ = start(_trial(model=lambda: model))
    assert list(strategy.module.state_dict()) == names and repr(model) == text
    assert all(isinstance(block, Block) for block in model.blocks)


def test_a_copy_recomputes_with_its_own_weights():
    """As nn.DataParallel and copy.deepcopy make them."""
    strategy, _ = start(_trial())
    twin = copy.deepcopy(strategy.module)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(2)
    tokens = word_batch(0)[0]
    assert not torch.equal(twin(tokens), strategy.module(tokens))
    loss_of(twin, word_batch(0)).backward()
    assert all(parameter.grad is None for parameter in strategy.module.parameters())
    assert all(parameter.grad is not None for parameter in twin.parameters())


@pytest.mark.parametrize(
    ("inplace", "passes", "hint"), [(True, 1, "change nothing in place"), (False, 2, "go backward once only")]
)
def test_what_does_not_go_with_kept_operations_is_told(inplace, passes, hint):
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace), nn.Linear(4, 4)))
    strategy, _ = start(_trial(model=lambda: model).with_(recompute_keeps=("matmul",), blocks=("0",)))
    loss = strategy.model(torch.ones(2, 4)).square().sum()
    for _ in range(passes - 1):
        loss.backward(retain_graph=True)
    with pytest.raises(TrainerError, match=f"recompute_keeps: .*\nhint: {hint}"):
        loss.backward()
