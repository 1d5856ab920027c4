"""Checkpoints as the trainer leaves them, made without torch by its own files' code."""

import os
import time

from trainer.checkpoint_files import commit, fence
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.durable import make_folder, sync_folder, write_new
from trainer.checkpoint_files.layout import data_name, folder_name, new_nonce
from trainer.checkpoint_files.manifest import FileEntry, Manifest


def save(folder, step, world_size=2, size=1000, attempt=1, **info):
    """Commit one whose ranks have each this many bytes; gives its folder."""
    make_folder(folder)
    draft = commit.begin(folder, step, claim(folder, attempt))
    files = []
    for rank in range(world_size):
        written = write_new(draft / data_name(rank), [bytes([rank % 256]) * size])
        files.append(FileEntry(data_name(rank), written.size, written.digest))
    sync_folder(draft)
    manifest = Manifest(
        step, world_size, new_nonce(), tuple(files), {}, {}, attempt=attempt, saved_unix_s=time.time(), info=info
    )
    return commit.publish(draft, manifest, claim(folder, attempt))


def claim(folder, attempt=1):
    return fence.read_claim(folder) or commit.take_over(folder, attempt)


def keep_best(folder, step):
    return commit.publish_best(Entry("step", step, folder / folder_name(step)), claim(folder))


def flip(path, at=0):
    """One bit, and nothing else that a listing could show."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
