"""Digest a checkpoint's model and optimizer, in blocks of rows of tensors: equal values give equal digests."""

import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import torch

from trainer.checkpoint.contents import SHARED, optimizer_of_rank
from trainer.checkpoint.filling import Scratch, piece_of, places
from trainer.checkpoint.planning import Need, needed
from trainer.checkpoint.save_group import SaveGroup
from trainer.checkpoint.staging import bytes_of
from trainer.checkpoint.tree import dtype_of, tensor_of
from trainer.checkpoint_files.catalog import Entry, missing, read_manifest, verify
from trainer.checkpoint_files.durable import hash_file, open_to_read, read_exactly
from trainer.checkpoint_files.manifest import ITEM_BYTES, Manifest, TensorEntry
from trainer.errors import CheckpointDamaged

Read = Callable[[int, memoryview, int], object]  # of a file by its number, into this, from there on
OF_TRAINING = ("average/", "model/", "optimizer/")
_BLOCK_BYTES = 64 << 20

_SPREAD = optimizer_of_rank(0).removesuffix("00000")
_REPORT_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class _Request:
    """Rank 0's request for `size` bytes of a file that another rank has.

    `giver` is the place of that rank in the save group, `file` the file's number in the manifest, `at` the offset in
    it.
    """

    giver: int  # the place of the rank that sends them
    file: int  # its number in the manifest
    at: int
    size: int


_NOTHING = _Request(-1, 0, 0, 0)  # a request to nobody, which shows that rank 0 still works


def fingerprint(entry: Entry, after_part: Callable[[], None] = lambda: None) -> str:
    """Return the SHA-256 over all tensors and the optimizer's values that are no tensors, as hex text.

    It covers names, types, shapes and block digests in the order of names. Every file is read and compared with its
    digest in the manifest. `after_part` is called after each file and block. Raises CheckpointDamaged or OSError.
    """
    manifest = verify(entry, after_file=after_part)
    with _opened(entry, manifest) as files:
        return _digest_all(manifest, lambda number, view, at: read_exactly(files[number], view, at), after_part)


def fingerprint_together(
    entry: Entry, save_group: SaveGroup, still_here: Callable[[], None], report_every_s: float = _REPORT_EVERY_S
) -> str:
    """Return on all ranks the SHA-256 of the checkpoint `entry`, the same as `fingerprint`; all ranks call it.

    The ranks divide the reading among them. On each, `still_here`, which tells launch that the rank does not hang, is
    called about every `report_every_s` seconds or more often. Raises CheckpointDamaged on all ranks if some rank cannot
    read its part or finds it damaged.
    """
    return (_digest_over_disks if save_group.separate_disks else _digest_on_shared_disk)(
        entry, save_group, still_here, report_every_s
    )


def _digest_on_shared_disk(
    entry: Entry, save_group: SaveGroup, still_here: Callable[[], None], report_every_s: float
) -> str:
    """Divide the files and blocks among the ranks, and return on all ranks the digest that rank 0 combines.

    All ranks call it. On each, `still_here`, which reports that the rank is alive, is called about every
    `report_every_s` seconds or more often. Raises CheckpointDamaged on all ranks if some rank cannot read its part or
    finds it damaged.
    """
    manifest, problem = save_group.broadcast(_read_manifest(entry) if save_group.is_first else (None, ""))
    if manifest is None:
        raise CheckpointDamaged(problem)
    digests: dict[int, bytes] = {}
    problem, going, work = "", True, _own_part(entry, manifest, save_group, digests)
    while save_group.maximum(int(going))[0]:
        end = time.monotonic() + report_every_s
        try:
            while going := next(work, False):
                if time.monotonic() >= end:
                    break
        except (CheckpointDamaged, OSError) as error:
            problem, going = str(error), False
        still_here()
    _raise_first(save_group.all_gather(problem))
    replies = save_group.reduce(msgspec.msgpack.encode(digests), _merged)
    mark = ""
    if replies is not None:
        try:
            with _opened(entry, manifest, _files_with_values(manifest)) as files:
                read = partial(_read, files)
                mark = _combine(
                    manifest, msgspec.msgpack.decode(replies, type=dict[int, bytes]), _values(manifest, read)
                )
        except (CheckpointDamaged, OSError) as error:
            problem = str(error)
    mark, problem = save_group.broadcast((mark, problem))
    _raise_first([problem])
    return mark


