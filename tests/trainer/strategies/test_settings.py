"""Settings that cannot work are refused before anything is built, all problems at once."""

import pytest
import torch
from ranks import spawn_ranks
from strategy_trials import sgd, words
from torch import nn

from trainer.errors import BadSettings
from trainer.strategies import NAMES, StrategySettings, build, needs_group, summary
from trainer.strategies.settings import check
from trainer.world import World, join

CPU = torch.device("cpu")
ALONE = World(0, 1, 0, 1, CPU)
FOUR = World(0, 4, 0, 4, CPU, backend="gloo")


@pytest.mark.parametrize(
    ("settings", "world", "says"),
    [
        ({"strategy": "none"}, FOUR, "strategy: none trains in one process, got a world of 4\nhint: use ddp"),
        ({"strategy": "dp"}, FOUR, "strategy: dp trains in one process, got a world of 4"),
        ({"strategy": "zero2"}, ALONE, "strategy: zero2 expected a process group, got none\nhint: make the world"),
        ({"strategy": "fsdp"}, ALONE, "expected a process group"),
        ({"strategy": "hsdp", "shard_size": 3}, FOUR, "shard_size: expected a divisor of the world's 4 ranks, got 3"),
        ({"strategy": "hsdp", "shard_size": 0}, FOUR, "got 0"),
        ({"strategy": "hsdp"}, World(0, 4, 0, 3, CPU, backend="gloo"), "shard_size: the ranks of a node: expected a"),
        ({"strategy": "fsdp", "shard_size": 2}, FOUR, "shard_size: expected with strategy hsdp only, got it with fsdp"),
        ({"units": ("head",)}, FOUR, "units: expected with strategy zero2, fsdp, hsdp only, got it with ddp"),
        ({"by_parts": True}, FOUR, "by_parts: expected with strategy zero2, fsdp, hsdp only, got it with ddp"),
        ({"strategy": "zero2", "sync_each": True}, FOUR, "sync_each: expected with strategy fsdp, hsdp only, got it"),
        ({"strategy": "zero2", "reshard": False}, FOUR, "reshard: expected with strategy fsdp, hsdp only, got it with"),
        ({"prefetch": 2}, FOUR, "prefetch: expected with strategy zero2, fsdp, hsdp only, got it with ddp"),
        ({"strategy": "fsdp", "prefetch": 0}, FOUR, "prefetch: expected a whole number of at least 1, got 0"),
        ({"offload": True}, FOUR, "offload: expected with strategy zero2, fsdp, hsdp only, got it with ddp"),
        ({"strategy": "fsdp", "bucket_mb": 9.0}, FOUR, "bucket_mb: expected with strategy ddp, zero1 only, got it"),
        (
            {"strategy": "none", "sync_batchnorm": True},
            ALONE,
            "sync_batchnorm: expected with strategy ddp, zero1, zero2",
        ),
        ({"sync_batchnorm": True}, ALONE, "sync_batchnorm: found no BatchNorm in Words"),
        ({"recompute_every": 2}, FOUR, "recompute_every: expected with activation_checkpointing only, got it without"),
        ({"recompute_keeps": ("matmul",)}, FOUR, "recompute_keeps: expected with activation_checkpointing only"),
        ({"bucket_mb": 0.0}, FOUR, "bucket_mb: expected a number above 0, got 0.0"),
        ({"strategy": "fsdp", "offload": True, "precision": "fp16"}, FOUR, "offload: does not go with precision fp16"),
        ({"strategy": "fspd"}, FOUR, "strategy: expected one of none, dp, ddp, zero1, zero2, fsdp, hsdp, got 'fspd'"),
        ({"strategy": "zero3"}, FOUR, "hint: did you mean zero"),
        ({"precision": "bf61"}, FOUR, "precision: expected one of fp32, tf32, bf16, fp16, got 'bf61'\nhint: did you"),
        (
            {"strategy": "none", "precision": "fp16"},
            World(0, 1, 0, 1, torch.device("meta")),
            "precision: fp16 does not exist on meta\nhint: use fp32",
        ),
        ({"strategy": "dp", "compile": True}, ALONE, "compile: does not go with strategy dp"),
        ({"clip_norm": 0.0}, FOUR, "clip_norm: expected a number above 0, got 0.0"),
        ({"clip_norm": float("nan")}, FOUR, "clip_norm: expected a number above 0, got nan"),
        ({"clip_value": -1.0}, FOUR, "clip_value: expected a number above 0, got -1.0"),
    ],
)
def test_what_cannot_work_is_refused(settings, world, says):
    with pytest.raises(BadSettings) as error:
        build(words(), world, StrategySettings(**settings), sgd)
    assert says in str(error.value)


