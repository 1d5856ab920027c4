"""A host's side of moving checkpoints: what it has, giving a file, taking one in."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from launcher.agent.depots.store import Store, digest_of
from launcher.agent.depots.words import Save
from launcher.clusters.mirror.messages import CheckpointList, FileFollows, SendFile, TakeFile
from launcher.errors import LaunchError
from launcher.rundir.durable import make_dir
from trainer.checkpoint_files import partial
from trainer.checkpoint_files.durable import open_to_read
from trainer.checkpoint_files.manifest import decode

_CHUNK = 1 << 20

Exactly = Callable[[int], bytes]
Tell = Callable[..., None]


def folder_of(run: Path, named: str) -> Path:
    """Inside the run's, whatever is asked for."""
    steps = named.split("/")
    if {"", ".", ".."} & set(steps):
        raise LaunchError(f"{named[:100]!r} is no folder of a run")
    return run.joinpath(*steps)


def stock(folder: Path) -> CheckpointList:
    return CheckpointList(msgspec.Raw(msgspec.json.encode(partial.inventory(folder))))


def give(folder: Path, wish: SendFile, tell: Tell) -> None:
    """The manifest, where no name is asked for, or a file of the checkpoint."""
    if not wish.name:
        manifest = partial.read_manifest(folder, wish.step, wish.kind)
        tell(FileFollows(len(manifest)), manifest)
        return
    with _open_file(folder, wish) as file:
        left = os.fstat(file.fileno()).st_size
        tell(FileFollows(left))
        while left and (piece := file.read(min(left, _CHUNK))):
            tell(None, piece)
            left -= len(piece)
    if left:
        raise EOFError  # what was announced cannot be kept: the other side has to see that


def _open_file(folder: Path, wish: SendFile) -> BinaryIO:
    """Of the committed one, or where this disk has it as a draft that another disk has committed, of that."""
    for held in partial.inventory(folder):
        same = (held.step, held.digest, held.kind) == (wish.step, wish.digest, wish.kind)
        if same and not held.committed and wish.name in held.present:
            return os.fdopen(open_to_read(folder / held.folder / wish.name), "rb", buffering=0)
    return partial.open_file(folder, wish.step, wish.name, wish.kind)


def take(folder: Path, gift: TakeFile, exactly: Exactly) -> None:
    """Keep a file, once it is proved to be what the manifest says. Another checkpoint of that step makes room."""
    manifest = exactly(gift.manifest_size)
    pieces = _pieces(gift.size, exactly)
    try:
        make_dir(folder)
        Store(folder).make_room(Save(gift.kind, decode(manifest).step, digest_of(manifest)))
        partial.receive(folder, manifest, gift.name, pieces, gift.kind)
    finally:
        for _ in pieces:
            continue  # the rest, so that what follows is read as the next request


def _pieces(size: int, exactly: Exactly) -> Iterator[bytes]:
    while size:
        piece = exactly(min(size, _CHUNK))
        size -= len(piece)
        yield piece