def _read_manifest(entry: Entry) -> tuple[Manifest | None, str]:
    """Return the checkpoint's manifest and "", or None and the text of the error why it cannot be read."""
    try:
        return read_manifest(entry), ""
    except (CheckpointDamaged, OSError) as error:
        return None, str(error)


def _own_part(entry: Entry, manifest: Manifest, save_group: SaveGroup, digests: dict[int, bytes]) -> Iterator[bool]:
    """Verify this rank's share of the files, then store the digests of its share of the blocks in `digests`.

    The keys of `digests` are the blocks' positions in `blocks(manifest)`. Yields True after each file and block, so
    that the caller can pause the work there. Raises CheckpointDamaged or OSError if a file is damaged or cannot be
    read.
    """
    many = len(save_group.ranks)
    for file in manifest.files[save_group.me :: many]:
        hash_file(entry.path / file.name, file.size, file.digest)
        yield True
    mine = list(enumerate(blocks(manifest)))[save_group.me :: many]
    for number, block in mine:
        with _opened(entry, manifest, {need.chunk.file for need in block.needs()}) as files:
            digests[number] = block.digest(partial(_read, files))
        yield True


def _merged(value: Sequence[bytes]) -> bytes:
    """Return msgpack dicts of several ranks, {number of a block: its digest}, as one; no two ranks have the same block.

    This function is passed to `SaveGroup.reduce`, which merges the dicts of all ranks by it.
    """
    whole: dict[int, bytes] = {}
    for word in value:
        whole |= msgspec.msgpack.decode(word, type=dict[int, bytes])
    return msgspec.msgpack.encode(whole)


def _read(files: Mapping[int, int], number: int, view: memoryview, at: int) -> None:
    """Fill `view` from offset `at` of the file with this number; `files` has descriptors by number.

    Raises CheckpointDamaged if the file is too short.
    """
    read_exactly(files[number], view, at)


def _keep_alive(
    save_group: SaveGroup, still_here: Callable[[], None], message: object, every_s: float
) -> Callable[[], None]:
    """Return a function for rank 0 to call after each block: it calls `still_here`.

    If `every_s` seconds have passed since the last time, it also broadcasts `message`, which requests nothing, so that
    the other ranks, which wait for requests, report progress too.
    """
    sent_at = time.monotonic()

    def after_part() -> None:
        nonlocal sent_at
        still_here()
        if time.monotonic() >= sent_at + every_s:
            save_group.broadcast(message)
            sent_at = time.monotonic()

    return after_part


def _digest_over_disks(
    entry: Entry, save_group: SaveGroup, still_here: Callable[[], None], report_every_s: float
) -> str:
    """Return on all ranks, which all call it, the digest of files that are on several disks.

    Rank 0 requests from the others the bytes that its own disk lacks. `still_here` is called on each rank at intervals
    of about `report_every_s` seconds. Raises CheckpointDamaged on all ranks if a file is damaged or unreadable.
    """
    manifest, problem, held = None, "", set[int]()
    if save_group.acts_for_disk:
        try:
            manifest = verify(entry, partial=True, after_file=still_here)
            away = missing(entry.path, manifest)
            held = {number for number, file in enumerate(manifest.files) if file.name not in away}
        except (CheckpointDamaged, OSError) as error:
            problem = str(error)
    replies = save_group.all_gather((problem, held))
    _raise_first(problem for problem, _ in replies)
    with _opened(entry, manifest) if manifest else contextlib.nullcontext(dict[int, int]()) as files:
        if save_group.is_first and manifest is not None:
            after_block = _keep_alive(save_group, still_here, _NOTHING, report_every_s)
            mark, problem = _digest_on_first(manifest, files, save_group, [held for _, held in replies], after_block)
        else:
            mark, problem = _serve_first(files, save_group, still_here)
    _raise_first(save_group.all_gather(problem))
    return mark


