"""Test that each rank has its part of everything, and rank 0's buffers."""

import gc
import logging

import pytest
import torch
from ranks import spawn_ranks
from strategy_trials import Trial, adamw, loss_of, one_step, pixel_batch, pixels, share, start, word_batch, words
from torch import nn
from torch.distributed.fsdp import FSDPModule

from trainer.strategies import StrategySettings, build
from trainer.world import join

pytestmark = pytest.mark.nightly


def _wide():
    return words(width=48)


def _bytes(trial):
    """Return the bytes of parameters and optimizer state on this rank, and of all tensors alive after a step."""
    torch.set_num_threads(1)
    before = _living()
    strategy, _ = start(trial)
    one_step(strategy, trial, 0)
    strategy.step()
    inner = getattr(strategy.optimizer, "optim", strategy.optimizer)
    return {
        "parameters": sum(_local(parameter).nbytes for parameter in strategy.module.parameters()),
        "optimizer": sum(
            _local(value).nbytes
            for state in inner.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor) and value.ndim
        ),
        "living": _living() - before,
    }


def _local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _living():
    """Bytes behind all tensors that Python knows of, each storage once."""
    gc.collect()
    tensors = [found for found in gc.get_objects() if issubclass(type(found), torch.Tensor)]
    storages = {}
    for tensor in map(_local, tensors):
        if not tensor.is_meta:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _of_ranks(strategy, ranks):
    shard_size = 2 if strategy == "hsdp" else None
    trial = Trial(StrategySettings(strategy=strategy, shard_size=shard_size), model=_wide, optimizer=adamw)
    return spawn_ranks(_bytes, ranks, trial)


@pytest.mark.daily
@pytest.mark.parametrize(("strategy", "ranks", "parts"), [("fsdp", 3, 3), ("zero2", 2, 2), ("hsdp", 4, 2)])
def test_each_rank_has_one_part_of_parameters_and_state(strategy, ranks, parts):
    model = _wide()
    whole = sum(parameter.nbytes for parameter in model.parameters())
    uneven = 0.1 * whole  # a dimension of 7 in 2 or 3
    found = _of_ranks(strategy, ranks)
    for one in found:
        assert one["parameters"] == pytest.approx(whole / parts, abs=uneven)
        assert one["optimizer"] == pytest.approx(2 * whole / parts, abs=2 * uneven)
        assert one["living"] <= 3 * (whole / parts + uneven)
    assert sum(one["parameters"] for one in found) == whole * ranks / parts
    assert sum(one["optimizer"] for one in found) == 2 * whole * ranks / parts


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_is_offloaded_is_in_the_hosts_memory():
    [found] = spawn_ranks(_devices, 1, StrategySettings(strategy="fsdp", offload=True, clip_norm=1.0))
    assert found == {"parameters": {"cpu"}, "optimizer": {"cpu"}, "answer": {"cuda"}}


def _devices(settings):
    strategy = build(_wide(), join(group=True), settings, adamw)
    loss = loss_of(strategy.model, [part.cuda() for part in word_batch(0)])
    strategy.backward(loss)
    strategy.step()
    state = [value for held in strategy.optimizer.state.values() for value in held.values()]
    tensors = {"parameters": strategy.module.parameters(), "optimizer": state, "answer": [loss]}
    return {name: {_local(tensor).device.type for tensor in some} for name, some in tensors.items()}


def test_ddp_has_all_of_everything():
    """That the measure above can fail."""
    whole = sum(parameter.nbytes for parameter in _wide().parameters())
    for one in _of_ranks("ddp", 2):
        assert one["parameters"] == whole
        assert one["optimizer"] == 2 * whole
        assert one["living"] >= 3 * whole


@pytest.mark.parametrize("ranks", [2, 3])
def test_zero1_has_all_parameters_and_its_share_of_the_state(ranks):
    parameters = list(_wide().parameters())
    whole, largest = sum(p.nbytes for p in parameters), max(p.nbytes for p in parameters)
    found = _of_ranks("zero1", ranks)
    for one in found:
        assert one["parameters"] == whole
        assert one["optimizer"] <= 2 * (whole / ranks + largest)
    assert sum(one["optimizer"] for one in found) == 2 * whole


def _groups(trial):
    strategy, _ = start(trial)
    return [name for name, part in strategy.module.named_modules() if isinstance(part, FSDPModule)]


