"""Meshes of ranks, and models whose layers are divided over those that work together."""

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import spawn_ranks
from token_windows import loss, loss_by_token, windows
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from trainer import Callback, Settings, Trainer
from trainer.errors import BadSettings
from trainer.strategies.mesh import is_mesh, mesh_of, on_mesh, parse_mesh
from trainer.strategies.tensor_parallel import plan_for
from trainer.tasks.transformer import Shape, Transformer
from trainer.world import World

pytestmark = pytest.mark.nightly

CLOSE = {"rtol": 2e-4, "atol": 2e-5}
CPU = torch.device("cpu")
STEPS = 12


# -- the mesh itself: no process group


@pytest.mark.daily
@pytest.mark.parametrize(
    ("text", "mesh"), [("tp=2", {"tp": 2}), ("dp=2,tp=4", {"dp": 2, "tp": 4}), (" dp = 1 , tp=1", {"dp": 1, "tp": 1})]
)
def test_a_mesh_as_it_is_written(text, mesh):
    assert parse_mesh(text) == mesh_of(text) == mesh_of(mesh) == mesh


@pytest.mark.daily
@pytest.mark.parametrize("text", ["", "2", "tp", "tp=", "tp=two", "tp=0", "tp=2,", "tp=2,tp=2", "tp=-1", "tp=2;dp=2"])
def test_what_is_no_mesh(text):
    assert not is_mesh(text)
    with pytest.raises(BadSettings, match="mesh: expected a mesh of ranks"):
        Settings(max_steps=1, strategy="fsdp", mesh=text)


@pytest.mark.daily
@given(pp=st.integers(1, 4), dp=st.integers(1, 6), tp=st.integers(1, 6))
def test_ranks_that_divide_a_layer_are_neighbours_and_have_one_share_and_stages_are_farthest_apart(pp, dp, tp):
    size = pp * dp * tp
    worlds = [on_mesh(World(rank, size, rank, size, CPU), {"pp": pp, "dp": dp, "tp": tp}) for rank in range(size)]
    assert [(one.stage, one.dp_rank) for one in worlds] == [
        (stage, share) for stage in range(pp) for share in range(dp) for _ in range(tp)
    ]
    assert {(world.dp_size, world.tp_size, world.ranks_per_replica) for world in worlds} == {(dp, tp, pp * tp)}
    assert [worlds[rank].dp_rank for rank in worlds[0].replica_leaders] == list(range(dp))
    assert worlds[0] == on_mesh(World(0, size, 0, size, CPU), f"pp={pp},tp={tp}")


@pytest.mark.daily
@pytest.mark.parametrize(
    ("mesh", "ranks", "said"),
    [
        ("tp=3", 4, "tp=3 does not divide the world's 4 ranks"),
        ("dp=2,tp=2", 8, "dp=2 x tp=2 are 4 ranks, the world has 8\nhint: leave dp out"),
        ("xp=2", 2, "expected pp, dp and tp, got 'xp'"),
        ("pp=3,tp=2", 8, "pp=3 x tp=2 does not divide the world's 8 ranks"),
        ("pp=2,dp=3,tp=1", 8, "pp=2 x dp=3 x tp=1 are 6 ranks, the world has 8\nhint: leave dp out"),
        ("cp=2", 2, "cp: parts of a sequence"),
    ],
)
def test_meshes_that_cannot_be(mesh, ranks, said):
    with pytest.raises(BadSettings) as error:
        on_mesh(World(0, ranks, 0, ranks, CPU), mesh)
    assert said in str(error.value)


@pytest.mark.daily
def test_a_plan_is_the_users_or_the_models_or_asked_for():
    model = Transformer(Shape(layers=1))
    assert plan_for(model, None) == model.tp_plan()
    assert plan_for(model, {"head": "colwise"}) == {"head": "colwise"}
    with pytest.raises(BadSettings, match="mesh: tp: expected a plan of how to divide Linear, got none"):
        plan_for(nn.Linear(1, 1), None)


# -- trainings on real ranks


