import os
import shutil

import pytest
import torch
from nodes_apart import disks, run_apart
from ranks import spawn_ranks
from small_trainings import Recipe, Rich, Training
from torch import nn

from trainer.checkpoint import load_model
from trainer.checkpoint.models import put_weights, whole_weights
from trainer.checkpoint.names import ModelNames
from trainer.checkpoint.stand_ins import stand_in
from trainer.checkpoint_files import catalog
from trainer.checkpoint_files.layout import data_name
from trainer.checkpoint_files.weight_files import write_torch
from trainer.checkpoint_files.weights import Weights
from trainer.errors import CheckpointDamaged, CheckpointPartial, TrainerError

pytestmark = pytest.mark.nightly


def train_and_keep(folder, strategy):
    training = Training.begin(Recipe(strategy))
    checkpointer = training.checkpointer(folder)
    checkpointer.load()
    kept = {}
    for step in (1, 2, 3):
        training.step(step)
        checkpointer.save(step, best=step == 1)
        kept[step] = values(training.module)
    checkpointer.close()
    return kept


def values(module):
    return {
        name: (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).tolist()
        for name, tensor in module.state_dict().items()
        if isinstance(tensor, torch.Tensor)
    } | {"calls": module.counted.calls}


@pytest.fixture(params=["ddp", "fsdp"])
def kept(tmp_path, request):
    return tmp_path, spawn_ranks(train_and_keep, 2, tmp_path, request.param)[0]


def listing(folder):
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


@pytest.mark.daily
def test_the_newest_that_is_whole_is_loaded_and_nothing_is_changed(kept):
    folder, expected = kept
    model, before = Rich(), listing(folder)
    assert load_model(model, folder) == 3
    assert values(model) == expected[3]
    (folder / "step-00000003" / data_name(1)).write_bytes(b"")
    before = listing(folder)
    assert load_model(model, folder) == 2
    assert values(model) == expected[2]
    assert listing(folder) == before


def test_one_that_is_asked_for(kept):
    folder, expected = kept
    model = Rich()
    assert load_model(model, folder, 1) == 1
    assert values(model) == expected[1]
    assert load_model(model, folder / "best-00000001") == 1
    assert load_model(model, folder / "step-00000002") == 2
    assert values(model) == expected[2]
    path = folder / "step-00000002" / data_name(0)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(CheckpointDamaged, match=r"rank-00000\.data: expected"):
        load_model(model, folder, 2)


@pytest.mark.daily
@pytest.mark.parametrize(("strategy", "world"), [("ddp", 2), ("fsdp", 3), ("hsdp", 4), ("zero2", 2)])
def test_weights_are_put_together_without_torch(tmp_path, strategy, world):
    """Whatever ranks had parts of them: a model takes all of them, strictly, and is the one that was saved."""
    expected = spawn_ranks(train_and_keep, world, tmp_path, strategy)[0][3]
    entry = catalog.entries(tmp_path)[2]
    with Weights(entry.path, catalog.read_manifest(entry)) as weights, (tmp_path / "w.pt").open("xb") as file:
        weights.verify()
        write_torch(file, weights)
    found = torch.load(tmp_path / "w.pt", weights_only=True)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        name: value for name, value in expected.items() if name != "calls"
    }
    assert weights.tied == {"head.weight": "embed.weight"}


def test_of_disks_apart_only_what_is_whole_here(tmp_path):
    run_apart(train_and_keep, tmp_path, "fsdp", nodes=(1, 1))
    here, there = disks(tmp_path)
    with pytest.raises(TrainerError, match=r"step-00000003: rank-00001.data not on this disk\nhint: .* copy"):
        load_model(Rich(), here)
    shutil.copy(there / "step-00000002" / data_name(1), here / "step-00000002")
    assert load_model(Rich(), here) == 2
    with pytest.raises(CheckpointPartial):
        load_model(Rich(), here, 3)


def gather():
    training = Training.begin(Recipe("fsdp"))
    training.step(1)
    weights, copy = whole_weights(training.module, keep=training.world.is_first), Rich()
    if weights:
        put_weights(copy, weights)
    return len(weights), {**values(training.module), "calls": 0}, {**values(copy), "calls": 0}


def test_of_a_sharded_model_the_first_rank_gets_the_whole():
    (_, trained, copied), (of_second, *_) = spawn_ranks(gather, 2)
    assert copied == trained
    assert of_second == 0


@pytest.mark.daily
def test_what_is_not_there(tmp_path):
    with pytest.raises(TrainerError, match="expected a checkpoint, found none"):
        load_model(nn.Linear(1, 1), tmp_path)
    with pytest.raises(TrainerError, match="expected a checkpoint of step 9, found none"):
        load_model(nn.Linear(1, 1), tmp_path / "nowhere", 9)


def test_another_model(kept):
    model = nn.Linear(2, 2)
    before = model.weight.clone()
    with pytest.raises(TrainerError, match="is of another model"):
        load_model(model, kept[0])
    assert torch.equal(model.weight, before)
    assert catalog.set_aside(kept[0]) == []


def test_of_a_model_in_stages_no_rank_has_all_weights():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    model[1].weight = stand_in(model[1].weight, torch.device("cpu"))
    assert ModelNames({"": model}).parameters().keys() == {"model/0.weight", "model/0.bias", "model/1.bias"}
    assert model[1].weight.shape == (2, 3) and model[1].weight.untyped_storage().nbytes() == 4
    with pytest.raises(TrainerError, match="the model is in stages"):
        whole_weights(model, keep=True)
