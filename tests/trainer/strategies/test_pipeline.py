"""Trainings in stages, on real ranks."""

import json
import math
import os
import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from ranks import Ranks, spawn_ranks
from safetensors.torch import load_file
from token_windows import loss, loss_by_token, windows
from torch import nn

from trainer import Callback, Settings, Trainer
from trainer.checkpoint_files import catalog
from trainer.errors import TrainerError
from trainer.strategies import pipeline
from trainer.tasks.transformer import Shape, Transformer

pytestmark = pytest.mark.nightly

STEPS = 50
BRIEF = {"max_steps": 26, "pp_microbatches": 4}
SHAPE = Shape(tokens=32, context=8, layers=4, heads=4, width=16)


def sequence():
    return nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.Linear(16, 32))


def shared():
    """A layer that comes twice, two layers apart."""
    layers = [nn.Embedding(32, 32), nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)]
    layers[2].weight = layers[0].weight
    return nn.Sequential(*layers)


class _Narrow(torch.autograd.Function):
    """The identity, whose gradient passes through fp16, where large values overflow."""

    @staticmethod
    def forward(_, weight):
        return weight.clone()

    @staticmethod
    def backward(_, gradient):
        return (gradient * 64).half().float() / 64


class Narrow(nn.Linear):
    """The gradient of its weight overflows, and nobody else's."""

    def forward(self, x):
        return nn.functional.linear(x, _Narrow.apply(self.weight), self.bias)


class Lone(nn.Sequential):
    """A model with a parameter outside of its parts."""

    def __init__(self):
        super().__init__(nn.Embedding(32, 16), nn.Linear(16, 32), nn.Linear(32, 32))
        self.scale = nn.Parameter(torch.ones(()))


class Pair(nn.Module):
    """Gives its input and a number: what does not go from stage to stage."""

    def forward(self, x):
        return x, 1


class First(nn.Module):
    def forward(self, pair):
        return pair[0]


def uneven(hidden=6000):
    """A layer that takes many times as long as the others do."""
    wide = nn.Sequential(nn.Linear(16, hidden), nn.GELU(), nn.Linear(hidden, 16))
    return nn.Sequential(nn.Embedding(32, 16), Kept(wide), *(nn.Linear(16, 16) for _ in range(4)), nn.Linear(16, 32))