class Mixer(nn.Module):
    """A model written without meshes in mind: its norm and its scale are in no plan."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return self.head(x)


OF_MIXER = {"embedding": "rowwise", "up": "colwise", "down": "rowwise", "head": "colwise_gather_output"}
MODELS = {
    "transformer": lambda: Transformer(Shape(tokens=32, context=8, layers=2, heads=4, width=16)),
    "untied": lambda: Transformer(Shape(tokens=32, context=8, layers=2, heads=4, width=16, tied=False)),
    "mixer": Mixer,
}


class Steps(Callback):
    def __init__(self, stop_at=None):
        self.losses, self.norms, self.found, self.stop_at = [], [], {}, stop_at

    def on_log(self, training, values):
        self.losses.append(values["loss"])
        self.norms.append(values["norm"])

    def on_validation(self, training, values):
        self.found = dict(values)


@dataclass(frozen=True)
class Outcome:
    losses: list
    norms: list
    found: dict
    fingerprint: str
    code: int


def train(folder, model="transformer", by_token=False, tp_plan=None, **settings):
    steps = Steps()
    trainer = Trainer(
        Settings(
            **{"max_steps": STEPS, "log_every": 1, "batch_size": 8, "checkpoint_every": "4 steps"} | settings,
            seed=5,
            clip_norm=0.5,
            validate_every=STEPS,
            checkpoint_dir=Path(folder) / "checkpoints",
            out=Path(folder) / "metrics",
        ),
        model=MODELS[model],
        loss=loss_by_token if by_token else loss,
        data=windows(48),
        validation=windows(20),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        callbacks=[steps],
        tp_plan=tp_plan,
    )
    code = trainer.fit()
    return Outcome(steps.losses, steps.norms, steps.found, trainer.fingerprint, code)


def on(ranks, work, *args, **settings):
    return spawn_ranks(partial(work, *args, **settings), ranks)


def _same(found, alone):
    assert found.losses == pytest.approx(alone.losses, rel=1e-4)
    assert found.norms == pytest.approx(alone.norms, rel=2e-3)
    assert found.found == pytest.approx(alone.found, rel=1e-4)


@pytest.mark.nightly
@pytest.mark.filterwarnings(
    "ignore:FSDP2-wrapped module:UserWarning"
)  # of what is gathered: nothing is changed in place
@pytest.mark.parametrize(
    ("model", "ranks", "mesh", "others"),
    [
        ("transformer", 2, "tp=2", {}),
        ("transformer", 4, "dp=2,tp=2", {"accumulate": 2}),
        ("transformer", 4, "tp=4", {"strategy": "zero2"}),
        ("untied", 2, "tp=2", {"activation_checkpointing": True, "ema": 0.9}),
        ("mixer", 4, "tp=2", {"tp_plan": OF_MIXER}),
    ],
)
def test_trains_as_one_process(tmp_path, model, ranks, mesh, others):
    alone = on(1, train, tmp_path / "alone", model, strategy="none", **_of_all(others))[0]
    assert alone.losses[-1] < alone.losses[0]
    given = {"strategy": "fsdp", **others}
    for found in on(ranks, train, tmp_path / "mesh", model, mesh=mesh, **given):
        assert found.code == 0
        if found.losses:  # what is logged, the first rank is told
            _same(found, alone)


def _of_all(others):
    return {name: value for name, value in others.items() if name not in ("strategy", "tp_plan")}


def test_a_loss_that_is_a_sum_counts_each_token_once(tmp_path):
    alone = on(1, train, tmp_path / "alone", by_token=True, strategy="none")[0]
    found = on(4, train, tmp_path / "mesh", by_token=True, strategy="fsdp", mesh="tp=2")
    _same(found[0], alone)


@pytest.mark.daily
def test_a_run_goes_on_where_it_was_and_on_any_other_mesh(tmp_path):
    def go(ranks, folder, steps, **settings):
        return on(ranks, train, folder, max_steps=steps, strategy="fsdp", **settings)[0]

    undisturbed = go(4, tmp_path / "calm", STEPS, mesh="tp=2")
    go(4, tmp_path / "it", STEPS // 2, mesh="tp=2")
    for name in ("one", "wider"):
        shutil.copytree(tmp_path / "it", tmp_path / name)
    resumed = go(4, tmp_path / "it", STEPS, mesh="tp=2")
    assert resumed.fingerprint == undisturbed.fingerprint
    assert resumed.losses == undisturbed.losses[STEPS // 2 :]
    for name, ranks, mesh in (("one", 1, None), ("wider", 4, "tp=4")):
        elsewhere = go(ranks, tmp_path / name, STEPS, mesh=mesh)
        assert elsewhere.losses == pytest.approx(undisturbed.losses[STEPS // 2 :], rel=1e-3)


def refusal(folder, *args, **settings):
    try:
        train(folder, *args, **settings)
    except BadSettings as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"strategy": "ddp"}, "mesh: expected with strategy zero2, fsdp, hsdp only, got it with ddp"),
        ({"offload": True}, "offload: does not go with a mesh that has tp"),
        ({"count_flops": True}, "count_flops: does not go with a mesh that has pp or tp"),
        ({"tp_plan": {"heat": "colwise"}}, "tp_plan: heat: Transformer has no part of this name"),
        ({"tp_plan": {"head": "columns"}}, "tp_plan: head: expected one of colwise,"),
        ({"tp_plan": {"head": "vocabulary"}}, "both have to be divided in one way"),
        ({"mesh": "tp=2", "model": "mixer"}, "expected a plan of how to divide Mixer"),
    ],
)
def test_what_cannot_be_divided_is_refused(tmp_path, settings, said):
    told = on(2, refusal, tmp_path, **{"strategy": "fsdp", "mesh": "tp=2", **settings})
    assert all(said in each for each in told), told