def _groups_and_words(trial):
    """Return the parameter groups, and the messages to the user."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("trainer").addHandler(handler)
    return _groups(trial), said


def test_blocks_are_sharded_each_by_itself():
    [found] = spawn_ranks(_groups, 1, Trial(StrategySettings(strategy="fsdp")))
    assert found == ["", "blocks.0", "blocks.1", "blocks.2"]
    [found] = spawn_ranks(_groups, 1, Trial(StrategySettings(strategy="fsdp", blocks=("head", "blocks.1"))))
    assert found == ["", "blocks.1", "head"]
    [found] = spawn_ranks(_groups, 1, Trial(StrategySettings(strategy="fsdp", units=("embedding", "head", "Block"))))
    assert found == ["", "embedding", "blocks.0", "blocks.1", "blocks.2", "head"]


def _without_blocks():
    return nn.Embedding(7, 7)


def test_a_model_of_which_nothing_is_sharded_by_itself_is_told():
    [(found, said)] = spawn_ranks(_groups_and_words, 1, Trial(StrategySettings(strategy="fsdp"), _without_blocks))
    assert found == [""]
    [told] = said
    assert told.startswith("fsdp: no part of Embedding is sharded by itself")
    assert "hint: name its blocks by `blocks`" in told
    [(_, said)] = spawn_ranks(_groups_and_words, 1, Trial(StrategySettings(strategy="fsdp")))
    assert not said


def _whole_gradients(trial):
    """Bytes of gradients that each rank holds after the first of two micro-batches."""
    torch.set_num_threads(1)
    strategy, world = start(trial)
    mine = share(trial.batch(0), world.rank, world.size)
    with strategy.forward_context(sync=False):
        loss = loss_of(strategy.model, share(mine, 0, 2))
    strategy.backward(loss)
    held = 0
    for part in strategy.module.modules():
        if isinstance(part, FSDPModule):
            for group in part._get_fsdp_state()._fsdp_param_groups:
                for one in group.fsdp_params:
                    whole = one.unsharded_accumulated_grad if hasattr(one, "_unsharded_param") else None
                    held += whole.nbytes if whole is not None else 0
                    held += one.sharded_param.grad.to_local().nbytes if one.sharded_param.grad is not None else 0
    return held


@pytest.mark.parametrize(
    ("settings", "ranks", "parts"),
    [
        (StrategySettings(strategy="zero2"), 2, 2),
        (StrategySettings(strategy="fsdp", sync_each=True), 2, 2),
        (StrategySettings(strategy="fsdp"), 2, 1),
    ],
)
def test_gradients_are_dealt_out_after_each_micro_batch(settings, ranks, parts):
    whole = sum(parameter.nbytes for parameter in _wide().parameters())
    for held in spawn_ranks(_whole_gradients, ranks, Trial(settings, model=_wide)):
        assert held == pytest.approx(whole / parts, rel=0.1)


def _seen_in_forward(trial, first_buffer):
    """BatchNorm's mean as each forward pass begins, and after each."""
    torch.set_num_threads(1)
    strategy, _ = start(trial)
    before, after = [], []
    strategy.module.register_forward_pre_hook(lambda module, _: before.append(module.get_buffer(first_buffer).tolist()))
    strategy.module.register_forward_hook(lambda module, *_: after.append(module.get_buffer(first_buffer).tolist()))
    for step in range(3):
        one_step(strategy, trial, step)
        strategy.step()
    counts = strategy.module.get_buffer(first_buffer.replace("running_mean", "num_batches_tracked"))
    strategy.share_buffers()
    return before, after, counts.item(), strategy.module.get_buffer(first_buffer).tolist()


@pytest.mark.parametrize(("strategy", "ranks"), [("fsdp", 2), ("zero2", 3), ("hsdp", 4), ("ddp", 2)])
def test_every_training_step_begins_with_the_buffers_of_rank_0(strategy, ranks):
    settings = StrategySettings(strategy=strategy, shard_size=2 if strategy == "hsdp" else None)
    trial = Trial(settings, model=pixels, batch=pixel_batch)
    (before, after, count, shared), *others = spawn_ranks(_seen_in_forward, ranks, trial, "layers.0.1.running_mean")
    assert count == 3
    assert before[1:] == after[:-1], "rank 0's own ones were changed"
    for theirs, changed, _, theirs_shared in others:
        assert theirs == before
        assert changed != after, "each rank sees samples of its own"
        assert theirs_shared == shared == after[-1]


def _evaluates(trial, batches):
    """Ranks with unequal numbers of batches, on the module itself."""
    strategy, world = start(trial)
    strategy.share_buffers()
    strategy.module.eval()
    with torch.no_grad():
        for step in range(batches[world.rank]):
            with strategy.forward_context(sync=False):
                strategy.module(pixel_batch(step)[0])
    return strategy.is_sharded


def test_only_sharded_models_need_ranks_to_evaluate_in_step():
    for name, meets in (("ddp", False), ("zero1", False), ("fsdp", True)):
        trial = Trial(StrategySettings(strategy=name), model=pixels, batch=pixel_batch)
        assert spawn_ranks(_evaluates, 2, trial, (2, 2) if meets else (3, 1)) == [meets, meets]
