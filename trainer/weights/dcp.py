"""Read folders of torch.distributed.checkpoint (DCP) without its reader, which unpickles their metadata."""

import io
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint.tree import dtype_of
from trainer.checkpoint_files.dcp_files import METADATA
from trainer.checkpoint_files.manifest import ITEM_BYTES
from trainer.errors import TrainerError
from trainer.plain_pickle import Name, NotPlain, Record, expect, read_plain
from trainer.weights.files import Source, dense, loaded

_DESCRIPTIONS = "torch.distributed.checkpoint.metadata "
_STORAGE = "torch.distributed.checkpoint.filesystem _StorageInfo"
_MOST_BYTES = 1 << 30  # of `.metadata`: enough for millions of parts


@dataclass(frozen=True, slots=True)
class _Part:
    """A rectangular part of a tensor, at `offsets` with `sizes`: `length` bytes from offset `at` of `file` on."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    at: int  # the offset in the file
    length: int  # in bytes


@dataclass(frozen=True, slots=True)
class _Described:
    """The description of one tensor: type, shape, and the parts of it that files have, which together cover it."""

    dtype: str  # torch's name without the prefix, such as float32
    shape: tuple[int, ...]
    parts: tuple[_Part, ...]


def open_dcp(folder: Path) -> Source:
    """Return the tensors in a folder that torch.distributed.checkpoint wrote. Raises TrainerError for other folders."""
    path = folder / METADATA
    try:
        with path.open("rb") as file:
            described = dict(_tensors(read_plain(file.read(_MOST_BYTES))))
    except NotPlain as error:
        raise TrainerError(f"{path}: was not written by torch.distributed.checkpoint: {error}") from error

    def tensor(name: str) -> Tensor:
        """Return one tensor, put together from its parts."""
        one = described[name]
        parts = [(part, _read(folder, name, one.dtype, part)) for part in one.parts]
        if len(parts) == 1:
            return parts[0][1]
        whole = torch.empty(one.shape, dtype=dtype_of(one.dtype))
        for part, data in parts:
            whole[tuple(slice(at, at + size) for at, size in zip(part.offsets, part.sizes, strict=True))] = data
        return whole

    return Source({name: one.shape for name, one in described.items()}, tensor)


def _read(folder: Path, name: str, dtype: str, part: _Part) -> Tensor:
    """Return `part`, a box of the tensor `name`, read from its bytes in a file of `folder`.

    Raises TrainerError if it cannot be read, or has another type than `dtype` or another shape than the part.
    """
    path = folder / part.file
    if not path.is_file():  # or a FIFO would hold the reader for ever
        raise TrainerError(f"{path}: {name} cannot be read: expected a file")
    with path.open("rb") as file:
        if part.at + part.length > os.fstat(file.fileno()).st_size:
            raise TrainerError(f"{path}: {name} cannot be read: the file is too short; it was cut off or damaged")
        found = dense(path, name, loaded(path, io.BufferedReader(_Slice(file, part.at, part.length)), hint=""))
    if found.dtype != dtype_of(dtype) or found.shape != part.sizes:
        raise TrainerError(
            f"{path}: {name} cannot be read: expected {dtype} of shape {part.sizes}, "
            f"got {str(found.dtype).removeprefix('torch.')} of shape {tuple(found.shape)}"
        )
    return found


class _Slice(io.RawIOBase):
    """A range of bytes of a file, as a file of its own."""

    def __init__(self, file: io.BufferedIOBase, begin: int, length: int) -> None:
        self._file, self._begin, self._length, self._at = file, begin, length, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position in the range, and return it."""
        self._at = max(0, offset + (0, self._at, self._length)[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes of the range into the buffer, and return how many: 0 at the end of the range."""
        view = memoryview(buffer).cast("B")
        self._file.seek(self._begin + self._at)
        count = self._file.readinto(view[: max(0, self._length - self._at)])
        self._at += count
        return count


# -- reading a folder's description: pure functions


def _tensors(metadata: object) -> Iterator[tuple[str, _Described]]:
    """Yield (name, description) of each tensor in the unpickled metadata. Raises NotPlain if it is not as expected."""
    fields = expect(dict, _state(metadata, _DESCRIPTIONS + "Metadata"))
    places = {}
    for key, place in expect(dict, fields.get("storage_data")).items():
        index = expect(dict, _state(key, _DESCRIPTIONS + "MetadataIndex"))
        if index.get("offset") is not None:  # only tensors have one
            places[expect(str, index.get("fqn")), _size(index["offset"])] = place
    for name, one in expect(dict, fields.get("state_dict_metadata")).items():
        if expect(Record, one).name == _DESCRIPTIONS + "TensorStorageMetadata":
            yield expect(str, name), _described(name, expect(dict, one.state), places)


def _described(name: str, tensor: dict[str, Any], places: dict[tuple[str, tuple[int, ...]], object]) -> _Described:
    """Return the description of tensor `name`, given as the fields of its metadata.

    `places` gives where each part is stored, by the tensor's name and the part's offsets. Raises NotPlain if the type
    is not numeric, the metadata has another form, or the parts do not cover the tensor exactly.
    """
    properties = expect(tuple, _state(tensor.get("properties"), _DESCRIPTIONS + "TensorProperties"))
    dtype = expect(Name, properties[0] if properties else None).name.removeprefix("torch ")
    if dtype not in ITEM_BYTES:
        raise NotPlain(f"{name[:80]} is of type {dtype[:80]}, which is not numeric")
    shape, parts = _size(tensor.get("size")), []
    for chunk in expect(list, tensor.get("chunks")):
        fields = expect(dict, _state(chunk, _DESCRIPTIONS + "ChunkStorageMetadata"))
        offsets, sizes = _size(fields.get("offsets")), _size(fields.get("sizes"))
        if not len(offsets) == len(sizes) == len(shape) or any(
            at + size > length for at, size, length in zip(offsets, sizes, shape, strict=True)
        ):
            raise NotPlain(f"{name[:80]} has a part that is not within it")
        if 0 not in sizes:
            parts.append(_Part(offsets, sizes, *_place(name, places.get((name, offsets)))))
    distinct = {part.offsets for part in parts}
    if sum(math.prod(part.sizes) for part in parts) != math.prod(shape) or len(distinct) < len(parts):
        raise NotPlain(f"the parts of {name[:80]} do not cover it")
    return _Described(dtype, shape, tuple(parts))


def _place(name: str, stored: object) -> tuple[str, int, int]:
    """Return (file, offset, length) of a part of tensor `name`, from its record in the metadata.

    Raises NotPlain if the record is not as torch writes it, names a file in another folder, or is of a compressed part.
    """
    fields = expect(dict, _state(stored, _STORAGE))
    file, at, length = fields.get("relative_path"), fields.get("offset"), fields.get("length")
    if fields.get("transform_descriptors"):
        raise NotPlain(f"{name[:80]} was compressed by an extension when it was saved")
    if not isinstance(file, str) or os.path.basename(file) != file or not file.isprintable():
        raise NotPlain(f"expected a file beside it, got {str(file)[:80]!r}")
    return file, _count(at), _count(length)


def _state(record: object, name: str) -> object:
    """Return the state of `record`, which stands for an object of the class `name` that was pickled.

    `name` is the module and the class with a blank between them. Raises NotPlain if it stands for an object of another
    class, or is no record.
    """
    found = expect(Record, record)
    if found.name != name:
        raise NotPlain(f"{found.name[:100].replace(' ', '.')} where {name.replace(' ', '.')} was expected")
    return found.state


def _size(size: object) -> tuple[int, ...]:
    """Return the numbers of a torch.Size that was read from a pickle. Raises NotPlain for other objects."""
    found = expect(Record, size)
    if found.name != "torch Size" or len(found.arguments) != 1:
        raise NotPlain("a size that is no torch.Size")
    return tuple(map(_count, expect(tuple, found.arguments[0])))


def _count(number: object) -> int:
    """Return `number` if it is a whole number that is not negative. Raises NotPlain otherwise."""
    if type(number) is not int or not 0 <= number < 1 << 62:
        raise NotPlain(f"{str(number)[:40]} where a count was expected")
    return number