class Kept(nn.Module):
    """One part, whatever it is made of."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, x):
        return self.inside(x)


MODELS = {
    "uneven": uneven,
    "paired": lambda: nn.Sequential(nn.Embedding(32, 16), Pair(), First(), nn.Linear(16, 32), nn.Linear(32, 32)),
    "transformer": lambda: Transformer(SHAPE),
    "wide": lambda: Transformer(replace(SHAPE, width=128)),  # made by parts, its matrices are put away
    "untied": lambda: Transformer(replace(SHAPE, tied=False)),
    "dropping": lambda: Transformer(replace(SHAPE, dropout=0.1)),
    "sequence": sequence,
    "lone": Lone,
    "shared": shared,
    "normed": lambda: nn.Sequential(nn.Embedding(32, 16), nn.BatchNorm1d(8), nn.Linear(16, 32)),
    "narrow": lambda: nn.Sequential(nn.Embedding(32, 16), Narrow(16, 32), nn.Linear(32, 16), nn.Linear(16, 32)),
    "bare": lambda: nn.Bilinear(2, 2, 2),
}


def loss_that_draws(model, batch):
    return loss(model, batch.roll(int(torch.randint(3, ())), 0))


def loss_that_calls_twice(model, batch):
    return loss(model, batch)[0] + loss(model, batch)[0]


def loss_that_looks_inside(model, batch):
    return loss(model, batch)[0] + model.head.weight.sum()


def loss_that_breaks(model, batch):
    """Return a loss that is NaN on one sample of the data."""
    return loss(model, batch)[0] * torch.where((batch[:, 0] == windows(60)[7][0]).any(), torch.nan, 1.0)


def metrics(model, batch):
    found = model(batch[:, :-1]).argmax(-1)
    return {"accuracy": ((found == batch[:, 1:]).sum(), batch[:, 1:].numel())}


class Steps(Callback):
    def __init__(self, dies_at=None):
        self.lines, self.found, self.dies_at = [], {}, dies_at

    def on_step(self, training):
        if training.progress.step == self.dies_at:
            os._exit(9)

    def on_log(self, training, values):
        self.lines.append(
            {name: values[name] for name in ("loss", "bits", "seen", "norm", "skipped") if name in values}
        )

    def on_validation(self, training, values):
        self.found = dict(values)


@dataclass(frozen=True)
class Outcome:
    """The result of a training on one rank: its metric lines, values, fingerprint of the weights and exit code."""

    lines: list
    found: dict
    fingerprint: str
    code: int

    def all_of(self, name):
        return [line[name] for line in self.lines]


def trainer_of(folder, model="transformer", loss=loss, tp_plan=None, dies_at=None, start_from=None, **settings):
    steps = Steps(dies_at)
    return Trainer(
        Settings(
            **{
                "max_steps": STEPS, "log_every": 1, "batch_size": 16, "checkpoint_every": "10 steps", "clip_norm": 0.5,
                "validate_every": 25, "strategy": "ddp", "seed": 5, **settings,
            },
            checkpoint_dir=Path(folder) / "checkpoints",
            out=Path(folder) / "metrics",
        ),
        model=MODELS[model],
        loss=loss,
        metrics=metrics,
        data=windows(60),
        validation=windows(21),
        optimizer=lambda parameters: torch.optim.AdamW(
            [
                {"params": [one for one in parameters if one.ndim > 1], "weight_decay": 0.1},
                {"params": [one for one in parameters if one.ndim < 2], "weight_decay": 0.0},
            ],
            lr=3e-3,
            eps=1e-5,  # so that rounding of gradients that are nearly zero does not decide their direction
        ),
        callbacks=[steps],
        tp_plan=tp_plan,
        start_from=start_from,
    ), steps  # fmt: skip


def train(*args, **settings):
    trainer, steps = trainer_of(*args, **settings)
    code = trainer.fit()
    return Outcome(steps.lines, steps.found, trainer.fingerprint, code)


def on(ranks, work, *args, **settings):
    return spawn_ranks(partial(work, *args, **settings), ranks)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A training in one process, once for each of its kinds."""
    known = {}

    def found(**settings):
        key = repr(sorted(settings.items()))
        if key not in known:
            [known[key]] = on(1, train, tmp_path_factory.mktemp("alone"), **settings, strategy="none")
        return known[key]

    return found


def same(found, alone, rel=1e-5):
    assert found.code == alone.code == 0 and len(found.lines) == len(alone.lines)
    for name in alone.lines[0]:
        assert found.all_of(name) == pytest.approx(alone.all_of(name), rel=rel if name != "norm" else 20 * rel), name
    assert found.found == pytest.approx(alone.found, rel=rel)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("ranks", "mesh", "others"),
    [
        (2, "pp=2", {}),
        (4, "pp=2,dp=2", {"accumulate": 2, "ema": 0.9}),
        (4, "pp=4", {"pp_schedule": "gpipe", "activation_checkpointing": True}),
        (2, "pp=2", {"pp_schedule": "interleaved", "model": "untied"}),
        (2, "pp=2", {"model": "sequence", "pp_microbatches": 2, "spike_factor": 30.0}),
        (2, "pp=2", {"loss": loss_by_token, "clip_norm": None}),
        (4, "pp=2,tp=2", {"ema": 0.9}),
        (4, "pp=2,dp=2", {"strategy": "fsdp", "accumulate": 2, "ema": 0.9}),
        (2, "pp=2", {"strategy": "fsdp", "pp_schedule": "interleaved", "activation_checkpointing": True, **BRIEF}),
        (4, "pp=2", {"strategy": "hsdp", "shard_size": 1, "units": ("head",), "model": "untied", **BRIEF}),
        (4, "pp=2", {"strategy": "zero2", "loss": loss_by_token, "clip_norm": None, "pp_schedule": "gpipe", **BRIEF}),
    ],
)
def test_fifty_steps_give_the_losses_of_one_process(tmp_path, alone, ranks, mesh, others):
    of_pipelines = ("pp_schedule", "pp_microbatches", "strategy", "shard_size", "units")
    whole = alone(**{name: value for name, value in others.items() if name not in of_pipelines})
    assert whole.all_of("loss")[-1] < whole.all_of("loss")[0]
    first, *rest = on(ranks, train, tmp_path, mesh=mesh, **others)
    same(first, whole)
    assert all(one.fingerprint == first.fingerprint and one.found == first.found for one in rest)
    assert "of a step is waiting" in (tmp_path / "metrics" / "pipeline.svg").read_text()


