"""Compare `Checkpointer.load`, which verifies what it loads, with reading the bytes and with dcp.load.

    uv run python tests/benchmarks/checkpoint_load.py [--write]

A model and its Adam, the same on all ranks: each rank needs all of it. The sides take turns, each with the files in the
system's cache, and with the cache emptied of them before. Reading is done in pieces of 1 MB: into one small buffer
again and again, which nobody can load with but is the least that there is to do; into memory of their size that is
there already, as a model's parameters are; and into new memory, as an optimizer's state needs. dcp.load puts the bytes
into tensors that are there already, and compares nothing.
"""

import os
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from replica import Clock, Replica, folder_for_all, on_ranks, ratio, spread
from results import benchmark_parser, publish

from trainer import Checkpointer
from trainer.checkpoint_files.layout import folder_name
from trainer.world import barrier

OURS, DCP = "Checkpointer.load", "dcp.load"
BUFFER, KEPT, NEW = "read into one buffer", "read into memory", "read into new memory"
SIDES = (OURS, BUFFER, KEPT, NEW, DCP)
CACHED, COLD = "cached", "not cached"
PIECE_BYTES = 1 << 20
_STEP = 1


def loads(world, folder, megabytes, rounds):
    """Seconds of each round, by side, with and without the files in the cache; and the bytes of a full copy."""
    clock, replica = Clock(world), Replica(megabytes)
    with Checkpointer(folder / "ours", model=replica.model, optimizer=replica.optimizer, world=world) as saver:
        saver.load()
        saver.save(_STEP, wait=True)
    dcp.save(replica.state_dict(), checkpoint_id=folder / "dcp", no_dist=world.size == 1)
    ours = sorted((folder / "ours" / folder_name(_STEP)).iterdir())
    buffer = memory(PIECE_BYTES)
    kept = memory(max(path.stat().st_size for path in ours))

    def load():
        with Checkpointer(folder / "ours", model=replica.model, optimizer=replica.optimizer, world=world) as saver:
            if saver.load() != _STEP:
                raise SystemExit("there was nothing to load")

    def dcp_load():
        dcp.load(replica.state_dict(), checkpoint_id=folder / "dcp", no_dist=world.size == 1)

    work = {
        OURS: load,
        BUFFER: lambda: read(ours, buffer),
        KEPT: lambda: read(ours, kept),
        NEW: lambda: read(ours),
        DCP: dcp_load,
    }
    found = {(state, side): [] for state in (CACHED, COLD) for side in SIDES}
    for turn in range(rounds + 1):
        for state in (CACHED, COLD):
            for side in SIDES:
                prepare(world, folder, state)
                seconds = clock.time(work[side])
                if turn:
                    found[state, side].append(seconds)
    return replica.bytes, found


def memory(size):
    return torch.empty(size, dtype=torch.uint8).numpy().data


def read(paths, into=None):
    for path in paths:
        size = path.stat().st_size
        target = memory(size) if into is None else into
        with path.open("rb", buffering=0) as file:
            at = 0
            while at < size:
                begin = at if len(target) >= size else 0
                at += file.readinto(target[begin : min(begin + PIECE_BYTES, len(target))])


def prepare(world, folder, state):
    """Have all files in the system's cache, or none."""
    barrier(world)
    if world.is_first:
        os.sync()
        files = [path for path in folder.rglob("*") if path.is_file()]
        if state == CACHED:
            read(files, memory(PIECE_BYTES))
        else:
            for path in files:
                fd = os.open(path, os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)
    barrier(world)


def rows(megabytes, ranks, found):
    for (state, side), seconds in found.items():
        share = ratio(found[state, OURS], seconds)
        yield f"| {megabytes} MB, {ranks} ranks, {state} | {side} | {spread(seconds)} | {share:.2f} |"


def main():
    parser = benchmark_parser(__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where checkpoints are written; left out: the temporary folder")
    args = parser.parse_args()
    table = ["| state | | s | range | ours / this |", "|---|---|---|---|---|"]
    for ranks in args.ranks:
        with folder_for_all(args.folder) as folder:
            _, found = on_ranks(loads, ranks, folder, args.megabytes, args.rounds)
        table += rows(args.megabytes, ranks, found)
    notes = (
        "Only `Checkpointer.load` verifies the bytes; dcp.load is the function of torch.distributed.checkpoint. The "
        "rows that begin with `read` only read the files of `Checkpointer`: into one buffer of 1 MB again and again, "
        "into memory that the process already has, or into memory that it newly allocates. `cached` means that the "
        "files are in the system's page cache, `not cached` that they were removed from it before. With 2 ranks each "
        "rank loads the whole state. `ours / this` divides the time of `Checkpointer.load` by that of the row, as "
        "the median over the rounds."
    )
    publish("checkpoint_load", "\n".join([*table, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
