"""Weights from every kind of file into models, as their own writers have written them."""

import json
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ranks import spawn_ranks
from safetensors.torch import save_file, save_model
from small_trainings import Recipe, Rich, Training
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from weight_samples import TYPES, same, saved, tensors

from trainer.checkpoint_files.export import export
from trainer.checkpoint_files.layout import data_name
from trainer.checkpoint_files.weight_files import SAFE
from trainer.errors import BadSettings, CheckpointDamaged, TrainerError
from trainer.weights import load_weights
from trainer.weights.loading import CheckpointChoice, opened


class Net(nn.Module):
    """A body, a head, a parameter with two names, and statistics."""

    def __init__(self, classes=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, classes)
        self.again = nn.Linear(4, 4, bias=False)
        self.again.weight = self.body[0].weight


def net(seed, classes=3):
    torch.manual_seed(seed)
    model = Net(classes)
    with torch.no_grad():
        for one in model.state_dict().values():
            one.copy_(torch.randn(one.shape) * 10)
    return model


def read(path, **which):
    with opened(path, CheckpointChoice(**which), print) as source:
        return {name: source.tensor(name).clone() for name in source.shapes}


def of_safetensors(model, folder):
    save_model(model, str(folder / "m.safetensors"))  # of tied ones it keeps one
    return folder / "m.safetensors"


def of_torch(model, folder):
    torch.save(model.state_dict(), folder / "m.pt")
    return folder / "m.pt"


def of_old_torch(model, folder):
    torch.save(model.state_dict(), folder / "m.pth", _use_new_zipfile_serialization=False)
    return folder / "m.pth"


def of_lightning(model, folder):
    words = {"epoch": 3, "state_dict": {f"model.{name}": one for name, one in model.state_dict().items()}}
    torch.save(words, folder / "m.ckpt")
    return folder / "m.ckpt"


def of_ddp(model, folder):
    torch.save({f"module._orig_mod.{name}": one for name, one in model.state_dict().items()}, folder / "m.bin")
    return folder / "m.bin"


def of_hugging_face(model, folder):
    whole = {name: one for name, one in model.state_dict().items() if name != "again.weight"}
    parts = {"model-00001-of-00002.safetensors": [*whole][:3], "model-00002-of-00002.safetensors": [*whole][3:]}
    for file, names in parts.items():
        save_file({name: whole[name] for name in names}, folder / file)
    homes = {name: file for file, names in parts.items() for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": homes}))
    return folder


def of_dcp(model, folder):
    state = {"model": model.state_dict(), "optimizer": {"lr": 1e-3, "m": torch.ones(3)}, "step": 7}
    dcp.save(state, checkpoint_id=folder / "d", no_dist=True)
    return folder / "d"


def of_ours(model, folder):
    kept = {name: one for name, one in model.state_dict().items() if name != "again.weight"}
    saved(folder / "checkpoints", kept, tied={"again.weight": "body.0.weight"})
    return folder


KINDS = [of_safetensors, of_torch, of_old_torch, of_lightning, of_ddp, of_hugging_face, of_dcp, of_ours]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # no_dist says so
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_each_kind_of_file_keeps_is_taken(tmp_path, kind):
    given, model = net(1), net(2)
    told = load_weights(model, kind(given, tmp_path))
    same(model.state_dict(), given.state_dict())
    assert (dict(told.left), told.unused) == ({}, ())
    assert model.again.weight is model.body[0].weight


@pytest.mark.parametrize("name", ["m.safetensors", "m.pt", "m.dcp", "m"])
def test_what_was_exported_comes_back(tmp_path, name):
    found = {key: one for key, one in tensors().items() if str(one.dtype).removeprefix("torch.") in SAFE}
    saved(tmp_path / "c", found)
    export(tmp_path / "c", tmp_path / name, most_bytes_per_file=300_000)
    same(read(tmp_path / name), found)
    assert len(found) > len(TYPES) - 3


def test_a_new_head_and_other_names(tmp_path):
    given, model = net(1, classes=1000), net(2)
    save_file(
        {f"old.{name}": one for name, one in given.state_dict().items() if name != "again.weight"},
        tmp_path / "m.safetensors",
    )
    before = model.head.weight.clone()
    with pytest.raises(TrainerError, match=r"body.0.weight: is not in the file\n(.*\n)+hint: `rename`"):
        load_weights(model, tmp_path / "m.safetensors")
    with pytest.raises(TrainerError, match=r"head.weight: has shape \(3, 4\), in the file it is \(1000, 4\)"):
        load_weights(model, tmp_path / "m.safetensors", rename={r"^old\.": ""})
    assert not torch.equal(model.body[0].weight, given.body[0].weight)
    told = load_weights(model, tmp_path / "m.safetensors", rename={r"^old\.": ""}, leave=[r"head\..*"])
    assert str(told) == "7 of 9 tensors loaded; unchanged: head.weight (to be left), head.bias (to be left)"
    assert torch.equal(model.body[0].weight, given.body[0].weight)
    assert torch.equal(model.head.weight, before)


def test_what_fits_is_taken_where_that_is_enough(tmp_path):
    given, model = {"body.0.weight": torch.ones(4, 4), "more": torch.ones(2)}, net(2)
    save_file(given, tmp_path / "m.safetensors")
    told = load_weights(model, tmp_path / "m.safetensors", strict=False)
    assert (told.taken, told.unused) == (("body.0.weight",), ("more",))
    assert told.left["head.weight"] == "is not in the file"
    save_file({"x": torch.ones(2)}, tmp_path / "x.safetensors")
    with pytest.raises(TrainerError, match="does not fit the model"):  # nothing at all is no wish
        load_weights(model, tmp_path / "x.safetensors", strict=False)


def test_two_names_that_become_one(tmp_path):
    save_file({"a.w": torch.ones(2), "b.w": torch.ones(2)}, tmp_path / "m.safetensors")
    with pytest.raises(BadSettings, match=r"a\.w and b\.w both become w"):
        load_weights(net(1), tmp_path / "m.safetensors", rename={r"^[ab]\.": ""})
    with pytest.raises(BadSettings, match="expected a regular expression"):
        load_weights(net(1), tmp_path / "m.safetensors", rename={"(": ""})


def test_of_checkpoints_one_is_chosen_and_a_damaged_byte_is_seen(tmp_path):
    entry = saved(tmp_path, {"w": torch.arange(4.0)})
    assert read(tmp_path, step=1)["w"].tolist() == [0, 1, 2, 3]
    with pytest.raises(TrainerError, match="expected the best checkpoint, found none"):
        read(tmp_path, best=True)
    file = entry.path / data_name(0)
    file.write_bytes(b"\xff" + file.read_bytes()[1:])
    with pytest.raises(CheckpointDamaged, match="its checksum"):
        read(tmp_path, step=1)


class Evil:
    def __reduce__(self):
        return print, ("RUN",)


def test_nothing_that_a_file_says_is_run(tmp_path, capsys):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / ".metadata").write_bytes(pickle.dumps(Evil()))
    torch.save({"w": Evil()}, tmp_path / "m.pt")
    for name, said in (
        ("d", "builtins.print where torch.distributed.checkpoint.metadata.Metadata was expected"),
        ("m.pt", "cannot be read"),
    ):
        with pytest.raises(TrainerError, match=said):
            read(tmp_path / name)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("cut", [0, 5, 8, 60, -1])
