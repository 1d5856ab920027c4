"""A host's side of moving checkpoints: what it has, giving a file, taking one in."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from launcher.agent.replication.protocol import Save
from launcher.clusters.mirror import given
from launcher.clusters.ssh.messages import CheckpointList, FileFollows, SendFile, TakeFile
from trainer.checkpoint_files import partial

_CHUNK = 1 << 20

Exactly = Callable[[int], bytes]
Tell = Callable[..., None]


def checkpoints(folder: Path) -> CheckpointList:
    return CheckpointList(msgspec.Raw(msgspec.json.encode(partial.inventory(folder))))


def give(folder: Path, wish: SendFile, tell: Tell) -> None:
    """The manifest, where no name is asked for, or a file of the checkpoint."""
    if not wish.name:
        manifest = partial.read_manifest(folder, wish.step, wish.kind)
        tell(FileFollows(len(manifest)), manifest)
        return
    with given.open_file(folder, Save(wish.kind, wish.step, wish.digest), wish.name) as file:
        left = os.fstat(file.fileno()).st_size
        tell(FileFollows(left))
        while left and (piece := file.read(min(left, _CHUNK))):
            tell(None, piece)
            left -= len(piece)
    if left:
        raise EOFError  # what was announced cannot be kept: the other side has to see that


def take(folder: Path, gift: TakeFile, exactly: Exactly) -> None:
    """Keep a file, once it is proved to be what the manifest says."""
    manifest = exactly(gift.manifest_size)
    pieces = _pieces(gift.size, exactly)
    try:
        given.keep(folder, manifest, gift.name, pieces, gift.kind)
    finally:
        for _ in pieces:
            continue  # the rest, so that what follows is read as the next request


def _pieces(size: int, exactly: Exactly) -> Iterator[bytes]:
    while size:
        piece = exactly(min(size, _CHUNK))
        size -= len(piece)
        yield piece
