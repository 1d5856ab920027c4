"""Checkpoints of torch.distributed.checkpoint (DCP), whose `.metadata` is a pickle: only what describes tensors is let
in, so that nothing is run."""

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from trainer.checkpoint_files.dcp_files import METADATA
from trainer.errors import TrainerError
from trainer.weights.files import Source

_WORDS = "torch.distributed.checkpoint.metadata"
_KNOWN = {
    (_WORDS, "Metadata"), (_WORDS, "TensorStorageMetadata"), (_WORDS, "BytesStorageMetadata"),
    (_WORDS, "ChunkStorageMetadata"), (_WORDS, "TensorProperties"), (_WORDS, "MetadataIndex"), (_WORDS, "StorageMeta"),
    (_WORDS, "_MEM_FORMAT_ENCODING"), ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"), ("torch.serialization", "_get_layout"), ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"), ("pathlib._local", "PosixPath"),
}  # fmt: skip


class _Describing(pickle.Unpickler):
    """Lets in what DCP describes tensors with."""

    def find_class(self, module: str, name: str) -> Any:
        known = (module, name) in _KNOWN or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype))
        if not known:
            raise pickle.UnpicklingError(f"{module}.{name} describes no tensor")
        return super().find_class(module, name)


def open_dcp(folder: Path) -> Source:
    metadata = _read(folder / METADATA)
    described = {
        name: one for name, one in metadata.state_dict_metadata.items() if isinstance(one, TensorStorageMetadata)
    }

    def tensor(name: str) -> Tensor:
        one = described[name]
        target = torch.empty(one.size, dtype=one.properties.dtype)
        planner, reader = DefaultLoadPlanner(), FileSystemReader(folder)
        planner.set_up_planner({name: target}, metadata, is_coordinator=True)
        reader.set_up_storage_reader(metadata, is_coordinator=True)
        try:
            reader.read_data(planner.create_local_plan(), planner).wait()
        except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
            raise TrainerError(f"{folder}: {name} cannot be read: {str(error).splitlines()[0]}") from error
        return target

    return Source({name: tuple(one.size) for name, one in described.items()}, tensor)


def _read(path: Path) -> Metadata:
    try:
        with path.open("rb") as file:
            found = _Describing(file).load()
    except Exception as error:
        raise TrainerError(f"{path}: is none that torch.distributed.checkpoint has written: {error}") from error
    if not isinstance(found, Metadata) or not isinstance(found.storage_data, Mapping):
        raise TrainerError(f"{path}: is none that torch.distributed.checkpoint has written")
    for place in found.storage_data.values():
        if os.path.basename(place.relative_path) != place.relative_path:
            raise TrainerError(f"{path}: expected a file beside it, got {place.relative_path[:80]!r}")
    return found
