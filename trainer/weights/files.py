"""Files of safetensors and of torch.save, mapped into memory: what is not asked for is not read."""

import mmap
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import torch
from torch import Tensor

from trainer.checkpoint.tree import dtype_of
from trainer.checkpoint_files.manifest import ITEM_BYTES
from trainer.checkpoint_files.weight_files import SAFE
from trainer.errors import TrainerError

_NAMES = {code: name for name, code in SAFE.items()}
_MOST_WORDS = 100_000_000  # bytes of a header, as the format has it
_WRAPPERS = ("state_dict", "model_state_dict", "model")  # under which training scripts keep the model's
_ARCHIVE = b"PK\x03\x04"
_HINT = "\nhint: torch.save(model.state_dict(), FILE) writes what can be read without running it"


@dataclass(frozen=True, slots=True)
class Source:
    """Tensors by name, each whole and on the CPU; it may be a view of the file."""

    shapes: Mapping[str, tuple[int, ...]]
    tensor: Callable[[str], Tensor]


class _Safe(msgspec.Struct, frozen=True):
    """What a header says of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct, frozen=True):
    """Which file each tensor of a folder is in, as transformers writes it."""

    weight_map: dict[str, str]


_safe, _index = msgspec.json.Decoder(_Safe), msgspec.json.Decoder(_Index)


def open_safetensors(path: Path) -> Source:
    size = path.stat().st_size
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\xff"))
        if length > min(_MOST_WORDS, size - 8):
            raise TrainerError(f"{path}: is no whole file of safetensors")
        header = file.read(length)
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch wants what may be written to
    try:
        words = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        words.pop("__metadata__", None)
        entries = {name: _safe.decode(one) for name, one in words.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TrainerError(f"{path}: is no file of safetensors: {error}") from error
    for name, one in entries.items():
        _check(path, name, one, size - 8 - length)

    def tensor(name: str) -> Tensor:
        one = entries[name]
        dtype, (begin, end) = dtype_of(_NAMES[one.dtype]), one.data_offsets
        if begin == end:
            return torch.empty(one.shape, dtype=dtype)
        raw = torch.frombuffer(data, dtype=torch.uint8, offset=8 + length + begin, count=end - begin)
        if raw.data_ptr() % dtype.itemsize:
            raw = raw.clone()
        return raw.view(dtype).reshape(one.shape)

    return Source({name: one.shape for name, one in entries.items()}, tensor)


def _check(path: Path, name: str, one: _Safe, size: int) -> None:
    if one.dtype not in _NAMES:
        raise TrainerError(f"{path}: {name}: expected one of {', '.join(_NAMES)}, got {one.dtype[:40]!r}")
    begin, end = one.data_offsets
    wanted = ITEM_BYTES[_NAMES[one.dtype]]
    for length in one.shape:
        wanted *= length
    if min((0, *one.shape)) < 0 or not 0 <= begin <= end <= size or end - begin != wanted:
        raise TrainerError(f"{path}: {name}: its place in the file is not one of its shape: it was cut off or damaged")


def open_torch(path: Path) -> Source:
    """Return the tensors of a file that torch.save wrote, read with weights_only. Raises TrainerError."""
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
    """Return whether the file begins as torch's archives do. zipfile.is_zipfile raises for some damaged ones."""
    with path.open("rb") as file:
        return file.read(len(_ARCHIVE)) == _ARCHIVE


def loaded(path: Path, file: Path | IO[bytes], *, mmap: bool = False, hint: str = _HINT) -> object:
    """Return what torch.load makes of `file`, which is or is in `path`. Raises TrainerError whatever its bytes are."""
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # a damaged file has torch raise errors of nearly every class
        reason = str(error).partition("\n")[0][:300] or type(error).__name__
        raise TrainerError(f"{path}: cannot be read: {reason}{hint}") from error


def dense(path: Path, name: str, found: object) -> Tensor:
    """Return `found` if it is a tensor whose numbers are all there. Raises TrainerError."""
    if not isinstance(found, Tensor) or found.layout != torch.strided or found.is_quantized or found.is_meta:
        raise TrainerError(f"{path}: {name} cannot be read: expected a dense tensor")
    return found


def _tensors(found: Any) -> dict[str, Tensor]:
    if not isinstance(found, dict):
        return {}
    return {name: one for name, one in found.items() if isinstance(name, str) and isinstance(one, Tensor)}


def read_index(path: Path) -> list[Path]:
    """The files beside it in which its tensors are."""
    try:
        names = sorted({*_index.decode(path.read_bytes()).weight_map.values()})
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TrainerError(f"{path}: expected an index of tensors by file: {error}") from error
    for name in names:
        if os.path.basename(name) != name or not name.isprintable() or not (path.parent / name).is_file():
            raise TrainerError(f"{path}: expected a file beside it, got {name[:80]!r}")
    return [path.parent / name for name in names]
