"""Open safetensors and torch.save files as memory maps, of which only requested tensors are read."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import torch
from torch import Tensor

from trainer.errors import TrainerError
from trainer.extras import install_hint

_WRAPPERS = ("state_dict", "model_state_dict", "model")  # under which training scripts keep the model's
_ARCHIVE = b"PK\x03\x04"
_HINT = "\nhint: torch.save(model.state_dict(), FILE) writes what can be read without running it"


@dataclass(frozen=True, slots=True)
class Source:
    """Tensors by name: their shapes, and a function that returns one, whole and on the CPU.

    A tensor may share memory with its file.
    """

    shapes: Mapping[str, tuple[int, ...]]
    tensor: Callable[[str], Tensor]


class _Index(msgspec.Struct, frozen=True):
    """The index of a folder in the format of transformers: the file of each tensor."""

    weight_map: dict[str, str]  # by the tensor's name, the file's name in the folder


_index = msgspec.json.Decoder(_Index)


def open_safetensors(path: Path) -> Source:
    """Return the tensors of a safetensors file, mapped into memory. Raises TrainerError if it cannot be read."""
    try:
        from safetensors import SafetensorError, safe_open  # late: of use only where such a file is loaded
    except ImportError as error:
        raise TrainerError(f"{path}: safetensors is not installed\n{install_hint('train')}") from error
    try:
        file = safe_open(path, framework="pt")
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - it is no dict
    except (SafetensorError, UnicodeError) as error:
        raise TrainerError(f"{path}: is not a complete safetensors file: {error}") from error

    def tensor(name: str) -> Tensor:
        """Return one tensor. Raises TrainerError if it cannot be read."""
        try:
            found: Tensor = file.get_tensor(name)
        except Exception as error:  # of a type that torch has not, or of a damaged file
            raise TrainerError(f"{path}: {name} cannot be read: {error}") from error
        return found

    return Source(shapes, tensor)


def open_torch(path: Path) -> Source:
    """Return the tensors of a file of torch.save, read with weights_only.

    The file holds a dict of tensors by name, or one that has such a dict under a usual key such as `state_dict`. Raises
    TrainerError if no tensors are found.
    """
    found = loaded(path, path, mmap=_is_archive(path))
    tensors = _tensors(found)
    for wrapper in _WRAPPERS:
        if not tensors and isinstance(found, dict):
            tensors = _tensors(found.get(wrapper))
    if not tensors:
        raise TrainerError(f"{path}: expected tensors by name, found {type(found).__name__}{_HINT}")
    shapes = {name: tuple(one.shape) for name, one in tensors.items()}
    return Source(shapes, lambda name: dense(path, name, tensors[name]))


def _is_archive(path: Path) -> bool:
    """Return whether the file begins like an archive of torch.save; zipfile.is_zipfile raises for some damaged ones."""
    with path.open("rb") as file:
        return file.read(len(_ARCHIVE)) == _ARCHIVE


def loaded(path: Path, file: Path | IO[bytes], *, mmap: bool = False, hint: str = _HINT) -> object:
    """Return the object that torch.load reads from `file`, without running code from it.

    `file` is `path` itself or an open part of that file; errors name `path`. With `mmap`, tensors are mapped into
    memory, not read. Raises TrainerError, whose text ends with `hint`, if the file cannot be read or has bad content.
    """
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # a damaged file has torch raise errors of nearly every class
        reason = str(error).partition("\n")[0][:300] or type(error).__name__
        raise TrainerError(f"{path}: cannot be read: {reason}{hint}") from error


def dense(path: Path, name: str, found: object) -> Tensor:
    """Return `found` if it is a dense tensor with all its data, else raise TrainerError; `name` is the tensor's."""
    if not isinstance(found, Tensor) or found.layout != torch.strided or found.is_quantized or found.is_meta:
        raise TrainerError(f"{path}: {name} cannot be read: expected a dense tensor")
    return found


def _tensors(found: Any) -> dict[str, Tensor]:
    """Return the tensors in a dict, and leave out everything else."""
    if not isinstance(found, dict):
        return {}
    return {name: one for name, one in found.items() if isinstance(name, str) and isinstance(one, Tensor)}


def read_index(path: Path) -> list[Path]:
    """Return the paths of all files that a Hugging Face index, such as `model.safetensors.index.json`, names.

    They have to lie in the folder of the index. Raises TrainerError if the index cannot be read or a file is missing.
    """
    try:
        names = sorted({*_index.decode(path.read_bytes()).weight_map.values()})
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TrainerError(f"{path}: expected an index of tensors by file: {error}") from error
    for name in names:
        if os.path.basename(name) != name or not name.isprintable() or not (path.parent / name).is_file():
            raise TrainerError(f"{path}: expected a file beside it, got {name[:80]!r}")
    return [path.parent / name for name in names]
