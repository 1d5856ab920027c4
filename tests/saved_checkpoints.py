"""Checkpoints as the trainer leaves them, made without torch by its own files' code."""

import json
import os
import struct
import time

from trainer.checkpoint_files import commit, fence
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.durable import make_folder, sync_folder, write_new
from trainer.checkpoint_files.layout import data_name, folder_name, new_nonce
from trainer.checkpoint_files.manifest import Chunk, FileEntry, Manifest, TensorEntry, TreeEntry


def save(folder, step, world_size=2, size=1000, attempt=1, finite=True, **info):
    """Commit one whose ranks have each this many bytes; gives its folder."""
    return save_part(folder, step, range(world_size), world_size, size, attempt, apart=False, finite=finite, **info)


def save_part(folder, step, here, world_size=2, size=1000, attempt=1, apart=True, finite=True, **info):
    """Save the part of a checkpoint on one of several disks, on which these ranks write."""
    make_folder(folder)
    mine = claim(folder, attempt)
    draft = commit.begin(folder, step, mine)
    files = []
    for rank in range(world_size):
        written = write_new(draft / data_name(rank), [bytes([rank % 256]) * size])
        files.append(FileEntry(data_name(rank), written.size, written.digest))
    away = [data_name(rank) for rank in range(world_size) if rank not in here]
    for name in away:
        (draft / name).unlink()
    sync_folder(draft)
    manifest = Manifest(
        step, world_size, new_nonce(), tuple(files), {}, {}, apart=apart, finite=finite, attempt=attempt,
        saved_unix_s=time.time(), info=info,
    )  # fmt: skip
    commit.prepare(draft, manifest, mine, away=away)
    return commit.place(draft, manifest, mine)


def save_model(folder, step, values=(1.0, 2.0, 3.0), names=("weight",), **info):
    """A checkpoint whose model has these numbers, a part on each of two ranks."""
    make_folder(folder)
    mine = claim(folder)
    draft = commit.begin(folder, step, mine)
    files = []
    for rank, part in enumerate((values[:1], values[1:])):
        written = write_new(draft / data_name(rank), [struct.pack(f"<{len(part)}f", *part)])
        files.append(FileEntry(data_name(rank), written.size, written.digest))
    sync_folder(draft)
    count = len(values)
    entry = TensorEntry("float32", (count,), (Chunk(0, 0, (0,), (1,)), Chunk(1, 0, (1,), (count - 1,))))
    tensors = {f"model/{name}": entry for name in names}
    manifest = Manifest(step, 2, new_nonce(), tuple(files), tensors, {}, info=info)
    return commit.publish(draft, manifest, mine)


def save_kept(folder, step, **documents):
    """A checkpoint of nothing but what is kept beside tensors, as JSON documents."""
    make_folder(folder)
    mine = claim(folder)
    draft = commit.begin(folder, step, mine)
    texts = [json.dumps(document).encode() for document in documents.values()]
    written = write_new(draft / data_name(0), texts)
    sync_folder(draft)
    places = [sum(map(len, texts[:number])) for number in range(len(texts))]
    trees = {name: TreeEntry(0, at, len(text)) for name, at, text in zip(documents, places, texts, strict=True)}
    files = (FileEntry(data_name(0), written.size, written.digest),)
    return commit.publish(draft, Manifest(step, 1, new_nonce(), files, {}, trees), mine)


def claim(folder, attempt=1):
    return fence.read_token(folder) or commit.take_over(folder, attempt)


def keep_best(folder, step):
    return commit.publish_best(Entry("step", step, folder / folder_name(step)), claim(folder))


def flip(path, at=0):
    """Flip one bit of the file, and keep its size and times."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