@pytest.mark.nightly
def test_eight_ranks_on_all_three_dimensions_give_the_losses_of_one_process(tmp_path, alone):
    first, *rest = on(8, train, tmp_path, mesh="pp=2,dp=2,tp=2", strategy="fsdp", **BRIEF)
    same(first, alone(max_steps=BRIEF["max_steps"]))
    assert len({one.fingerprint for one in (first, *rest)}) == 1


@pytest.mark.parametrize(
    ("ranks", "others"),
    [(2, {"precision": "bf16"}), (4, {"precision": "bf16", "strategy": "fsdp"}), (2, {"precision": "fp16"})],
)
def test_less_precision_is_about_as_good(tmp_path, alone, ranks, others):
    first = on(ranks, train, tmp_path, mesh="pp=2", **others)[0]
    assert first.all_of("loss") == pytest.approx(alone().all_of("loss"), rel=0.03)


def scaled(*args, **settings):
    trainer, steps = trainer_of(*args, **settings)
    trainer.fit()
    return trainer._built.scaler.get_scale(), steps.lines[-1]["skipped"], trainer.fingerprint


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_an_overflow_in_one_stage_is_one_of_all(tmp_path, strategy):
    first, *rest = on(4, scaled, tmp_path, "narrow", mesh="pp=2", precision="fp16", max_steps=20, strategy=strategy)
    scale, skipped, _ = first
    assert 0 < skipped < 20 and scale == 2.0 ** (16 - skipped)
    assert all(one == first for one in rest)


# torch hides this warning of its own by a hook that a filter of "error" comes before
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_by_blocks_it_is_about_as_good(tmp_path, alone):
    """With an epoch's smaller last batch: graphs are of one shape."""
    first, _ = on(2, train, tmp_path, mesh="pp=2", compile=True, max_steps=8)
    assert first.all_of("loss") == pytest.approx(alone().all_of("loss")[:8], rel=1e-4)


@pytest.mark.daily
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_goes_on_where_it_was(tmp_path, strategy):
    def go(ranks, folder, steps):
        return on(ranks, train, folder, max_steps=steps, model="dropping", mesh="pp=2", strategy=strategy)[0]

    undisturbed = go(4, tmp_path / "calm", 20)
    go(4, tmp_path / "it", 10)
    resumed = go(4, tmp_path / "it", 20)
    assert resumed.fingerprint == undisturbed.fingerprint
    assert resumed.lines == undisturbed.lines[10:]


def on_a_node_of_its_own(base, **settings):
    """A rank that is alone on its node, in whose memory are the parameters of its stage."""
    node = os.environ["RANK"]
    os.environ.update(
        {
            "LAUNCH_NODE": node,
            "LAUNCH_RUN_DIR": str(base),
            "LAUNCH_ATTEMPT": "1",
            "LAUNCH_CHECKPOINT_MEMORY_DIR": str(base / f"memory-{node}"),
            "LAUNCH_CHECKPOINT_MEMORY_EVERY": "1 step",
        }
    )
    return train(base, mesh="pp=2", max_steps=12, checkpoint_every="100 steps", **settings)


