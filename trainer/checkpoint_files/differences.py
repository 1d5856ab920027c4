"""Compare two checkpoints, tensor by tensor and value by value; needs no torch."""

import contextlib
import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any, Self

from trainer.checkpoint_files.catalog import Entry, read_manifest
from trainer.checkpoint_files.durable import open_to_read, read_exactly, unreadable_is_damaged
from trainer.checkpoint_files.manifest import ITEM_BYTES, TensorEntry
from trainer.checkpoint_files.weights import pieces

_TAG = "~"  # of values that JSON does not have
_CLOCKS = frozenset({"shared/objects/progress/seconds"})  # how long it has taken: no two runs are alike in that
_MOST_PATHS = 50
_CODES = {
    "float64": "d", "float32": "f", "float16": "e", "int64": "q", "int32": "i", "int16": "h", "int8": "b",
    "uint64": "Q", "uint32": "I", "uint16": "H", "uint8": "B", "bool": "?",
}  # fmt: skip
_NO_PLACE = object()


@dataclass(frozen=True, slots=True)
class OtherTensor:
    """A tensor that differs: the index of the first different element, and its values in the two checkpoints.

    If type or shape differ, or one checkpoint lacks it, the index is empty, and `one` and `other` describe type and
    shape.
    """

    name: str
    index: tuple[int, ...]
    one: str  # the value in the first checkpoint
    other: str  # the value in the second one


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences between two checkpoints, as `differences` returns them.

    `tensors` counts those compared, `different` names those that differ, `first` describes the first of these, and
    `kept` has the paths of other state that differs, such as `rank/00001/generators/torch`.
    """

    tensors: int  # the number of tensors compared
    different: tuple[str, ...]  # the names of those that differ, in the order of the first checkpoint
    first: OtherTensor | None  # the first of `different`; None: no tensor differs
    kept: tuple[str, ...]  # places of other kept state that differ, as `rank/00001/generators/torch`


def differences(one: Entry, other: Entry) -> Differences:
    """Return what differs between two checkpoints.

    Raises CheckpointDamaged, or CheckpointPartial if files are missing on this disk.
    """
    with _Opened(one) as here, _Opened(other) as there:
        names = [*dict.fromkeys([*here.manifest.tensors, *there.manifest.tensors])]
        found = [(name, where) for name in names if (where := _of_tensor(name, here, there)) is not None]
        kept = tuple(islice(_of_documents(here, there), _MOST_PATHS))
    return Differences(len(names), tuple(name for name, _ in found), found[0][1] if found else None, kept)


class _Opened:
    """A checkpoint whose files are open in a `with` block."""

    def __init__(self, entry: Entry) -> None:
        self._folder = entry.path
        self.manifest = read_manifest(entry)
        self._files: list[int] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            for file in self.manifest.files:
                self._files.append(open_to_read(self._folder / file.name))
                opened.callback(os.close, self._files[-1])
            self._closing = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def read(self, file: int, view: memoryview, at: int) -> None:
        """Fill `view` from offset `at` of the checkpoint's file with this number.

        Raises CheckpointDamaged if the bytes cannot be read.
        """
        with unreadable_is_damaged(self._folder / self.manifest.files[file].name):
            read_exactly(self._files[file], view, at)

    def document(self, name: str) -> Any:
        """Return the parsed JSON document of this name, its bytes if it is no JSON, or _NO_PLACE if there is none.

        Raises CheckpointDamaged if its file cannot be read.
        """
        tree = self.manifest.trees.get(name)
        if tree is None:
            return _NO_PLACE
        content = memoryview(bytearray(tree.size))
        self.read(tree.file, content, tree.at)
        try:
            return json.loads(content.tobytes())
        except (ValueError, RecursionError):
            return content.tobytes()


def _of_tensor(name: str, here: _Opened, there: _Opened) -> OtherTensor | None:
    """Return the first difference of tensor `name` between the two checkpoints, or None if it is equal."""
    one, other = here.manifest.tensors.get(name), there.manifest.tensors.get(name)
    if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
        return OtherTensor(name, (), _described(one), _described(other))
    before = 0
    for mine, theirs in zip_longest(pieces(one, here.read), pieces(other, there.read), fillvalue=b""):
        if mine != theirs:
            return _first_in(name, one, mine, theirs, before)
        before += len(mine)
    return None


def _first_in(name: str, entry: TensorEntry, mine: bytes, theirs: bytes, before: int) -> OtherTensor:
    """Return the first difference between `mine` and `theirs`: bytes of the tensor `name` in the two checkpoints.

    They are not equal, and both begin `before` bytes from the tensor's beginning.
    """
    item = ITEM_BYTES[entry.dtype]
    at = next(at for at in range(0, len(mine), item) if mine[at : at + item] != theirs[at : at + item])
    values = (_value(data[at : at + item], entry.dtype) for data in (mine, theirs))
    return OtherTensor(name, _index((before + at) // item, entry.shape), *values)


def _index(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of the element with this number, in row-major order."""
    found: list[int] = []
    for length in reversed(shape):
        number, at = divmod(number, length)
        found.append(at)
    return tuple(reversed(found))


def _value(data: bytes, dtype: str) -> str:
    """Return one value as text, given its little-endian bytes and the name of its type, such as `bfloat16`.

    If Python cannot read that type, the text is the bytes in hex.
    """
    if dtype == "bfloat16":  # the upper half of a single
        data, dtype = b"\0\0" + data, "float32"
    code = _CODES.get(dtype)
    if code is None or len(data) != struct.calcsize(code):
        return data.hex()
    number = struct.unpack(f"<{code}", data)[0]
    return f"{number:.9g}" if isinstance(number, float) and dtype != "float64" else repr(number)


def _described(entry: TensorEntry | None) -> str:
    """Return the type and shape of a tensor as text for a message; for None, a text that there is no such tensor."""
    return "not there" if entry is None else f"{entry.dtype} of shape {list(entry.shape)}"


def _of_documents(here: _Opened, there: _Opened) -> Iterator[str]:
    """Yield the paths of values that differ between the JSON documents of two checkpoints.

    The time that the training has taken is left out.
    """
    for name in dict.fromkeys([*here.manifest.trees, *there.manifest.trees]):
        for path in _other_leaves(here.document(name), there.document(name), name):
            if path not in _CLOCKS:
                yield path


def _other_leaves(one: Any, other: Any, path: str) -> Iterator[str]:
    """Yield the paths below `path` of values that differ.

    An object that stands for a value of a type that JSON lacks, such as a tuple, is one value.
    """
    if one == other and type(one) is type(other):
        return
    if isinstance(one, dict) and isinstance(other, dict) and _TAG not in one and _TAG not in other:
        for key in dict.fromkeys([*one, *other]):
            yield from _other_leaves(one.get(key, _NO_PLACE), other.get(key, _NO_PLACE), f"{path}/{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for place, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            yield from _other_leaves(mine, theirs, f"{path}/{place}")
    else:
        yield path
