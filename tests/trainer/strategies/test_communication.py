"""Test what ranks send and when, counted in torch's own profile."""

from collections import Counter

import pytest
import torch
from ranks import spawn_ranks
from strategy_trials import Trial, loss_of, pixel_batch, pixels, run, share, start, whole, words
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.strategies import StrategySettings
from trainer.strategies.settings import SHARDS

pytestmark = pytest.mark.nightly

MICRO_BATCHES = 3
SUMS = ("all_reduce", "allreduce", "reduce_scatter")
GATHERS = ("all_gather", "allgather")


def _messages_of_step(trial):
    """Return the kinds of messages of each micro-batch of the third step, and of `step` itself."""
    torch.set_num_threads(1)
    strategy, world = start(trial)
    found = []
    for step in range(3):  # in the second, DDP tells all ranks its new buckets
        mine = share(trial.batch(step), world.rank, world.size)
        found = []
        for micro in range(MICRO_BATCHES):
            with profile(activities=[ProfilerActivity.CPU]) as seen:
                with strategy.forward_context(sync=micro == MICRO_BATCHES - 1):
                    loss = loss_of(strategy.model, share(mine, micro, MICRO_BATCHES))
                strategy.backward(loss)
            found.append(_messages(seen))
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            strategy.step()
        found.append(_messages(seen))
    return found


def _messages(seen):
    return Counter(event.name.removeprefix("gloo:") for event in seen.events() if event.name.startswith("gloo:"))


def _count(messages, kinds):
    return sum(count for name, count in messages.items() if name.startswith(kinds))


def _of_rank_0(strategy, ranks=2, **others):
    shard_size = 2 if strategy == "hsdp" else None
    return spawn_ranks(
        _messages_of_step, ranks, Trial(StrategySettings(strategy=strategy, shard_size=shard_size), **others)
    )[0]


@pytest.mark.daily
@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 2), ("zero1", 2), ("fsdp", 2), ("hsdp", 4)])
def test_gradients_are_summed_in_the_last_micro_batch_only(strategy, ranks):
    *micro_batches, step = _of_rank_0(strategy, ranks)
    assert [_count(messages, SUMS) > 0 for messages in micro_batches] == [False, False, True], micro_batches
    # With shards one number: whether all of the gradients are finite.
    assert _count(step, SUMS) == (strategy in SHARDS)


@pytest.mark.parametrize(("strategy", "ranks"), [("zero2", 2), ("fsdp", 2), ("hsdp", 4)])
def test_gradients_are_dealt_out_in_each_micro_batch_where_it_is_asked_for(strategy, ranks):
    settings = StrategySettings(
        strategy=strategy, shard_size=2 if strategy == "hsdp" else None, sync_each=strategy != "zero2"
    )
    *micro_batches, _ = spawn_ranks(_messages_of_step, ranks, Trial(settings))[0]
    groups = 4  # three blocks and the rest
    among_copies = groups if strategy == "hsdp" else 0  # once a step
    assert [_count(messages, SUMS) for messages in micro_batches] == [groups, groups, groups + among_copies]


def test_ddp_sends_nothing_at_all_before_the_last():
    first, second, _, step = _of_rank_0("ddp")
    assert not first and not second and not step


def test_zero1_sends_each_ranks_parameters_in_one_message():
    assert _of_rank_0("zero1")[-1] == {"broadcast": 2}


def test_zero2_keeps_gathered_parameters_until_the_step_and_fsdp_does_not():
    zero2, fsdp = ([_count(messages, GATHERS) for messages in _of_rank_0(name)] for name in ("zero2", "fsdp"))
    groups = 4  # three blocks and the rest
    assert zero2 == [groups, 0, 0, 0]
    assert fsdp == [groups + 3, groups + 3, groups + 3, 0]


def test_parameters_that_are_kept_after_the_forward_pass_are_gathered_once():
    settings = StrategySettings(strategy="fsdp", reshard=False)
    assert [_count(messages, GATHERS) for messages in spawn_ranks(_messages_of_step, 2, Trial(settings))[0]] == [
        4,
        4,
        4,
        0,
    ]


class _Order(TorchDispatchMode):
    """Records which communication is requested and begins, in the order of the program."""

    def __init__(self, model):
        super().__init__()
        self.seen = []
        for number, block in enumerate(model.blocks):
            block.register_forward_pre_hook(self._noting(f"{number}"))
            block.register_forward_hook(self._noting_backward(f"-{number}"))

    def _noting(self, name):
        return lambda *_: self.seen.append(name)

    def _noting_backward(self, name):
        return lambda block, given, out: out.register_hook(lambda _: self.seen.append(name)) and None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "allgather" in str(function):
            self.seen.append("gather")
        return function(*args, **(kwargs or {}))


def _gathered_when(trial):
    torch.set_num_threads(1)
    strategy, world = start(trial)
    order = _Order(strategy.module)
    for step in range(2):
        order.seen.clear()
        with order:
            with strategy.forward_context(sync=True):
                loss = loss_of(strategy.model, share(trial.batch(step), world.rank, world.size))
            strategy.backward(loss)
        strategy.step()
    return " ".join(order.seen), loss.item(), whole(strategy.module)


def test_blocks_are_gathered_as_far_ahead_as_it_is_asked_for():
    fsdp = Trial(StrategySettings(strategy="fsdp"))
    (alone, loss, weights), _ = spawn_ranks(_gathered_when, 2, fsdp)
    (ahead, same_loss, same_weights), _ = spawn_ranks(_gathered_when, 2, fsdp.with_(prefetch=2))
    assert alone == "gather gather 0 gather 1 gather 2 gather gather -2 gather -1 -0"
    assert ahead == "gather gather gather gather 0 1 2 gather gather gather -2 -1 -0"
    assert loss == same_loss and all(torch.equal(weights[name], same_weights[name]) for name in weights)


class _Shuffled(nn.Module):
    """A model that calls its blocks in another order, and sometimes leaves one out."""

    def __init__(self):
        super().__init__()
        self.words, self.calls = words(), 0

    def forward(self, tokens):
        self.calls += 1
        x, blocks = self.words.embedding(tokens), self.words.blocks
        for block in (blocks[2], blocks[0], blocks[1])[: 2 + self.calls % 2]:
            x = block(x)
        return self.words.head(x)


def test_what_was_gathered_ahead_in_vain_is_gathered_anew_after_the_step():
    fsdp = Trial(StrategySettings(strategy="fsdp"), model=_Shuffled, steps=6)
    wanted, found = (spawn_ranks(run, 2, trial)[0] for trial in (fsdp, fsdp.with_(prefetch=2)))
    assert found.losses == wanted.losses
    assert all(torch.equal(found.parameters[name], each) for name, each in wanted.parameters.items())


def test_smaller_buckets_are_more_messages():
    def sums(bucket_mb):
        return _count(spawn_ranks(_messages_of_step, 2, Trial(StrategySettings(bucket_mb=bucket_mb)))[0][-2], SUMS)

    assert sums(None) == 1
    assert sums(1e-4) > 3


def test_buffers_go_round_once_a_step_in_one_message():
    first, second, third, _ = _of_rank_0("fsdp", model=pixels, batch=pixel_batch)
    assert [messages["broadcast"] for messages in (first, second, third)] == [1, 0, 0]