def test_a_file_that_was_cut_off(tmp_path, cut):
    save_file({"w": torch.ones(100)}, tmp_path / "m.safetensors")
    data = (tmp_path / "m.safetensors").read_bytes()
    (tmp_path / "m.safetensors").write_bytes(data[:cut])
    with pytest.raises(TrainerError, match="safetensors"):
        read(tmp_path / "m.safetensors")


@pytest.mark.parametrize("home", ["../x.safetensors", "none.safetensors", "a\0b"])
def test_an_index_leads_to_files_beside_it_alone(tmp_path, home):
    (tmp_path / "x.safetensors").write_bytes(b"")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": home}}))
    with pytest.raises(TrainerError, match="expected a file beside it"):
        read(tmp_path / "m")


@pytest.mark.parametrize("name", ["m.txt", "folder", "nothing"])
def test_what_is_no_weights(tmp_path, name):
    (tmp_path / "m.txt").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(TrainerError, match="expected"):
        read(tmp_path / name)


def save_shards(folder, columns):
    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    state = {
        "rows": distribute_tensor(torch.arange(10.0).reshape(5, 2), mesh, [Shard(0)]),
        "columns": distribute_tensor(torch.arange(float(2 * columns)).reshape(2, columns), mesh, [Shard(1)]),
        "few": distribute_tensor(torch.ones(1, 3), mesh, [Shard(0)]),  # most ranks have nothing of it
        "none": distribute_tensor(torch.ones(0, 3), mesh, [Shard(0)]),
        "same": distribute_tensor(torch.tensor(7), mesh, [Replicate()]),
    }
    dcp.save(state, checkpoint_id=folder)
    return True


@pytest.mark.parametrize("columns", [3, 7])
def test_parts_that_several_ranks_have_saved_make_up_the_whole(tmp_path, columns):
    assert all(spawn_ranks(save_shards, 3, tmp_path, columns))
    found = read(tmp_path)
    assert torch.equal(found["rows"], torch.arange(10.0).reshape(5, 2))
    assert torch.equal(found["columns"], torch.arange(float(2 * columns)).reshape(2, columns))
    assert (found["few"].tolist(), found["same"].item(), found["none"].shape) == ([[1, 1, 1]], 7, (0, 3))


def take(path, strategy):
    training = Training.begin(Recipe(strategy))
    load_weights(training.module, path)
    state = training.module.state_dict()
    whole = {name: (one.full_tensor() if hasattr(one, "full_tensor") else one) for name, one in state.items()}
    return {name: one.tolist() for name, one in whole.items() if isinstance(one, torch.Tensor)}


def test_every_rank_takes_its_part(tmp_path):
    torch.manual_seed(5)
    model = Rich()
    given = {name: one for name, one in model.state_dict().items() if isinstance(one, torch.Tensor)}
    torch.save(given, tmp_path / "m.pt")
    expected = {name: one.tolist() for name, one in given.items()}
    assert spawn_ranks(take, 3, tmp_path / "m.pt", "fsdp") == [expected] * 3