def test_the_fastest_way_is_not_looked_for_where_it_has_to_be_the_same_one():
    torch.use_deterministic_algorithms(mode=True)
    try:
        with pytest.raises(BadSettings, match="cudnn_benchmark: expected without deterministic"):
            check(StrategySettings(strategy="none", cudnn_benchmark=True), ALONE)
    finally:
        torch.use_deterministic_algorithms(mode=False)


def _benchmark(settings):
    before = torch.backends.cudnn.benchmark
    build(words(), ALONE, settings, sgd)
    return before, torch.backends.cudnn.benchmark


def test_the_fastest_way_is_looked_for_where_it_is_asked_for():
    assert spawn_ranks(_benchmark, 1, StrategySettings(strategy="none", cudnn_benchmark=True)) == [(False, True)]
    assert spawn_ranks(_benchmark, 1, StrategySettings(strategy="none")) == [(False, False)]


def test_all_problems_are_told_at_once():
    with pytest.raises(BadSettings) as error:
        check(StrategySettings(strategy="none", precision="fp8", clip_norm=-1.0, shard_size=2), FOUR)
    assert [line.split(":")[0] for line in str(error.value).splitlines() if not line.startswith("hint")] == [
        "strategy",
        "precision",
        "clip_norm",
        "shard_size",
    ]


def test_every_name_works_in_a_world_that_suits_it():
    for name in NAMES:
        check(StrategySettings(strategy=name), ALONE if name in ("none", "dp") else FOUR)
    assert [name for name in NAMES if needs_group(name)] == ["zero2", "fsdp", "hsdp"]


def test_a_model_that_cannot_be_trained_is_refused():
    frozen = words().requires_grad_(False)
    with pytest.raises(BadSettings, match="Words has no parameter to train"):
        build(frozen, ALONE, StrategySettings(strategy="none"), sgd)
    with torch.device("meta"):
        empty = nn.Linear(2, 2)
    with pytest.raises(BadSettings, match="weight is on the meta device"):
        build(empty, ALONE, StrategySettings(strategy="none"), sgd)


def _refusal(strategy):
    """Return the error for an optimizer that was made from parameters before they were divided."""
    model = words()
    optimizer = sgd(model.parameters())
    try:
        build(model, join(group=True, device="cpu"), StrategySettings(strategy=strategy), lambda _: optimizer)
    except BadSettings as error:
        return str(error)


def test_an_optimizer_of_parameters_that_are_no_more_is_refused():
    [said] = spawn_ranks(_refusal, 1, "fsdp")
    assert said.startswith("optimizer: 20 of its parameters are not the model's\nhint: make it inside")
    assert spawn_ranks(_refusal, 1, "ddp") == [None]


def _summary(settings):
    world = join(group=True, device="cpu")
    return summary(build(words(), world, settings, sgd))


def test_the_summary_names_what_was_asked_for():
    plain = summary(build(words(), ALONE, StrategySettings(strategy="none"), sgd))
    assert plain == "none, 1 x cpu, fp32, 1.5k parameters"
    settings = StrategySettings(strategy="hsdp", shard_size=1, precision="bf16", clip_value=2.0, clip_norm=0.5)
    assert _summary_of(settings, 2) == (
        "hsdp (2 copies), 2 x cpu, bf16, 1.5k parameters, 3 blocks, values clipped at 2, clipped at 0.5"
    )
    said = _summary_of(StrategySettings(strategy="ddp", activation_checkpointing=True, recompute_every=2), 2)
    assert said == "ddp, 2 x cpu, fp32, 1.5k parameters, 2 blocks recomputed"


def _summary_of(settings, ranks):
    """Return the summary that all ranks print, after checking that they print the same."""
    [said, *others] = spawn_ranks(_summary, ranks, settings)
    assert all(other == said for other in others)
    return said
