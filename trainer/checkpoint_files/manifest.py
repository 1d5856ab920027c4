"""MANIFEST.json: a list of everything in a checkpoint, as data that is checked before it is used."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import Annotated

import msgspec
import xxhash

from trainer.checkpoint_files.layout import LAST_STEP, is_data_name
from trainer.errors import CheckpointDamaged

FORMAT = 2
_READABLE = (1, FORMAT)  # in the first one each part was listed by itself
# Bytes of one element, by torch's name of the type.
ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
}  # fmt: skip
_PREFIX = b'{"checksum":"'
_MIDDLE = b'","manifest":'
_DIGEST_HEX = 32
_MOST_CUTS, _MOST_PAIRS = 16, 40_000

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Many = Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]
Step = Annotated[int, msgspec.Meta(ge=0, le=LAST_STEP)]
Value = str | int | float | bool | None
BEST_BY = "best_by"  # in `info` of the best one: the name of the value that it is the best by


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name, size and digest of one rank's file."""

    name: str
    size: Size
    digest: str  # XXH3, 128 bits


class Chunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A rectangular part of a tensor and where its bytes are, or a row of such parts as equal ranks have them.

    `file` is the number of its file, `at` the offset there, `offsets` and `lengths` say which box of the tensor it is.
    The `count` parts of a row have one size and lie at the same offset of their files: the next part is `stride` files
    further and follows along `dim`. A thousand shards are one line of the manifest this way.
    """

    file: Size  # index into `files`
    at: Size  # byte offset in it
    offsets: tuple[Size, ...]  # of the first part in the tensor
    lengths: tuple[Size, ...]  # of each part
    count: Many = 1  # of parts in the row
    stride: Many = 1
    dim: Size = 0

    @property
    def files(self) -> range:
        """The indices of the files that hold this row's parts, into the manifest's `files`; one file per part."""
        return range(self.file, self.file + self.count * self.stride, self.stride)

    def part(self, number: int) -> "Chunk":
        """Return the part of this row with the given number, from 0, as a chunk of its own."""
        begin = self.offsets[self.dim] + number * self.lengths[self.dim] if self.offsets else 0
        return Chunk(
            self.file + number * self.stride, self.at, _with_number_at(self.offsets, self.dim, begin), self.lengths
        )


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor of the checkpoint: its type, its whole shape however it is sharded, and where its parts are."""

    dtype: str
    shape: tuple[Size, ...]
    rows: tuple[Chunk, ...] = msgspec.field(name="chunks")  # its parts; one entry may stand for several

    @property
    def chunks(self) -> Iterator[Chunk]:
        """The tensor's parts one by one.

        The field `rows` has them in short: one Chunk there may stand for several parts of equal size.
        """
        for row in self.rows:
            if row.count == 1:
                yield row
            else:
                yield from map(row.part, range(row.count))


class TreeEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON document inside a file, holding state that is not tensors; `at` is its byte offset there."""

    file: Size  # index into the files of the manifest
    at: Size  # byte offset in it
    size: Size


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of a checkpoint, as a list that is saved with it.

    `files` has one file for each rank, and `tensors` and `trees` say by name where in them each tensor and each JSON
    document is. `nonce` is the save's random name. `info` has values such
    as the loss.
    """

    step: Step
    world_size: Size
    nonce: str
    files: tuple[FileEntry, ...]
    tensors: dict[str, TensorEntry]
    trees: dict[str, TreeEntry]
    ranks: tuple[Size, ...] | None = None  # the ranks whose state this is, in a snapshot of one node; None: all ranks
    apart: bool = False  # written on several disks: each has some of the files, and may get copies of the others
    finite: bool = True  # whether each weight is a number: where one is not, it is no checkpoint to go on from
    attempt: int = 0  # the run's attempt that saved it; outside of launch the last one that saved here, or 0
    saved_unix_s: float = 0.0  # for people; order is by step
    info: dict[str, Value] = {}
    format: int = FORMAT  # the number of this form of the manifest

    @property
    def size_bytes(self) -> int:
        """The size of all files together."""
        return sum(file.size for file in self.files)


# Made here, by one thread: msgspec ends the process where two threads decode a class for the first time at once.
_manifest = msgspec.json.Decoder(Manifest)


def encode(manifest: Manifest) -> bytes:
    """Return the manifest as bytes with its checksum."""
    body = msgspec.json.encode(manifest)
    return _PREFIX + _digest(body) + _MIDDLE + body + b"}\n"


def decode(data: bytes) -> Manifest:
    """Return the manifest if its checksum is right and it is consistent. Raises CheckpointDamaged."""
    begin = len(_PREFIX) + _DIGEST_HEX
    body = data[begin + len(_MIDDLE) : -2]
    wanted = _PREFIX + _digest(body) + _MIDDLE + body + b"}\n"
    if data != wanted:
        raise CheckpointDamaged("manifest: its checksum is not the one that was written down")
    try:
        manifest = _manifest.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointDamaged(f"manifest: not one of this version: {error}") from error
    if manifest.format not in _READABLE:
        raise CheckpointDamaged(f"manifest: expected format {FORMAT} or an older one, got {manifest.format}")
    for problem in _problems(manifest):
        raise CheckpointDamaged(f"manifest: {problem}")
    return manifest


def chunk_bytes(entry: TensorEntry, chunk: Chunk) -> int:
    """Return the size in bytes of the part `chunk` of the tensor `entry`.

    If the Chunk stands for a row of several parts, which are equal in size, it is the size of each.
    """
    return math.prod(chunk.lengths) * ITEM_BYTES[entry.dtype]


