"""bf16, fp16 and tf32, under every strategy that runs on a CPU."""

import math

import pytest
import torch
from ranks import spawn_ranks
from strategy_trials import Trial, mean_losses, one_step, pixel_batch, pixels, run, start, whole
from torch import nn

from trainer.strategies import StrategySettings
from trainer.strategies.precision import set_fp32

pytestmark = pytest.mark.nightly

EVERYWHERE = [("none", 1), ("dp", 1), ("ddp", 2), ("zero1", 2), ("zero2", 2), ("fsdp", 2), ("hsdp", 4)]


def _settings(strategy, precision, **others):
    return StrategySettings(
        strategy=strategy, precision=precision, shard_size=2 if strategy == "hsdp" else None, **others
    )


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize(("strategy", "ranks"), EVERYWHERE)
def test_trains_nearly_like_fp32(strategy, ranks, precision):
    trial = Trial(_settings(strategy, precision, clip_norm=5.0), steps=6)
    found = spawn_ranks(run, ranks, trial)
    exact = run(trial.with_(strategy="none", precision="fp32", shard_size=None))
    assert mean_losses(found) == pytest.approx(exact.losses, rel=0.03)
    assert mean_losses(found) != exact.losses
    for one in found:
        assert {parameter.dtype for parameter in one.parameters.values()} == {torch.float32}
        assert one.norms == pytest.approx(exact.norms, rel=0.1)


def _given_up():
    raise ConnectionError


def test_a_step_that_was_given_up_before_its_update_leaves_the_scaler_as_it_was():
    """It had unscaled gradients that are gone by now, and would refuse to unscale those of the next step."""
    trial = Trial(_settings("none", "fp16"))
    strategy, _ = start(trial)
    one_step(strategy, trial, 0)
    with pytest.raises(ConnectionError):
        strategy.step(updating=_given_up)
    strategy.rejoin(strategy.world)
    one_step(strategy, trial, 0)
    strategy.step()
    assert strategy.has_stepped


def _dtypes(trial):
    """Return the types of the layers' outputs, of the loss and of the gradients."""
    strategy, _ = start(trial)
    seen = set()
    for part in strategy.module.modules():
        if isinstance(part, (nn.Linear, nn.Conv2d)):
            part.register_forward_hook(lambda *what: seen.add(what[-1].dtype))
    with strategy.forward_context(sync=True):
        logits = strategy.model(trial.batch(0)[0])
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), trial.batch(0)[1].flatten())
    strategy.backward(loss)
    gradients = {parameter.grad.dtype for parameter in strategy.module.parameters()}
    return seen, loss.dtype, gradients


@pytest.mark.parametrize("model", [None, pixels])
@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
@pytest.mark.parametrize("strategy", ["none", "ddp", "fsdp"])
def test_matrices_are_low_and_losses_and_gradients_are_not(strategy, precision, dtype, model):
    trial = Trial(_settings(strategy, precision))
    if model is not None:
        trial = Trial(trial.settings, model=model, batch=pixel_batch)
    for seen, loss, gradients in spawn_ranks(_dtypes, 1 if strategy == "none" else 2, trial):
        assert seen == {dtype}
        assert loss == torch.float32
        assert gradients == {torch.float32}


def _overflows(trial, poison):
    """Train three steps, in the second of which only one rank has an infinity; return the state after each."""
    torch.set_num_threads(1)
    strategy, world = start(trial)
    states = []
    for step in range(3):
        one_step(strategy, trial, step)
        if step == 1:
            poison(strategy, world)
        strategy.step()
        states.append((whole(strategy.module), strategy.scaler.get_scale()))
    return states


def _in_its_part_of_the_gradients(strategy, world):
    """Put infinity into a rank's part of a sharded gradient; with hsdp into every copy of the part."""
    if world.rank % 2 == 1:
        parameter = next(p for p in strategy.module.parameters() if p.grad.to_local().numel())
        parameter.grad.to_local().view(-1)[0] = math.inf


def _skipped(found):
    for (first, scale), (second, lower), (third, _) in found:
        assert lower == scale / 2, "the scale of fp16 has to fall on all ranks"
        assert all(torch.equal(parameter, second[name]) for name, parameter in first.items()), "the step was taken"
        assert not all(torch.equal(parameter, third[name]) for name, parameter in second.items())
        assert all(parameter.isfinite().all() for parameter in third.values())
    for states in found[1:]:
        assert all(torch.equal(parameter, states[2][0][name]) for name, parameter in found[0][2][0].items())


@pytest.mark.parametrize(("strategy", "ranks"), [("zero2", 2), ("fsdp", 2), ("fsdp", 3), ("hsdp", 4)])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_an_infinity_in_one_part_skips_the_step_on_all_ranks(strategy, ranks, clip_norm):
    trial = Trial(_settings(strategy, "fp16", clip_norm=clip_norm))
    _skipped(spawn_ranks(_overflows, ranks, trial, _in_its_part_of_the_gradients))


def _overflows_in_forward(trial):
    """Train while one rank's loss is infinite in the second step."""
    torch.set_num_threads(1)
    strategy, world = start(trial)
    states = []
    for step in range(3):
        broken = Trial(trial.settings, scale=math.inf if step == 1 and world.rank == 1 else 1.0)
        one_step(strategy, broken, step)
        strategy.step()
        states.append((whole(strategy.module), strategy.scaler.get_scale()))
    return states


@pytest.mark.daily
@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 2), ("zero1", 2), ("fsdp", 2), ("hsdp", 4)])
def test_an_infinite_loss_of_one_rank_skips_the_step_on_all_ranks(strategy, ranks):
    _skipped(spawn_ranks(_overflows_in_forward, ranks, Trial(_settings(strategy, "fp16"))))


def test_batch_norm_works_in_low_precision_under_fsdp():
    """Its weights have to stay in the dtype of its statistics."""
    trial = Trial(_settings("fsdp", "bf16"), model=pixels, batch=pixel_batch)
    found = spawn_ranks(run, 2, trial)
    assert all(math.isfinite(loss) for one in found for loss in one.losses)


@pytest.mark.daily
def test_fp32_means_fp32_and_tf32_is_asked_for():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        for precision, allowed in (("tf32", True), ("fp32", False), ("bf16", False)):
            set_fp32(precision)
            assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (allowed, allowed)
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.daily
def test_only_fp16_has_a_scaler():
    for precision, has_one in (("fp32", False), ("tf32", False), ("bf16", False), ("fp16", True)):
        strategy, _ = start(Trial(_settings("none", precision)))
        assert (strategy.scaler is not None) is has_one
