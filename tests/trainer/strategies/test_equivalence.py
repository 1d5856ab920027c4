"""Every strategy trains the same model to the same weights, whatever else is asked for."""

import pytest
import torch
from ranks import spawn_ranks
from strategy_trials import Trial, adamw, mean_losses, one_step, pixel_batch, pixels, run, sgd, start, whole, words

from tests.sizes import one_in
from trainer.strategies import StrategySettings, number_of

pytestmark = pytest.mark.nightly

# SGD's momentum and AdamW's division both enlarge rounding; a wrong factor of 1/2 or 2 would show as 0.1 and more.
CLOSE = {"rtol": 2e-4, "atol": 2e-5}
SPREAD = [("ddp", 2), ("ddp", 3), ("zero1", 3), ("zero2", 2), ("fsdp", 2), ("fsdp", 3), ("hsdp", 4)]


def _settings(strategy, **others):
    return StrategySettings(strategy=strategy, shard_size=2 if strategy == "hsdp" else None, **others)


def _same(found, alone):
    assert mean_losses(found) == pytest.approx(alone.losses, rel=1e-4)
    for one in found:
        assert one.norms == pytest.approx(alone.norms, rel=1e-4)
        assert one.parameters.keys() == alone.parameters.keys()
        for name, parameter in one.parameters.items():
            torch.testing.assert_close(
                parameter, alone.parameters[name], **CLOSE, msg=lambda text, n=name: f"{n}: {text}"
            )


@pytest.mark.daily
@pytest.mark.parametrize(
    ("strategy", "ranks", "optimizer"),
    one_in(
        2,
        [(*spread, sgd) for spread in SPREAD]
        + [("ddp", 3, adamw), ("zero1", 3, adamw), ("fsdp", 3, adamw), ("hsdp", 4, adamw)],
    ),
)
def test_trains_like_one_process(strategy, ranks, optimizer):
    trial = Trial(_settings(strategy), optimizer=optimizer)
    alone = run(trial.with_(strategy="none", shard_size=None))
    assert alone.losses[-1] < alone.losses[0]
    _same(spawn_ranks(run, ranks, trial), alone)


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "fsdp"])
def test_a_world_of_one_is_one_process(strategy):
    trial = Trial(_settings(strategy, clip_norm=0.5))
    _same(spawn_ranks(run, 1, trial), run(trial.with_(strategy="none")))


def test_dp_on_a_cpu_is_one_process():
    trial = Trial(_settings("dp", clip_norm=0.5))
    found, alone = run(trial), run(trial.with_(strategy="none"))
    assert found.losses == alone.losses and found.norms == alone.norms
    assert all(torch.equal(parameter, alone.parameters[name]) for name, parameter in found.parameters.items())


@pytest.mark.parametrize("strategy", ["none", "ddp", "zero1", "zero2", "fsdp"])
def test_accumulation_is_one_large_batch(strategy):
    trial = Trial(_settings(strategy), accumulate=3, optimizer=adamw)
    alone = run(Trial(_settings("none"), optimizer=adamw))
    _same(spawn_ranks(run, 1 if strategy == "none" else 2, trial), alone)


def test_accumulation_is_one_large_batch_with_copies_of_shards():
    trial = Trial(_settings("hsdp"), accumulate=3)
    _same(spawn_ranks(run, 4, trial), run(Trial(_settings("none"))))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 2), ("zero1", 2), ("zero2", 3), ("fsdp", 3), ("hsdp", 4)])
def test_clipping_sees_the_norm_of_all_gradients(strategy, ranks, tied):
    def model():
        return words(tied=tied)

    trial = Trial(_settings(strategy, clip_norm=1.0), model=model, scale=30.0, accumulate=1)
    alone = run(trial.with_(strategy="none", shard_size=None))
    assert min(alone.norms) > 1.0, "nothing was clipped"
    _same(spawn_ranks(run, ranks, trial), alone)


@pytest.mark.parametrize(("strategy", "ranks", "accumulate"), [("zero2", 2, 3), ("fsdp", 3, 2), ("hsdp", 4, 3)])
def test_what_is_offloaded_is_clipped_and_trained_like_anything_else(strategy, ranks, accumulate):
    settings = _settings(strategy, offload=True, clip_norm=1.0)
    trial = Trial(settings, scale=30.0, accumulate=accumulate, optimizer=adamw)
    _same(spawn_ranks(run, ranks, trial), run(trial.with_(strategy="none", shard_size=None, offload=False)))