def _digest_on_first(
    manifest: Manifest,
    files: Mapping[int, int],
    save_group: SaveGroup,
    held: Sequence[set[int]],
    after_block: Callable[[], None],
) -> tuple[str, str]:
    """Compute the fingerprint on rank 0; return it and "", or "" and the text of the error.

    The other ranks call `_serve_first` meanwhile, and are told the fingerprint. Files are numbered as in the manifest:
    `files` has the descriptors of those on rank 0's own disk by number, and `held` has, for each rank, the numbers of
    those that it can send. `after_block` is called after each block.
    """

    def read(number: int, view: memoryview, at: int) -> None:
        """Fill `view` from this disk, or from the rank that has the file."""
        if number in files:
            read_exactly(files[number], view, at)
        elif view:
            save_group.broadcast(_Request(givers[number], number, at, len(view)))
            save_group.receive(view, givers[number])

    mark = problem = ""
    givers = {number: place for place, numbers in reversed(list(enumerate(held))) for number in numbers}
    try:
        if away := [file.name for number, file in enumerate(manifest.files) if number not in givers]:
            raise CheckpointDamaged(f"step {manifest.step}: {', '.join(away)} on no disk")
        mark = _digest_all(manifest, read, after_block)
    except Exception as error:  # noqa: BLE001 - the others wait for a message, whatever the error is
        problem = f"{type(error).__name__}: {error}"
    save_group.broadcast(mark)
    return mark, problem


def _serve_first(files: Mapping[int, int], save_group: SaveGroup, still_here: Callable[[], None]) -> tuple[str, str]:
    """Send the bytes that rank 0 asks for until it sends the fingerprint.

    Returns the fingerprint, and why this rank could not read some of the bytes, or "" if it could. `files` are the
    descriptors of the files on this disk, by their numbers in the manifest. `still_here`, which tells launch that the
    rank does not hang, is called at each message. Unreadable bytes are sent as zeros.
    """
    problem = ""
    wanted: _Request | str = ""
    while isinstance(wanted := save_group.broadcast(wanted), _Request):
        still_here()
        if wanted.giver == save_group.me:
            view = memoryview(bytearray(wanted.size))
            try:
                read_exactly(files[wanted.file], view, wanted.at)
            except (CheckpointDamaged, OSError) as error:
                problem = str(error)
            save_group.send(view)
    return wanted, problem


def _raise_first(problems: Iterable[str]) -> None:
    """Raise CheckpointDamaged with the first problem that is not empty; do nothing if all are."""
    for problem in problems:
        if problem:
            raise CheckpointDamaged(problem)


def _digest_all(manifest: Manifest, read: Read, after_block: Callable[[], None]) -> str:
    """Return the fingerprint of the checkpoint that `manifest` describes, computed by this process alone.

    `read(file, view, at)` fills `view` with the bytes from offset `at` of file number `file` of the manifest.
    `after_block` is called after each block.
    """
    digests: dict[int, bytes] = {}
    for number, block in enumerate(blocks(manifest)):
        digests[number] = block.digest(read)
        after_block()
    return _combine(manifest, digests, _values(manifest, read))


def _combine(manifest: Manifest, digests: Mapping[int, bytes], values: Mapping[str, Any]) -> str:
    """Return the checkpoint's fingerprint, one digest of its tensors' names and types, all blocks and `values`.

    `digests` are those of all blocks, by their positions in `blocks(manifest)`; `values` is the optimizers' state that
    is no tensors.
    """
    whole = hashlib.sha256()
    for name in sorted(manifest.tensors):
        if name.startswith(OF_TRAINING):
            tensor = manifest.tensors[name]
            whole.update(json.dumps([name, tensor.dtype, tensor.shape]).encode())
    for number in range(len(digests)):
        whole.update(digests[number])
    whole.update(json.dumps(values, sort_keys=True).encode())
    return whole.hexdigest()


@contextlib.contextmanager
def _opened(entry: Entry, manifest: Manifest, wanted: Collection[int] | None = None) -> Iterator[dict[int, int]]:
    """Yield the descriptors of a checkpoint's files, by their numbers in the manifest.

    `wanted` has the numbers of the files to open (None: all that are on this disk). They are closed at the end of the
    context. Raises CheckpointDamaged or OSError if one cannot be opened.
    """
    if wanted is None:
        away = set(missing(entry.path, manifest))
        wanted = [number for number, file in enumerate(manifest.files) if file.name not in away]
    with contextlib.ExitStack() as opened:
        files = {}
        for number in wanted:
            files[number] = open_to_read(entry.path / manifest.files[number].name)
            opened.callback(os.close, files[number])
        yield files