def test_stages_on_nodes_apart_go_on_from_the_memory_of_their_nodes(tmp_path):
    undisturbed = on(2, train, tmp_path / "calm", mesh="pp=2", max_steps=12)[0]
    killed = Ranks(partial(on_a_node_of_its_own, tmp_path, dies_at=9), 2, local_size=1).outcomes()
    assert {kind for kind, _ in killed} == {"killed"} and not catalog.steps(tmp_path / "checkpoints")
    resumed = spawn_ranks(partial(on_a_node_of_its_own, tmp_path), 2, local_size=1)[0]
    assert 0 < len(resumed.lines) < 12 and resumed.lines == undisturbed.lines[-len(resumed.lines) :]
    assert resumed.fingerprint == undisturbed.fingerprint


def test_a_checkpoint_of_any_mesh_goes_on_on_any_other(tmp_path, alone):
    """Four copies, then two stages, then shards, then of shards, of divided layers, of both; one process."""
    ways = (
        (4, {}),
        (2, {"mesh": "pp=2"}),
        (2, {"mesh": "pp=2", "pp_cut": "blocks.3"}),
        (4, {"strategy": "fsdp"}),
        (4, {"mesh": "pp=2", "strategy": "fsdp"}),
        (4, {"mesh": "pp=2,tp=2"}),
        (8, {"mesh": "pp=2,tp=2", "strategy": "fsdp"}),
        (1, {"strategy": "none"}),
    )
    lines = []
    for number, (ranks, settings) in enumerate(ways, 1):
        lines += on(ranks, train, tmp_path, max_steps=6 * number, **settings)[0].lines
    assert [line["loss"] for line in lines] == pytest.approx(alone().all_of("loss")[: 6 * len(ways)], rel=1e-4)


def test_what_stages_have_trained_is_exported_whole(tmp_path):
    on(2, train, tmp_path, max_steps=10, mesh="pp=2")
    trainer, _ = trainer_of(tmp_path, max_steps=10, strategy="none")
    trainer.export(tmp_path / "model.safetensors")
    weights = load_file(tmp_path / "model.safetensors")
    assert weights.keys() >= {"embedding.weight", "blocks.0.feed.up.weight", "blocks.3.feed.up.weight", "norm.weight"}
    model = MODELS["transformer"]()
    model.load_state_dict(weights, strict=False)
    batch = torch.stack(windows(21))
    [asked] = on(1, validated, tmp_path, strategy="none")
    with torch.no_grad():
        expected = float(loss(model, batch)[0])
    assert expected == pytest.approx(asked["val_loss"], rel=1e-4)


def test_a_training_starts_from_weights_and_looks_for_its_rate(tmp_path, alone):
    """What one process has trained goes to the stages that have each part of it."""
    on(1, train, tmp_path / "first", strategy="none", max_steps=10)
    how = {"start_from": tmp_path / "first" / "checkpoints", "lr_find": True, "max_steps": 5}
    [whole] = on(1, train, tmp_path / "alone", strategy="none", **how)
    for strategy in ("ddp", "fsdp"):
        found = on(4, train, tmp_path / strategy, mesh="pp=2", strategy=strategy, **how)[0]
        assert found.all_of("loss") == pytest.approx(whole.all_of("loss"), rel=1e-3)
    assert whole.lines[0]["loss"] < alone().lines[0]["loss"]


