"""A digest of the unsharded model and optimizer in a checkpoint: equal values, equal digest, whatever the layout."""

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint.contents import SHARED, optimizer_of_rank
from trainer.checkpoint.staging import bytes_of
from trainer.checkpoint.tree import dtype_of, tensor_of
from trainer.checkpoint_files.catalog import Entry, verify
from trainer.checkpoint_files.durable import open_to_read
from trainer.checkpoint_files.manifest import Manifest, TensorEntry, chunk_bytes
from trainer.errors import CheckpointDamaged

_SPREAD = optimizer_of_rank(0).removesuffix("00000")


def fingerprint(entry: Entry) -> str:
    """SHA-256 over names, types, shapes and bytes of all tensors, in the order of their names, and of the optimizer's
    other values. Reads and compares every byte, and holds one tensor at a time. Raises CheckpointDamaged."""
    manifest = verify(entry)
    digest = hashlib.sha256()
    with contextlib.ExitStack() as opened:
        files = []
        for file in manifest.files:
            files.append(open_to_read(entry.path / file.name))
            opened.callback(os.close, files[-1])
        for name in sorted(manifest.tensors):
            if name.startswith(("model/", "optimizer/")):
                tensor = manifest.tensors[name]
                digest.update(json.dumps([name, tensor.dtype, tensor.shape]).encode())
                digest.update(bytes_of(_whole(tensor, files)))
        digest.update(json.dumps(_values(manifest, files), sort_keys=True).encode())
    return digest.hexdigest()


def _whole(entry: TensorEntry, files: Sequence[int]) -> Tensor:
    """The bytes of all parts in their places."""
    whole = torch.empty(entry.shape, dtype=dtype_of(entry.dtype))
    for chunk in entry.chunks:
        raw = torch.empty(chunk_bytes(entry, chunk), dtype=torch.uint8)
        _read(files[chunk.file], bytes_of(raw), chunk.at)
        if chunk.lengths == entry.shape:
            return raw
        target = whole
        for dim, (begin, length) in enumerate(zip(chunk.offsets, chunk.lengths, strict=True)):
            target = target.narrow(dim, begin, length)
        target.copy_(raw.view(whole.dtype).view(chunk.lengths))
    return whole.reshape(-1).view(torch.uint8)


def _read(fd: int, view: memoryview, at: int) -> None:
    done = 0
    while done < len(view):
        got = os.preadv(fd, [view[done:]], at + done)
        if got == 0:
            raise CheckpointDamaged("a file of a checkpoint became shorter while it was read")
        done += got


def _values(manifest: Manifest, files: Sequence[int]) -> dict[str, Any]:
    """What is no tensor of the optimizers' state, by optimizer and parameter; which rank kept it does not count."""
    found: dict[str, Any] = {}
    for name, tree in manifest.trees.items():
        if name == SHARED or name.startswith(_SPREAD):
            text = bytearray(tree.size)
            _read(files[tree.file], memoryview(text), tree.at)
            document = json.loads(text)
            for key, states in (document["values"] if name == SHARED else document).items():
                found.setdefault(key, {}).update(_with_digests(states, manifest, files))
    return found


def _with_digests(words: Any, manifest: Manifest, files: Sequence[int]) -> Any:
    """A tensor that is kept beside a document has a name that says which rank kept it: its bytes stand for it."""
    if isinstance(words, list):
        return [_with_digests(word, manifest, files) for word in words]
    if not isinstance(words, dict):
        return words
    if (name := tensor_of(words)) is not None:
        entry = manifest.tensors[name]
        return [entry.dtype, entry.shape, hashlib.sha256(bytes_of(_whole(entry, files))).hexdigest()]
    return {key: _with_digests(word, manifest, files) for key, word in words.items()}
