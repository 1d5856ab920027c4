"""Weights as files: read back by safetensors' own reader and by torch.load, bit for bit."""

import struct
from functools import partial

import msgspec
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from weight_samples import same, saved, tensors

from trainer.checkpoint_files import catalog
from trainer.checkpoint_files.layout import data_name
from trainer.checkpoint_files.manifest import TreeEntry
from trainer.checkpoint_files.weight_files import write_safetensors, write_torch
from trainer.checkpoint_files.weights import Weights
from trainer.errors import CheckpointDamaged, TrainerError


def written(entry, path, write, *args, dtype=None):
    with Weights(entry.path, catalog.read_manifest(entry), dtype=dtype) as weights, path.open("xb") as file:
        weights.verify()
        write(file, weights, *args)
    return path


def test_safetensors_reads_what_was_saved(tmp_path):
    path = written(saved(tmp_path / "c", tensors()), tmp_path / "m.safetensors", write_safetensors, {"run": "a-b"})
    same(load_file(path), tensors())
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "run": "a-b"}
    (length,) = struct.unpack("<Q", path.read_bytes()[:8])
    assert length % 8 == 0


@pytest.mark.parametrize("mmap", [False, True])
def test_torch_reads_what_was_saved_without_running_anything(tmp_path, mmap):
    path = written(saved(tmp_path / "c", tensors()), tmp_path / "m.pt", write_torch)
    same(torch.load(path, weights_only=True, mmap=mmap), tensors())


def test_types_that_only_torch_has(tmp_path):
    odd = {"half": torch.randn(2, dtype=torch.complex64).to(torch.complex128)}
    entry = saved(tmp_path / "c", odd)
    with pytest.raises(TrainerError, match=r"half: safetensors has no complex128\nhint: -o FILE.pt"):
        written(entry, tmp_path / "m.safetensors", write_safetensors, {})
    same(torch.load(written(entry, tmp_path / "m.pt", write_torch), weights_only=True), odd)


def test_numbers_become_another_type_and_integers_do_not(tmp_path):
    entry = saved(tmp_path / "c", {"weight": torch.randn(700, 900), "steps": torch.tensor(7)})
    expected = {"weight": tensor_of(entry, "weight").to(torch.bfloat16), "steps": torch.tensor(7)}
    path = written(entry, tmp_path / "m.safetensors", write_safetensors, {}, dtype="bfloat16")
    same(load_file(path), expected)
    same(torch.load(written(entry, tmp_path / "m.pt", write_torch, dtype="bfloat16"), weights_only=True), expected)


def tensor_of(entry, name):
    with Weights(entry.path, catalog.read_manifest(entry)) as weights:
        data = b"".join(weights.data(name))
    return torch.frombuffer(bytearray(data), dtype=torch.float32).view(weights.tensors[name].shape)


def test_tied_tensors_are_written_once_and_found_by_both_names(tmp_path):
    entry = saved(tmp_path / "c", {"emb": torch.randn(4, 4)}, tied={"head": "emb"})
    found = torch.load(written(entry, tmp_path / "m.pt", write_torch), weights_only=True)
    assert found.keys() == {"emb", "head"}
    assert found["emb"].data_ptr() == found["head"].data_ptr()
    with safe_open(written(entry, tmp_path / "m.safetensors", write_safetensors, {}), "pt") as file:
        assert (file.metadata()["head"], [*file.keys()]) == ("emb", ["emb"])  # as safetensors itself notes them


def test_a_damaged_byte_is_seen_before_anything_is_given_out(tmp_path):
    entry = saved(tmp_path / "c", tensors())
    file = entry.path / data_name(1)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointDamaged, match="its checksum"):
        written(entry, tmp_path / "m.pt", write_torch)


@pytest.mark.parametrize(
    "words", [b"[]", b'{"tied": []}', b'{"tied": {"model/head": 3}}', b"{", b'{"tied": {"head": "x"}}']
)
def test_what_is_no_word_about_tied_tensors_is_none(tmp_path, words):
    entry = saved(tmp_path / "c", {"emb": torch.randn(4, 4)})
    manifest = catalog.read_manifest(entry)
    file = entry.path / data_name(0)
    at = manifest.trees["shared"].at
    file.write_bytes(file.read_bytes()[:at] + words)
    changed = msgspec.structs.replace(manifest, trees={"shared": TreeEntry(0, at, len(words))})
    with Weights(entry.path, changed) as weights:
        assert weights._tied() == {}


def test_a_file_that_is_larger_than_a_plain_archive_takes_says_so_beforehand(tmp_path):
    path = written(saved(tmp_path / "c", tensors()), tmp_path / "m.pt", partial(write_torch, zip64_from=1000))
    same(torch.load(path, weights_only=True, mmap=True), tensors())
