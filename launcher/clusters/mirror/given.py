"""The side that has a run's checkpoints: what is in their folder, a file of one to be sent, one to be kept."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from launcher.agent.replication.files import ReplicaFiles, digest_of
from launcher.agent.replication.protocol import Save
from launcher.errors import LaunchError
from launcher.rundir.durable import make_dir
from trainer.checkpoint_files import partial
from trainer.checkpoint_files.durable import open_to_read
from trainer.checkpoint_files.layout import Kind
from trainer.checkpoint_files.manifest import decode


def folder_inside(run: Path, named: str) -> Path:
    """Inside the run's, whatever is asked for."""
    steps = named.split("/")
    if {"", ".", ".."} & set(steps):
        raise LaunchError(f"{named[:100]!r} is no folder of a run")
    return run.joinpath(*steps)


def open_file(folder: Path, save: Save, name: str) -> BinaryIO:
    """Of the committed one, or where this disk has it as a draft that another disk has committed, of that."""
    for held in partial.inventory(folder):
        is_it = (held.step, held.digest, held.kind) == (save.step, save.digest, save.kind)
        if is_it and not held.committed and name in held.present:
            return os.fdopen(open_to_read(folder / held.folder / name), "rb", buffering=0)
    return partial.open_file(folder, save.step, name, save.kind)


def keep(folder: Path, manifest: bytes, name: str, pieces: Iterable[bytes], kind: Kind) -> None:
    """Keep a file, once it is proved to be what the manifest says. Another checkpoint of that step makes room."""
    make_dir(folder)
    ReplicaFiles(folder).make_room(Save(kind, decode(manifest).step, digest_of(manifest)))
    partial.receive(folder, manifest, name, pieces, kind)