def test_a_model_that_is_made_by_parts_is_the_one_that_it_would_be_anywhere(tmp_path):
    settings = {"mesh": "pp=2", "strategy": "fsdp", "max_steps": 4, "model": "wide", "pp_microbatches": 2}
    whole = on(4, train, tmp_path / "whole", **settings)[0]
    found = on(4, train, tmp_path / "parts", by_parts=True, **settings)[0]
    assert found.lines == whole.lines and found.fingerprint == whole.fingerprint


def cut_of(*args, **settings):
    """Return the stages of a training with measured parts or without, and its result."""
    trainer, steps = trainer_of(*args, **settings)
    measured = []
    plain = pipeline.part_times
    pipeline.part_times = lambda *given: measured.append(1) or plain(*given)
    trainer.fit()
    return trainer._built.pipeline.cut, bool(measured), steps.lines, trainer.fingerprint


BY_TIME = {"mesh": "pp=2", "pp_cut": "time", "pp_microbatches": 2, "checkpoint_every": "4 steps", "max_steps": 8}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("ranks", "others"),
    [
        (2, {}),
        (4, {"strategy": "fsdp", "activation_checkpointing": True, "blocks": ("1", "2", "3", "4", "5")}),
        (2, {"strategy": "fsdp", "by_parts": True, "precision": "bf16"}),
    ],
)
def test_a_layer_that_takes_longest_has_a_stage_for_itself(tmp_path, ranks, others):
    (first, *_), *rest = on(ranks, cut_of, tmp_path, model="uneven", **BY_TIME, **others)
    assert first.way == "time" and first.begins == ["2"], first
    assert all(one.begins == first.begins for one, *_ in rest)
    assert max(first.shares) == first.shares[0]
    assert first.otherwise > first.shares[0] if "blocks" in others else first.otherwise is None  # one layer is large
    svg = (tmp_path / "metrics" / "pipeline.svg").read_text()
    assert "cut by measured time" in svg and f"stage 0: 0 to 1 {first.shares[0]:.0%}" in svg


def test_what_is_measured_leaves_no_trace_in_the_training(tmp_path):
    """A training with dropout, beside one whose stages are said to be those."""
    of = {**BY_TIME, "model": "dropping"}
    cut, measured, lines, fingerprint = on(2, cut_of, tmp_path / "measured", **of)[0]
    assert measured
    said = on(2, cut_of, tmp_path / "said", **{**of, "pp_cut": ",".join(cut.begins)})[0]
    assert (said[0].rows, *said[1:]) == (cut.rows, False, lines, fingerprint)


@pytest.mark.parametrize("lost", ["nothing", "the file", "the checkpoints"])
def test_a_run_goes_on_with_the_stages_that_it_began_with(tmp_path, lost):
    """Whatever would be measured by now, the file that is kept beside checkpoints or these alone are enough."""
    odd = {"begins": ["blocks.3"], "seconds": [3.0, 1.0]}
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "stages.json").write_text(json.dumps(odd))
    first = on(2, cut_of, tmp_path, **{**BY_TIME, "max_steps": 4})[0]
    if lost == "the file":
        (folder / "stages.json").unlink()
    elif lost == "the checkpoints":
        for entry in catalog.entries(folder):
            shutil.rmtree(entry.path)
    found = on(2, cut_of, tmp_path, **BY_TIME)[0]
    for cut, measured, *_ in (first, found):
        assert cut.begins == ["blocks.3"] and cut.way == "time" and not measured
    assert found[0].shares == ([] if lost == "the file" else [0.75, 0.25])
    assert on(2, validated, tmp_path, **BY_TIME)[0]["val_loss"] > 0


def test_another_number_of_stages_is_measured_anew_and_goes_on(tmp_path, alone):
    lines = on(2, cut_of, tmp_path, **{**BY_TIME, "checkpoint_every": "10 steps"})[0][2]
    cut, measured, more, _ = on(4, cut_of, tmp_path, **{**BY_TIME, "mesh": "pp=4", "max_steps": 12})[0]
    assert measured and len(cut.rows) == 4
    assert [one["loss"] for one in lines + more] == pytest.approx(alone().all_of("loss")[:12], rel=1e-4)


