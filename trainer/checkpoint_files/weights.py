"""Read the weights of a checkpoint, each tensor as one stream of bytes, however it was sharded; needs no torch."""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from trainer.checkpoint_files.durable import hash_file, open_to_read, read_exactly, unreadable_is_damaged
from trainer.checkpoint_files.float_types import FLOATS, convert
from trainer.checkpoint_files.manifest import ITEM_BYTES, Chunk, Manifest, TensorEntry
from trainer.errors import TrainerError

_OF_MODEL, _OF_AVERAGE, _SHARED = "model/", "average/", "shared"
_PIECE_BYTES = 4 << 20  # a multiple of every element's size
_MOST_BYTES = 1 << 28


class Place(NamedTuple):
    """A range of bytes of one of the checkpoint's files, given by its number in the manifest."""

    file: int
    at: int
    size: int


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor as it is exported: its name, type and shape."""

    name: str
    dtype: str  # torch's name of it without `torch.`, such as bfloat16
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The size of the exported tensor in bytes."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


class Weights:
    """The parameters and buffers of one model in a committed checkpoint; use it in a `with` block."""

    def __init__(self, folder: Path, manifest: Manifest, model: str | None = None, dtype: str | None = None) -> None:
        """Choose `model` where several were kept, and the `dtype` that floating-point tensors become."""
        self._folder, self._manifest = folder, manifest
        self._entries = entries_of(manifest, model)
        self._files: dict[int, int] = {}
        self.tied: dict[str, str] = {}  # other names of tensors that are kept once
        self.tensors = {
            name: Weight(name, dtype if dtype is not None and entry.dtype in FLOATS else entry.dtype, entry.shape)
            for name, entry in self._entries.items()
        }
        self._model = model

    def __enter__(self) -> Self:
        wanted = {file for entry in self._entries.values() for row in entry.rows for file in row.files}
        shared = self._manifest.trees.get(_SHARED)
        wanted |= {shared.file} if shared is not None else set()
        with contextlib.ExitStack() as opened:
            for number in sorted(wanted):
                self._files[number] = open_to_read(self._folder / self._manifest.files[number].name)
                opened.callback(os.close, self._files[number])
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def verify(self, after_file: Callable[[], None] = lambda: None) -> None:
        """Read the files that hold the weights, and compare each one's size and digest with the manifest.

        Raises CheckpointDamaged at the first that differs. `after_file` is called after each file.
        """
        for number in self._files:
            file = self._manifest.files[number]
            hash_file(self._folder / file.name, file.size, file.digest)
            after_file()
        self.tied = self._tied()

    def data(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of the tensor `name` in order, a few megabytes at a time, converted to the type to export.

        For floating-point values that is the `dtype` given to `__init__`, if any, else the saved type. Raises
        CheckpointDamaged or OSError if the tensor's files cannot be read.
        """
        entry, wanted = self._entries[name], self.tensors[name].dtype
        for piece in pieces(entry, self._read):
            yield piece if wanted == entry.dtype else convert(piece, entry.dtype, wanted)

    def _read(self, file: int, view: memoryview, at: int) -> None:
        """Fill `view` from offset `at` of the file with this number.

        Raises CheckpointDamaged if the bytes cannot be read.
        """
        with unreadable_is_damaged(self._folder / self._manifest.files[file].name):
            read_exactly(self._files[file], view, at)

    def _tied(self) -> dict[str, str]:
        """Return the other names of tied weights, each with the name under which it is saved.

        Raises CheckpointDamaged if the file that has them is too short.
        """
        tree = self._manifest.trees.get(_SHARED)
        if tree is None or tree.size > _MOST_BYTES:
            return {}
        content = memoryview(bytearray(tree.size))
        self._read(tree.file, content, tree.at)
        try:
            noted = json.loads(content.tobytes()).get("tied", {})
        except (ValueError, AttributeError, RecursionError):
            return {}
        found = noted.items() if isinstance(noted, dict) else ()
        prefix = _OF_MODEL if self._model is None else f"{_OF_MODEL}{self._model}/"
        names = {
            other.removeprefix(prefix): kept.removeprefix(prefix) for other, kept in found
            if isinstance(kept, str) and other.startswith(prefix) and kept.startswith(prefix)
        }  # fmt: skip
        return {other: kept for other, kept in names.items() if kept in self.tensors and other not in self.tensors}


def name_of_average(name: str) -> str:
    """Return the name `average/NAME` under which the average of the parameter `name`, `model/NAME`, is saved."""
    return _OF_AVERAGE + name.removeprefix(_OF_MODEL)


def averaged(manifest: Manifest) -> Manifest:
    """Return the manifest with each weight replaced by its average (EMA), if it has one."""
    tensors = manifest.tensors
    instead = {name: tensors.get(name_of_average(name), entry) for name, entry in tensors.items()}
    return msgspec.structs.replace(manifest, tensors=instead)