def test_parameters_that_stay_gathered_train_alike():
    trial = Trial(_settings("fsdp", reshard=False), accumulate=2)
    _same(spawn_ranks(run, 2, trial), run(trial.with_(strategy="none", reshard=True)))


def test_the_norm_is_torchs():
    """What `none` reports and does, against clip_grad_norm_ by hand: the others are compared with `none`."""
    from strategy_trials import loss_of, word_batch

    found = run(Trial(_settings("none", clip_norm=1.0), scale=30.0))  # first: it says how fp32 is calculated here
    model, optimizer = (module := words()), sgd(module.parameters())
    norms = []
    for step in range(4):
        (30.0 * loss_of(model, word_batch(step))).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        optimizer.zero_grad()
    assert found.norms == norms
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, found.parameters[name])


def test_values_are_clipped_as_torch_does_it_and_then_the_norm():
    from strategy_trials import loss_of, word_batch

    model, optimizer = (module := words()), sgd(module.parameters())
    norms = []
    for step in range(4):
        (30.0 * loss_of(model, word_batch(step))).backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.25)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        optimizer.zero_grad()
    found = run(Trial(_settings("none", clip_value=0.25, clip_norm=1.0), scale=30.0))
    assert found.norms == pytest.approx(norms)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found.parameters[name], parameter.detach(), **CLOSE)


@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 2), ("fsdp", 2)])
def test_values_are_clipped_after_they_are_summed(strategy, ranks):
    trial = Trial(_settings(strategy, clip_value=0.05), scale=30.0, accumulate=2)
    alone = run(trial.with_(strategy="none"))
    _same(spawn_ranks(run, ranks, trial), alone)
    assert run(trial.with_(strategy="none", clip_value=None)).losses != alone.losses, "nothing was clipped"


def _norms(trial, measured):
    torch.set_num_threads(1)
    strategy, _ = start(trial)
    norms = []
    for step in range(3):
        one_step(strategy, trial, step)
        norm = strategy.step(measured=measured)
        norms.append(None if norm is None else number_of(norm))
    return norms, whole(strategy.module)


@pytest.mark.parametrize("offload", [False, True])
def test_a_norm_is_measured_without_a_trace(offload):
    fsdp = Trial(_settings("fsdp", offload=offload), scale=30.0)
    wanted = run(fsdp.with_(strategy="none", offload=False, clip_norm=1e9)).norms[:3]
    [(norms, weights), _] = spawn_ranks(_norms, 2, fsdp, True)
    [(nothing, same_weights), _] = spawn_ranks(_norms, 2, fsdp, False)
    assert norms == pytest.approx(wanted, rel=1e-4) and nothing == [None] * 3
    assert all(torch.equal(weights[name], each) for name, each in same_weights.items())
    if not offload:
        assert _norms(fsdp.with_(strategy="none"), True)[0] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(("strategy", "ranks"), [("zero1", 4), ("fsdp", 4), ("zero2", 4)])
def test_more_ranks_than_some_have_work_for(strategy, ranks):
    """Two parameters on four ranks: some optimize nothing, some shards are empty."""
    trial = Trial(_settings(strategy, clip_norm=0.1), model=_one_layer, batch=pixel_batch, optimizer=adamw)
    _same(spawn_ranks(run, ranks, trial), run(trial.with_(strategy="none")))


def _one_layer():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 7))


@pytest.mark.parametrize("strategy", ["fsdp", "zero2"])
def test_batch_norm_is_that_of_each_rank_as_under_ddp(strategy):
    trial = Trial(_settings(strategy), model=_no_dropout, batch=pixel_batch)
    ddp, ours = spawn_ranks(run, 2, trial.with_(strategy="ddp")), spawn_ranks(run, 2, trial)
    for one, other in zip(ours, ddp, strict=True):
        assert one.losses == pytest.approx(other.losses, rel=1e-4)
        for name, parameter in one.parameters.items():
            torch.testing.assert_close(parameter, other.parameters[name], **CLOSE)


def _no_dropout():
    model = pixels()
    model.layers[1][3].p = 0.0
    return model