def validated(*args, **settings):
    return trainer_of(*args, **settings)[0].validate()


def test_a_checkpoint_is_validated_through_the_stages(tmp_path):
    trained = on(2, train, tmp_path, max_steps=25, mesh="pp=2")[0]
    for found in on(2, validated, tmp_path, mesh="pp=2"):
        assert found == trained.found


def test_a_loss_that_is_no_number_is_left_out_on_all_stages(tmp_path):
    settings = {"max_steps": 12, "loss": loss_that_breaks, "skip_limit": 12}
    whole = on(1, train, tmp_path / "alone", strategy="none", **settings)[0]
    found = on(2, train, tmp_path / "stages", mesh="pp=2", **settings)
    assert found[0].lines[-1]["skipped"] == whole.lines[-1]["skipped"] > 0
    assert found[0].all_of("loss") == pytest.approx(whole.all_of("loss"), rel=1e-5, nan_ok=True)
    assert any(map(math.isnan, whole.all_of("loss")))


def refusal(*args, **settings):
    try:
        train(*args, **settings)
    except TrainerError as error:
        return str(error)
    return ""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"strategy": "zero1"}, "mesh: with pp expected with strategy ddp, zero2, fsdp, hsdp only, got it with zero1"),
        ({"strategy": "fsdp", "prefetch": 1}, "prefetch: does not go with a mesh that has pp"),
        ({"strategy": "fsdp", "sync_each": True}, "sync_each: does not go with a mesh that has pp"),
        ({"model": "shared", "strategy": "fsdp", "pp_schedule": "interleaved"}, "0 and 2 have a parameter in common"),
        ({"bucket_mb": 4.0}, "bucket_mb: does not go with a mesh that has pp"),
        ({"sync_batchnorm": True}, "sync_batchnorm: does not go with a mesh that has pp"),
        ({"batch_size": 1}, "pp=2 expected at least 2 samples of a rank at once, got batch_size 1 / (accumulate 1 x 1"),
        ({"pp_microbatches": 3}, "3 does not divide the samples of a rank at once, batch_size 16"),
        ({"model": "bare"}, "expected the parts of Bilinear in their order"),
        ({"model": "lone"}, "scale of Lone is a parameter of none of the parts"),
        ({"model": "normed"}, "keeps buffers (1.running_mean), as BatchNorm does"),
        (
            {"model": "sequence", "pp_schedule": "interleaved", "blocks": ("1", "3", "4")},
            "4 layers for 4 stages, found 3",
        ),
        ({"pp_cut": "blocks.9"}, "pp_cut: expected layers, time, or parts with which stages begin, got 'blocks.9'"),
        ({"pp_cut": "time", "model": "paired"}, "1 gives a tuple, and only tensors go from stage to stage"),
        ({"mesh": "tp=2", "strategy": "fsdp", "pp_cut": "time"}, "pp_cut: expected with a mesh that has pp only"),
        ({"mesh": "pp=3"}, "pp=3 does not divide the world's 2 ranks"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, settings, said):
    told = on(2, refusal, tmp_path, **{"mesh": "pp=2", **settings})
    assert all(said in each for each in told), told


def trouble(*args, **settings):
    """Return the error of the rank that finds it; other ranks may only see it end."""
    try:
        train(*args, **settings)
    except (TrainerError, RuntimeError) as error:
        return str(error)
    return ""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (loss_that_draws, "it draws random numbers before it calls the model"),
        (loss_that_calls_twice, "it calls the model twice"),
        (loss_that_looks_inside, "it asks for model.head"),
    ],
)
def test_a_loss_that_cannot_be_taken_apart_is_told(tmp_path, given, said):
    told = on(2, trouble, tmp_path, mesh="pp=2", loss=given, timeout_s=5.0)
    assert any(said in each for each in told), told
