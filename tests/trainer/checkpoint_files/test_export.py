"""Exports as their readers see them: safetensors, transformers' index, torch and torch.distributed.checkpoint."""

import json
import logging

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from weight_samples import TYPES, same, saved, tensors

from trainer.checkpoint_files.export import export
from trainer.checkpoint_files.layout import data_name
from trainer.errors import BadSettings, CheckpointDamaged, TrainerError


@pytest.fixture
def folder(tmp_path):
    saved(tmp_path / "c", tensors())
    return tmp_path / "c"


def test_one_file_of_safetensors(folder, tmp_path):
    found = export(folder, tmp_path / "m.safetensors")
    assert (found.step, found.kind, found.tensors) == (1, "step", len(tensors()))
    same(load_file(tmp_path / "m.safetensors"), tensors())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "m.safetensors"]


def test_a_folder_of_safetensors_with_an_index(folder, tmp_path):
    export(folder, tmp_path / "m", most_bytes_per_file=100_000)
    words = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())
    files = sorted({*words["weight_map"].values()})
    assert files == sorted(path.name for path in (tmp_path / "m").glob("*.safetensors"))
    assert len(files) > 2
    parts = {name: load_file(tmp_path / "m" / name) for name in files}
    same({name: parts[file][name] for name, file in words["weight_map"].items()}, tensors())
    assert sum(map(len, parts.values())) == len(tensors())
    assert words["metadata"]["total_size"] == sum(one.nbytes for one in tensors().values())


def test_a_folder_of_one_file_has_no_index(folder, tmp_path):
    export(folder, tmp_path / "m")
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["model.safetensors"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # no_dist says so
def test_dcp_reads_what_was_saved(tmp_path):
    folder, found = tmp_path / "c", tensors()
    saved(folder, found, tied={"head": "large"})
    export(folder, tmp_path / "m.dcp")
    target = {name: torch.zeros_like(one) for name, one in {**found, "head": found["large"]}.items()}
    dcp.load(target, checkpoint_id=tmp_path / "m.dcp", no_dist=True)
    same(target, {**found, "head": found["large"]})


def test_what_dcp_knows_of_an_export(folder, tmp_path):
    export(folder, tmp_path / "m.dcp", dtype="float16")
    words = dcp.FileSystemReader(tmp_path / "m.dcp").read_metadata()
    assert {name.removeprefix("of.") for name in words.state_dict_metadata} >= set(TYPES)
    assert words.state_dict_metadata["large"].properties.dtype == torch.float16
    assert words.state_dict_metadata["large"].properties.strides == (900, 1)


def test_numbers_of_another_type_in_a_folder(folder, tmp_path):
    export(folder, tmp_path / "m", dtype="bfloat16")
    assert torch.equal(load_file(tmp_path / "m" / "model.safetensors")["large"], tensors()["large"].bfloat16())


def test_what_is_there_is_replaced_where_it_may_be(folder, tmp_path):
    for name in ("m", "m.pt", "m.dcp"):
        export(folder, tmp_path / name)
        with pytest.raises(FileExistsError, match="is there already"):
            export(folder, tmp_path / name)
        export(folder, tmp_path / name, dtype="bfloat16", overwrite=True)
    assert torch.load(tmp_path / "m.pt", weights_only=True)["large"].dtype == torch.bfloat16
    assert load_file(tmp_path / "m" / "model.safetensors")["large"].dtype == torch.bfloat16
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "m", "m.dcp", "m.pt"]


def test_a_folder_with_something_else_in_it_is_never_replaced(folder, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("mine")
    with pytest.raises(FileExistsError, match=r"has files that no export writes, such as thesis\.tex"):
        export(folder, tmp_path / "home", overwrite=True)
    assert (tmp_path / "home" / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("m.onnx", "expected a name that ends with"),
        ("no/m.pt", "in a folder that is there"),
        ("c.pt", "expected a file"),
    ],
)
def test_what_cannot_be_written(folder, tmp_path, name, said):
    (tmp_path / "c.pt").mkdir()
    with pytest.raises(BadSettings, match=said):
        export(folder, tmp_path / name)


def test_of_a_damaged_one_nothing_is_left(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    saved(tmp_path / "c", {"w": torch.ones(4)})
    file = tmp_path / "c" / "step-00000001" / data_name(0)
    file.write_bytes(b"\xff" * file.stat().st_size)
    with pytest.raises(CheckpointDamaged, match="its checksum"):
        export(tmp_path / "c", tmp_path / "m", step=1)
    with pytest.raises(TrainerError, match="expected a checkpoint, found none"):
        export(tmp_path / "c", tmp_path / "m")
    with pytest.raises(TrainerError, match="expected the best checkpoint, found none"):
        export(tmp_path / "c", tmp_path / "m", best=True)
    assert "skipping a damaged checkpoint" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