def _digest(body: bytes) -> bytes:
    """Return the checksum of a manifest's body."""
    return xxhash.xxh3_128_hexdigest(body).encode()


def _problems(manifest: Manifest) -> Iterable[str]:
    """Yield as text each inconsistency in a manifest, such as parts that overlap or lie outside their file."""
    names = [file.name for file in manifest.files]
    if len(set(names)) != len(names) or not all(is_data_name(name) for name in names):
        yield f"expected one file per rank, got {names[:5]}"
        return
    for name, tree in manifest.trees.items():
        if tree.file >= len(names) or tree.at + tree.size > manifest.files[tree.file].size:
            yield f"{name}: lies outside of its file"
    room = _smallest_file(manifest.files)
    for name, entry in manifest.tensors.items():
        if entry.dtype not in ITEM_BYTES:
            yield f"{name}: unknown type {entry.dtype!r}"
        elif problem := _tensor_problem(manifest, entry, room):
            yield f"{name}: {problem}"


def _tensor_problem(manifest: Manifest, entry: TensorEntry, room: Callable[[Chunk], int]) -> str | None:
    """Return as text what is wrong with a tensor's parts, or None if nothing is.

    `room` returns, for a Chunk, the size of the smallest of the files that its parts are in.
    """
    for row in entry.rows:
        if len(row.offsets) != len(entry.shape) or len(row.lengths) != len(entry.shape):
            return "a part has another number of dimensions than the whole"
        if row.count > 1 and row.dim >= len(entry.shape):
            return "a row of parts follows no dimension"
        if any(o + n > whole for o, n, whole in zip(row.offsets, _lengths(row), entry.shape, strict=True)):
            return "a part reaches over the edge"
        if row.files[-1] >= len(manifest.files):
            return "lies in a file that is not listed"
        if row.at + chunk_bytes(entry, row) > room(row):
            return "lies outside of its file"
    covered = sum(row.count * math.prod(row.lengths) for row in entry.rows)
    if manifest.ranks is None and covered != math.prod(entry.shape):
        return "its parts are not the whole"
    return _overlap_problem(entry.rows)


def _lengths(row: Chunk) -> tuple[int, ...]:
    """Return the lengths, by dimension, of the box that all parts of `row` cover together.

    A row has one part, or equal ones side by side along its `dim`.
    """
    return row.lengths if row.count == 1 else _with_number_at(row.lengths, row.dim, row.count * row.lengths[row.dim])


def _with_number_at(numbers: tuple[int, ...], at: int, number: int) -> tuple[int, ...]:
    """Return offsets or lengths with the one at index `at` replaced by `number`; () stays (), for a scalar."""
    return (*numbers[:at], number, *numbers[at + 1 :]) if numbers else numbers


def _smallest_file(files: Sequence[FileEntry]) -> Callable[[Chunk], int]:
    """Return a function that gives the size in bytes of the smallest of the files that a Chunk refers to.

    A Chunk is one part of a tensor in one file, or a row of equal parts, each in a file of its own. `files` are all
    files of the checkpoint. The function caches its answers.
    """
    sizes, known = [file.size for file in files], dict[range, int]()

    def room(row: Chunk) -> int:
        """Return the size of the smallest file of this row."""
        if row.files not in known:
            known[row.files] = min(sizes[row.file : row.files.stop : row.stride])
        return known[row.files]

    return room


def _overlap_problem(rows: Iterable[Chunk]) -> str | None:
    """Return a problem as text if parts of a tensor, its `rows`, overlap; None if none do.

    In a whole checkpoint the sizes of all parts add up to the tensor's, so that with an overlap some elements would be
    in no part. Straight cuts across the tensor's dimensions first divide the parts into groups, and separate all parts
    of a tensor that was sharded. Only parts in one group are compared pairwise; if that needs over 40,000 pairs, this
    is the problem, so that no manifest takes long.
    """
    groups = [[Chunk(0, 0, row.offsets, _lengths(row)) for row in rows if 0 not in row.lengths]]
    for _ in range(_MOST_CUTS):
        groups = [part for group in groups for part in _split_by_cuts(group) if len(part) > 1]
    if sum(len(group) ** 2 for group in groups) > _MOST_PAIRS:
        return "it has too many parts to check that none overlap"
    met = any(_overlap(*pair) for group in groups for pair in combinations(group, 2))
    return "its parts overlap" if met else None


def _split_by_cuts(group: list[Chunk]) -> list[list[Chunk]]:
    """Return the chunks, which are boxes of one tensor, in groups that straight cuts across a dimension separate.

    A cut is an index that no chunk spans. The first dimension that has one is taken, with all its
    cuts; if none has, all chunks are one group.
    """
    dimensions = range(len(group[0].offsets) if group else 0)
    cuts = (_cut(group, dimension) for dimension in dimensions)
    return next((parts for parts in cuts if len(parts) > 1), [group])


def _cut(group: list[Chunk], dimension: int) -> list[list[Chunk]]:
    """Return the chunks in groups that straight cuts across this dimension separate; a cut crosses no chunk."""
    parts: list[list[Chunk]] = []
    reach = 0
    for begin, _, chunk in sorted((chunk.offsets[dimension], at, chunk) for at, chunk in enumerate(group)):
        if not parts or begin >= reach:
            parts.append([])
        parts[-1].append(chunk)
        reach = max(reach, begin + chunk.lengths[dimension])
    return parts


def _overlap(one: Chunk, other: Chunk) -> bool:
    """Return whether two chunks have an element of their tensor in common; each is a single box of it (`count` 1)."""
    parts = zip(one.offsets, one.lengths, other.offsets, other.lengths, strict=True)
    return all(a < b + m and b < a + n for a, n, b, m in parts)
