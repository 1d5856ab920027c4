"""Serve checkpoints on a host: list them, send a file, store a file."""

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


def answer(run: Path, request: ListCheckpoints | SendFile | TakeFile, body: Body) -> object:
    """Carry out a request about the checkpoints in the run folder `run`, and return the answer.

    That is a list of checkpoints, the bytes of a file, or None once the file in `body` was stored. Raise LaunchError if
    the request names no folder below the run's.
    """
    steps = request.folder.split("/")
    if {"", ".", ".."} & set(steps):
        raise LaunchError(f"{request.folder[:100]!r} is no folder of a run")
    folder = run.joinpath(*steps)
    match request:
        case ListCheckpoints():
            return partial.inventory(folder)
        case SendFile(name=""):
            manifest = partial.read_manifest(folder, request.step, request.kind)
            return WithBytes(None, len(manifest), [manifest])
        case SendFile():
            file = _opened(folder, request)
            size = os.fstat(file.fileno()).st_size
            return WithBytes(None, size, _pieces(file, size))
        case TakeFile():
            keep_file(
                folder, body.exactly(request.manifest_size), request.name, body.pieces(request.size), request.kind
            )
            return None


def _opened(folder: Path, request: SendFile) -> BinaryIO:
    """Open the requested file of a checkpoint in `folder`. If the checkpoint is committed on another disk and only a
    draft here, with the same digest, the draft's file is opened. Raise OSError or CheckpointDamaged if there is none.
    """
    for held in partial.inventory(folder):
        is_it = (held.step, held.digest, held.kind) == (request.step, request.digest, request.kind)
        if is_it and not held.committed and request.name in held.present:
            return os.fdopen(open_to_read(folder / held.folder / request.name), "rb", buffering=0)
    return partial.open_file(folder, request.step, request.name, request.kind)


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of the file, in pieces, and close it.

    If it has grown since its size was announced, the rest is left out; if it has shrunk, fewer bytes are yielded.
    """
    with file:
        while size and (piece := file.read(min(size, _CHUNK))):
            size -= len(piece)
            yield piece