def _files_with_values(manifest: Manifest) -> set[int]:
    """Return the numbers of the files that hold optimizer state other than tensors, such as step counts."""
    spread = {tree.file for name, tree in manifest.trees.items() if _has_values(name)}
    beside = [
        entry for name, entry in manifest.tensors.items() if name.startswith((f"state/{SHARED}/", f"state/{_SPREAD}"))
    ]
    return spread | {number for entry in beside for row in entry.rows for number in row.files}


def _has_values(document: str) -> bool:
    """Return whether the JSON document `document` of a checkpoint can have optimizer state that is no tensor.

    Only the documents of single ranks' optimizers can, and the one with the state that all ranks share.
    """
    return document == SHARED or document.startswith(_SPREAD)


def _values(manifest: Manifest, read: Read) -> dict[str, Any]:
    """Return the optimizers' state that is not tensors, by optimizer and parameter, whichever rank saved it.

    `read(file, view, at)` fills `view` with the bytes from offset `at` of file number `file` of the manifest.
    """
    found: dict[str, Any] = {}
    for name, tree in manifest.trees.items():
        if _has_values(name):
            text = bytearray(tree.size)
            read(tree.file, memoryview(text), tree.at)
            document = json.loads(text)
            for key, states in (document["values"] if name == SHARED else document).items():
                found.setdefault(key, {}).update(_replace_tensors(states, manifest, read))
    return found


def _replace_tensors(value: Any, manifest: Manifest, read: Read) -> Any:
    """Return `value`, a part of the optimizers' state, with digests in place of each reference to a tensor.

    A reference names a tensor of the manifest, and the name depends on the rank that saved it; the list that replaces
    it has the tensor's type, shape and the digests of its blocks. `read(file, view, at)` fills `view` with the bytes
    from offset `at` of file number `file` of the manifest.
    """
    if isinstance(value, list):
        return [_replace_tensors(word, manifest, read) for word in value]
    if not isinstance(value, dict):
        return value
    if (name := tensor_of(value)) is not None:
        entry = manifest.tensors[name]
        return [entry.dtype, entry.shape, [block.digest(read).hex() for block in blocks_of(name, entry)]]
    return {key: _replace_tensors(word, manifest, read) for key, word in value.items()}


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of a tensor, which are digested in one piece; the division depends on the tensor's shape alone.

    The block is the box of tensor `name` that begins at `offsets` and has `lengths`; `entry` says where the tensor is
    saved.
    """

    name: str
    entry: TensorEntry
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]

    def needs(self) -> list[Need]:
        """Return the pieces from which the block is read.

        Each has the saved part of the tensor that contains it, where it begins in that part and in the block, and its
        size.
        """
        box = (self.offsets, self.lengths)
        return [need for row in self.entry.rows for need in needed(self.name, box, row)]

    def digest(self, read: Read) -> bytes:
        """Return the SHA-256 of the block's bytes.

        `read(file, view, at)` fills `view` with the bytes from offset `at` of file number `file` of the manifest.
        """
        whole, scratch = torch.empty(self.lengths, dtype=dtype_of(self.entry.dtype)), Scratch()
        for need in self.needs():
            for at, memory in places([piece_of(whole, self.entry, need)], scratch):
                read(need.chunk.file, memory, at)
        return hashlib.sha256(bytes_of(whole.reshape(-1).view(torch.uint8))).digest()


def blocks(manifest: Manifest, block_bytes: int = _BLOCK_BYTES) -> Iterator[Block]:
    """Yield the blocks of the whole model and optimizer in the order of their names, each of at most `block_bytes`."""
    for name in sorted(manifest.tensors):
        if name.startswith(OF_TRAINING):
            yield from blocks_of(name, manifest.tensors[name], block_bytes)


def blocks_of(name: str, entry: TensorEntry, block_bytes: int = _BLOCK_BYTES) -> Iterator[Block]:
    """Yield the blocks of one tensor: as many rows as have at most `block_bytes`, but at least one."""
    if not entry.shape:
        yield Block(name, entry, (), ())
    elif 0 not in entry.shape:
        first, *rest = entry.shape
        rows = max(1, block_bytes // (math.prod(rest) * ITEM_BYTES[entry.dtype]))
        for begin in range(0, first, rows):
            yield Block(name, entry, (begin, *(0 for _ in rest)), (min(rows, first - begin), *rest))