def entries_of(manifest: Manifest, model: str | None = None) -> dict[str, TensorEntry]:
    """Return a model's tensors by their names in it.

    `model` is its name in the checkpoint; None means the only model of a checkpoint that names none. Raises
    TrainerError if the checkpoint has no such model, or names models and `model` is None.
    """
    kept = {
        name.removeprefix(_OF_MODEL): entry for name, entry in manifest.tensors.items() if name.startswith(_OF_MODEL)
    }
    if not kept:
        raise TrainerError("expected a model in the checkpoint, found none")
    models = sorted({name.partition("/")[0] for name in kept if "/" in name})
    if model is None and not models:
        return kept
    if model not in models:
        named, hint = ", ".join(models) or "one, which has no name", "\nhint: --model NAME" if models else ""
        raise TrainerError(f"expected one of the models that are kept, got {model or 'none'}; they are: {named}{hint}")
    return {name.removeprefix(f"{model}/"): entry for name, entry in kept.items() if name.startswith(f"{model}/")}


def pieces(entry: TensorEntry, read: Callable[[int, memoryview, int], None]) -> Iterator[bytes]:
    """Yield the tensor's bytes in the order of its elements, in pieces of one size except the last.

    `read(file, view, at)` fills `view` from offset `at` of the file with this number in the manifest.
    """
    buffer = memoryview(bytearray(_PIECE_BYTES))
    held = 0
    for file, at, size in places(entry):
        done = 0
        while done < size:
            some = min(size - done, _PIECE_BYTES - held)
            read(file, buffer[held : held + some], at + done)
            done, held = done + some, held + some
            if held == _PIECE_BYTES:
                yield bytes(buffer)
                held = 0
    if held:
        yield bytes(buffer[:held])


# -- where the bytes of a tensor are: pure


def places(entry: TensorEntry) -> Iterator[Place]:
    """Yield the ranges of the tensor's bytes in the checkpoint's files, in the order of its elements.

    Ranges that follow each other in a file are joined.
    """
    last: Place | None = None
    for place in _places(entry):
        if last is not None and (last.file, last.at + last.size) == (place.file, place.at):
            last = Place(last.file, last.at, last.size + place.size)
            continue
        if last is not None:
            yield last
        last = place
    if last is not None:
        yield last


def _places(entry: TensorEntry) -> Iterator[Place]:
    """Yield where the tensor's bytes are, as ranges of the checkpoint's files in the order of the elements.

    Ranges that adjoin are not joined; a tensor without elements has none.
    """
    parts = [(chunk, chunk.at) for chunk in entry.chunks if 0 not in chunk.lengths]
    return _ranges_of_block(parts, 0, entry.shape, ITEM_BYTES[entry.dtype]) if parts else iter(())


def _ranges_of_block(parts: Sequence[tuple[Chunk, int]], dim: int, shape: Sequence[int], item: int) -> Iterator[Place]:
    """Yield where the bytes of a block of a tensor are, as ranges of files in the order of the elements.

    A block has all elements with the same indexes in the dimensions before `dim`, such as one row of a matrix for
    `dim` 1. `parts` are the saved parts that cover it, each with the offset in its file where the block begins. `shape`
    is that of the tensor, and `item` the size of an element in bytes.
    """
    chunk, at = parts[0]
    if len(parts) == 1 and tuple(chunk.lengths[dim:]) == tuple(shape[dim:]):
        yield Place(chunk.file, at, math.prod(shape[dim:]) * item)
        return
    edges = {edge for one, _ in parts for edge in (one.offsets[dim], one.offsets[dim] + one.lengths[dim])}
    for begin, end in pairwise(sorted(edges)):
        here = [
            (one, at + (begin - one.offsets[dim]) * _row(one, dim, item))
            for one, at in parts
            if one.offsets[dim] <= begin < one.offsets[dim] + one.lengths[dim]
        ]
        yield from _ranges_of_rows(here, dim, end - begin, shape, item)


def _ranges_of_rows(
    parts: Sequence[tuple[Chunk, int]], dim: int, rows: int, shape: Sequence[int], item: int
) -> Iterator[Place]:
    """Yield the ranges of bytes that hold `rows` successive indexes along dimension `dim` of a tensor, in order.

    All these indexes are in the same saved parts. Each of `parts` comes with the offset in its file where the first of
    the indexes begins. `shape` is that of the tensor, and `item` the size of an element in bytes.
    """
    chunk, at = parts[0]
    if len(parts) == 1 and tuple(chunk.lengths[dim + 1 :]) == tuple(shape[dim + 1 :]):
        yield Place(chunk.file, at, rows * _row(chunk, dim, item))
        return
    for row in range(rows):
        yield from _ranges_of_block([(one, at + row * _row(one, dim, item)) for one, at in parts], dim + 1, shape, item)


def _row(chunk: Chunk, dim: int, item: int) -> int:
    """Return the distance in bytes between neighbours along dimension `dim` in this chunk.

    The chunk is stored row by row; an element has `item` bytes.
    """
    return math.prod(chunk.lengths[dim + 1 :]) * item
