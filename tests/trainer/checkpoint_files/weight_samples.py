"""Tensors of every type, a checkpoint in which two ranks have parts of them, and whether others are the same."""

import json

import torch
from saved_checkpoints import claim

from trainer.checkpoint_files import commit
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.durable import sync_folder, write_new
from trainer.checkpoint_files.layout import data_name, new_nonce
from trainer.checkpoint_files.manifest import ITEM_BYTES, Chunk, FileEntry, Manifest, TensorEntry, TreeEntry

# What both formats have; numpy, which safetensors' reader for torch does not need, has fewer.
TYPES = [name for name in ITEM_BYTES if name not in ("complex32", "complex128", "float8_e4m3fnuz", "float8_e5m2fnuz")]


def tensors():
    """Return a tensor of every type, and some without elements or dimensions."""
    torch.manual_seed(1)
    found = {f"of.{name}": torch.randint(0, 2, (3, ITEM_BYTES[name] * 2), dtype=torch.uint8) for name in TYPES}
    found = {name: one.view(getattr(torch, name.removeprefix("of."))) for name, one in found.items()}
    more = {
        "empty": torch.zeros(0, 4),
        "one": torch.tensor(1.5),
        "steps": torch.tensor(7),
        "large": torch.randn(700, 900),
    }
    return {**found, **more, "ünïcode": torch.randn(2, 2, dtype=torch.float64)}


def saved(folder, found, tied=None):
    """A checkpoint of these by two ranks, of which each has half of the columns of what has two dimensions."""
    folder.mkdir(exist_ok=True)
    mine = claim(folder)
    draft = commit.begin(folder, 1, mine)
    contents, entries = [b"", b""], {}
    for name, tensor in found.items():
        chunks, half = [], tensor.shape[1] // 2 if tensor.dim() == 2 else None
        for rank in (0, 1) if half else (0,):
            begin, end = (half * rank, half if rank == 0 else tensor.shape[1]) if half else (0, 0)
            part = tensor[:, begin:end] if half else tensor
            offsets = (0, begin) if half else (0,) * tensor.dim()
            chunks.append(Chunk(rank, len(contents[rank]), offsets, tuple(part.shape)))
            contents[rank] += part.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        dtype = str(tensor.dtype).removeprefix("torch.")
        entries[f"model/{name}"] = TensorEntry(dtype, tuple(tensor.shape), tuple(chunks))
    words = json.dumps({"tied": {f"model/{one}": f"model/{kept}" for one, kept in (tied or {}).items()}}).encode()
    tree = TreeEntry(0, len(contents[0]), len(words))
    contents[0] += words
    entries["optimizer/one/exp_avg"] = TensorEntry("float32", (), (Chunk(1, len(contents[1]), (), ()),))
    contents[1] += b"\xff" * 4
    files = []
    for rank, content in enumerate(contents):
        written = write_new(draft / data_name(rank), [content])
        files.append(FileEntry(data_name(rank), written.size, written.digest))
    sync_folder(draft)
    manifest = Manifest(1, 2, new_nonce(), tuple(files), entries, {"shared": tree})
    return Entry("step", 1, commit.publish(draft, manifest, mine))


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        bits = [one.contiguous().reshape(-1).view(torch.uint8) for one in (found[name], tensor)]
        assert torch.equal(*bits), name
