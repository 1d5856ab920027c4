"""A host's side of moving checkpoints: what it has, giving a file, taking one in."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from launcher.copies.mirror.holders import keep_file
from launcher.errors import LaunchError
from launcher.places.ssh.messages import ListCheckpoints, SendFile, TakeFile
from launcher.remote.rpc.server import Body, WithBytes
from trainer.checkpoint_files import partial
from trainer.checkpoint_files.durable import open_to_read

_CHUNK = 1 << 20


def answer(run: Path, wish: ListCheckpoints | SendFile | TakeFile, body: Body) -> object:
    steps = wish.folder.split("/")
    if {"", ".", ".."} & set(steps):
        raise LaunchError(f"{wish.folder[:100]!r} is no folder of a run")
    folder = run.joinpath(*steps)
    match wish:
        case ListCheckpoints():
            return partial.inventory(folder)
        case SendFile(name=""):
            manifest = partial.read_manifest(folder, wish.step, wish.kind)
            return WithBytes(None, len(manifest), [manifest])
        case SendFile():
            file = _opened(folder, wish)
            size = os.fstat(file.fileno()).st_size
            return WithBytes(None, size, _pieces(file, size))
        case TakeFile():
            keep_file(folder, body.exactly(wish.manifest_size), wish.name, body.pieces(wish.size), wish.kind)
            return None


def _opened(folder: Path, wish: SendFile) -> BinaryIO:
    """Open the committed file, or a draft's file of the same digest that another disk has committed."""
    for held in partial.inventory(folder):
        is_it = (held.step, held.digest, held.kind) == (wish.step, wish.digest, wish.kind)
        if is_it and not held.committed and wish.name in held.present:
            return os.fdopen(open_to_read(folder / held.folder / wish.name), "rb", buffering=0)
    return partial.open_file(folder, wish.step, wish.name, wish.kind)


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield as many bytes as were announced, even if the file has grown since."""
    with file:
        while size and (piece := file.read(min(size, _CHUNK))):
            size -= len(piece)
            yield piece
