"""A digest of the unsharded model and optimizer in a checkpoint: equal values, equal digest, whatever the layout."""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint.contents import SHARED, optimizer_of_rank
from trainer.checkpoint.staging import bytes_of
from trainer.checkpoint.team import Team
from trainer.checkpoint.tree import dtype_of, tensor_of
from trainer.checkpoint_files.catalog import Entry, missing, verify
from trainer.checkpoint_files.durable import open_to_read, read_exactly
from trainer.checkpoint_files.manifest import Manifest, TensorEntry, chunk_bytes
from trainer.errors import CheckpointDamaged

Read = Callable[[int, memoryview, int], object]  # of a file by its number, into this, from there on
_SPREAD = optimizer_of_rank(0).removesuffix("00000")
_WORD_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Bytes that the first rank asks another one for."""

    giver: int
    file: int
    at: int
    size: int


_NOTHING = _Wanted(-1, 0, 0, 0)  # of nobody: only that the first rank goes on


def fingerprint(entry: Entry, after_part: Callable[[], None] = lambda: None) -> str:
    """SHA-256 over names, types, shapes and bytes of all tensors, in the order of their names, and of the optimizer's
    other values. Reads and compares every byte, and holds one tensor at a time. Raises CheckpointDamaged."""
    manifest = verify(entry, after_file=after_part)
    with _opened(entry, manifest) as files:
        return _digest(manifest, lambda number, view, at: read_exactly(files[number], view, at), after_part)


def fingerprint_together(entry: Entry, team: Team, still_here: Callable[[], None]) -> str:
    """The same on all ranks, which call it together; `still_here` is called on each one while the work goes on."""
    return (_of_disks_apart if team.apart else _of_one_disk)(entry, team, still_here)


def _of_one_disk(entry: Entry, team: Team, still_here: Callable[[], None]) -> str:
    """The first rank reads it alone."""
    if team.is_first:
        return team.tell(fingerprint(entry, _telling(team, still_here, "")))
    while not (mark := team.tell("")):
        still_here()
    return mark


def _telling(team: Team, still_here: Callable[[], None], word: object) -> Callable[[], None]:
    """For the first rank: says that it is here, and now and then a word by which the others can say so too."""
    told_at = time.monotonic()

    def after_part() -> None:
        nonlocal told_at
        still_here()
        if time.monotonic() >= told_at + _WORD_EVERY_S:
            team.tell(word)
            told_at = time.monotonic()

    return after_part


def _of_disks_apart(entry: Entry, team: Team, still_here: Callable[[], None]) -> str:
    """The first rank asks the others for bytes."""
    manifest, problem, held = None, "", set[int]()
    if team.leads:
        try:
            manifest = verify(entry, partial=True, after_file=still_here)
            away = missing(entry.path, manifest)
            held = {number for number, file in enumerate(manifest.files) if file.name not in away}
        except (CheckpointDamaged, OSError) as error:
            problem = str(error)
    told = team.exchange((problem, held))
    _raise_first(problem for problem, _ in told)
    with _opened(entry, manifest) if manifest else contextlib.nullcontext(dict[int, int]()) as files:
        if team.is_first and manifest is not None:
            after_tensor = _telling(team, still_here, _NOTHING)
            mark, problem = _ask(manifest, files, team, [held for _, held in told], after_tensor)
        else:
            mark, problem = _give(files, team, still_here)
    _raise_first(team.exchange(problem))
    return mark


def _ask(
    manifest: Manifest,
    files: Mapping[int, int],
    team: Team,
    held: Sequence[set[int]],
    after_tensor: Callable[[], None],
) -> tuple[str, str]:
    """The fingerprint, or why there is none."""

    def read(number: int, view: memoryview, at: int) -> None:
        if number in files:
            read_exactly(files[number], view, at)
        elif view:
            team.tell(_Wanted(givers[number], number, at, len(view)))
            team.receive(view, givers[number])

    mark = problem = ""
    givers = {number: place for place, numbers in reversed(list(enumerate(held))) for number in numbers}
    try:
        if away := [file.name for number, file in enumerate(manifest.files) if number not in givers]:
            raise CheckpointDamaged(f"step {manifest.step}: {', '.join(away)} on no disk")
        mark = _digest(manifest, read, after_tensor)
    except Exception as error:  # noqa: BLE001 - whatever it is, the others wait for a word
        problem = f"{type(error).__name__}: {error}"
    team.tell(mark)
    return mark, problem


def _give(files: Mapping[int, int], team: Team, still_here: Callable[[], None]) -> tuple[str, str]:
    """Send what the first rank asks for, until it tells the fingerprint; what cannot be read is sent all the same."""
    problem = ""
    wanted: _Wanted | str = ""
    while isinstance(wanted := team.tell(wanted), _Wanted):
        still_here()
        if wanted.giver == team.me:
            view = memoryview(bytearray(wanted.size))
            try:
                read_exactly(files[wanted.file], view, wanted.at)
            except (CheckpointDamaged, OSError) as error:
                problem = str(error)
            team.send(view)
    return wanted, problem


def _raise_first(problems: Iterable[str]) -> None:
    for problem in problems:
        if problem:
            raise CheckpointDamaged(problem)


def _digest(manifest: Manifest, read: Read, after_tensor: Callable[[], None]) -> str:
    digest = hashlib.sha256()
    for name in sorted(manifest.tensors):
        if name.startswith(("model/", "optimizer/")):
            tensor = manifest.tensors[name]
            digest.update(json.dumps([name, tensor.dtype, tensor.shape]).encode())
            digest.update(bytes_of(_whole(tensor, read)))
            after_tensor()
    digest.update(json.dumps(_values(manifest, read), sort_keys=True).encode())
    return digest.hexdigest()


def _whole(entry: TensorEntry, read: Read) -> Tensor:
    """The bytes of all parts in their places."""
    whole = torch.empty(entry.shape, dtype=dtype_of(entry.dtype))
    for chunk in entry.chunks:
        raw = torch.empty(chunk_bytes(entry, chunk), dtype=torch.uint8)
        read(chunk.file, bytes_of(raw), chunk.at)
        if chunk.lengths == entry.shape:
            return raw
        target = whole
        for dim, (begin, length) in enumerate(zip(chunk.offsets, chunk.lengths, strict=True)):
            target = target.narrow(dim, begin, length)
        target.copy_(raw.view(whole.dtype).view(chunk.lengths))
    return whole.reshape(-1).view(torch.uint8)


@contextlib.contextmanager
def _opened(entry: Entry, manifest: Manifest) -> Iterator[dict[int, int]]:
    """Descriptors of the files that are here, by their number."""
    away = missing(entry.path, manifest)
    with contextlib.ExitStack() as opened:
        files = {}
        for number, file in enumerate(manifest.files):
            if file.name not in away:
                files[number] = open_to_read(entry.path / file.name)
                opened.callback(os.close, files[number])
        yield files


def _values(manifest: Manifest, read: Read) -> dict[str, Any]:
    """What is no tensor of the optimizers' state, by optimizer and parameter; which rank kept it does not count."""
    found: dict[str, Any] = {}
    for name, tree in manifest.trees.items():
        if name == SHARED or name.startswith(_SPREAD):
            text = bytearray(tree.size)
            read(tree.file, memoryview(text), tree.at)
            document = json.loads(text)
            for key, states in (document["values"] if name == SHARED else document).items():
                found.setdefault(key, {}).update(_with_digests(states, manifest, read))
    return found


def _with_digests(words: Any, manifest: Manifest, read: Read) -> Any:
    """A tensor that is kept beside a document has a name that says which rank kept it: its bytes stand for it."""
    if isinstance(words, list):
        return [_with_digests(word, manifest, read) for word in words]
    if not isinstance(words, dict):
        return words
    if (name := tensor_of(words)) is not None:
        entry = manifest.tensors[name]
        return [entry.dtype, entry.shape, hashlib.sha256(bytes_of(_whole(entry, read))).hexdigest()]
    return {key: _with_digests(word, manifest, read) for key, word in words.items()}
