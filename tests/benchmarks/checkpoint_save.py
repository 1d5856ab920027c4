"""Measure how long a save of a checkpoint delays a training, with `Checkpointer`, torch.save and DCP's async_save.

    uv run python tests/benchmarks/checkpoint_save.py [--write]

A model and its Adam, the same on all ranks (gloo, one thread each). A small DDP model is trained meanwhile, of about
30 ms a step, most of it in matrix products. The training runs in windows of equally many steps, in turns without a
save and with one, by each method in turn:
- blocked: how long the call that saves holds the training up, on the slowest rank;
- lost: how much longer the window took than the mean of the two without a save beside it. The window ends when the
  checkpoint is on disk, so what a save holds up later counts too.
Nobody deletes old checkpoints meanwhile. Then, without a training: until the checkpoint is on disk, against a bare
write and fsync of as many bytes, by as many ranks at the same time, from memory that is there already.
"""

import logging
import math
import os
import shutil
import statistics
import time
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from replica import Clock, Replica, folder_for_all, on_ranks, ratio, spread
from results import benchmark_parser, publish
from torch import nn
from torch.distributed.checkpoint import _async_process_executor
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.nn.parallel import DistributedDataParallel

from trainer import Checkpointer
from trainer.checkpoint_files.layout import data_name
from trainer.world import barrier, cpu_group

PIECE_BYTES = 8 << 20
WIDTH, DEPTH, BATCH = 512, 4, 256  # of the model that is trained meanwhile


class Ours:
    name = "Checkpointer"

    def __init__(self, world, replica, folder):
        self._folder = folder / "ours"
        self.saver = Checkpointer(
            self._folder, model=replica.model, optimizer=replica.optimizer, keep=10**6, world=world
        )
        self.saver.load()
        self.step = 0

    def save(self):
        self.step += 1
        self.saver.save(self.step)

    def wait(self):
        """Do nothing, as the checkpoint is on disk already."""
        outcome = self.saver.wait()
        if outcome.path is None:
            raise SystemExit(f"{self.name}: {outcome.problem}")

    def newest(self):
        return self.saver.wait().path

    def close(self):
        self.saver.close()


class Plain:
    """The first rank writes, the others wait for it."""

    name = "torch.save, fsync"

    def __init__(self, world, replica, folder):
        self._world, self._replica, self._folder = world, replica, folder / "plain"
        self._folder.mkdir(exist_ok=True)
        self.step = 0

    def save(self):
        self.step += 1
        if self._world.is_first:
            with (self._folder / f"{self.step}.pt").open("xb") as file:
                torch.save(self._replica.state_dict(), file)
                file.flush()
                os.fsync(file.fileno())
        barrier(self._world)

    def wait(self):
        """It is on disk already."""

    def close(self):
        """Do nothing: nothing is open."""


class Dcp:
    """torch.distributed.checkpoint.async_save, over a group of its own; `kept`: its memory and plan are used again."""

    def __init__(self, world, replica, folder, *, kept, kind):
        self._replica, self._kind = replica, kind
        self._folder = folder / f"dcp-{kind.value}-{kept}"
        self._group = cpu_group()
        self._planner = dcp.DefaultSavePlanner(enable_plan_caching=kept)
        # The only one of its options that work without a GPU.
        self._stager = DefaultStager(StagingOptions(False, True, False, False)) if kept else None
        self._future = None
        self.step = 0

    def save(self):
        self.step += 1
        self._future = dcp.async_save(
            self._replica.state_dict(),
            checkpoint_id=self._folder / str(self.step),
            process_group=self._group,
            planner=self._planner,
            async_checkpointer_type=self._kind,
            async_stager=self._stager,
        )

    def wait(self):
        self._future.result()

    def close(self):
        if self._stager is not None:
            self._stager.close()


class DcpThread(Dcp):
    name = "DCP, thread"

    def __init__(self, *args):
        super().__init__(*args, kept=False, kind=AsyncCheckpointerType.THREAD)


class DcpThreadKept(Dcp):
    name = "DCP, thread, kept memory"

    def __init__(self, *args):
        super().__init__(*args, kept=True, kind=AsyncCheckpointerType.THREAD)


class DcpProcess(Dcp):
    name = "DCP, process, kept memory"

    def __init__(self, *args):
        super().__init__(*args, kept=True, kind=AsyncCheckpointerType.PROCESS)

    def close(self):
        super().close()
        _async_process_executor._CHECKPOINT_PROCESS = None  # it ends its process when nobody holds it


METHODS = (Ours, Plain, DcpThread, DcpThreadKept, DcpProcess)


class Training:
    """Something that keeps the ranks busy, and in step with each other."""

    def __init__(self):
        torch.manual_seed(2)
        layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self._model = DistributedDataParallel(nn.Sequential(*layers))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3, momentum=0.9)
        self._batch = torch.randn(BATCH, WIDTH)

    def steps(self, count):
        for _ in range(count):
            self._optimizer.zero_grad()
            self._model(self._batch).square().mean().backward()
            self._optimizer.step()


def costs(world, folder, megabytes, window_s, rounds, names):
    """Seconds of a step, bytes of a full copy, and for each method what it blocked and what was lost, by round."""
    quiet()
    clock, replica, training = Clock(world), Replica(megabytes), Training()
    methods = [method(world, replica, folder) for method in METHODS if method.name in names]
    for method in methods:  # the first save makes what later ones use again
        method.save()
        method.wait()
    training.steps(3)
    probe = 10
    step_s = clock.time(lambda: training.steps(probe)) / probe
    count = max(2, math.ceil(window_s / step_s))

    def window(method=None):
        blocked = 0.0
        clock.together()
        began = time.perf_counter()
        if method is not None:
            method.save()
            blocked = time.perf_counter() - began
        training.steps(count)
        if method is not None:
            method.wait()
        return clock.slowest(time.perf_counter() - began), clock.slowest(blocked)

    found = {method.name: ([], []) for method in methods}
    plain = [window()[0]]
    for turn in range(rounds):
        for method in methods[turn % len(methods) :] + methods[: turn % len(methods)]:
            seconds, blocked = window(method)
            plain.append(window()[0])
            found[method.name][0].append(blocked)
            found[method.name][1].append(seconds - (plain[-2] + plain[-1]) / 2)
            empty(world, folder)
    for method in methods:
        method.close()
    return statistics.median(plain) / count, count, replica.bytes, found


def durable(world, folder, megabytes, rounds):
    """Return for each round the seconds until a checkpoint is on disk, and those of a bare write and fsync of as many
    bytes.
    """
    quiet()
    clock, replica = Clock(world), Replica(megabytes)
    ours = Ours(world, replica, folder)
    ours.save()
    source = (
        torch.empty((ours.newest() / data_name(world.rank)).stat().st_size, dtype=torch.uint8).random_().numpy().data
    )

    def save():
        ours.save()
        ours.wait()

    found = []
    for turn in range(rounds + 1):
        pair = [clock.time(save), clock.time(lambda turn=turn: bare(folder / f"bare-{turn}-{world.rank}", source))]
        found += [pair] if turn else []
        empty(world, folder)
    ours.close()
    return found


def bare(path, source):
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    for begin in range(0, len(source), PIECE_BYTES):
        piece = source[begin : begin + PIECE_BYTES]
        while piece:
            piece = piece[os.write(fd, piece) :]
    os.fsync(fd)
    os.close(fd)


def volume(world, folder, megabytes):
    """Bytes of one full copy, of the files of a checkpoint, and what all ranks together handed to the disk for it."""
    quiet()
    clock, replica = Clock(world), Replica(megabytes)
    ours = Ours(world, replica, folder)
    clock.together()
    before = write_bytes()
    ours.save()
    ours.wait()
    shards_sent = clock.total(write_bytes() - before)
    files = sum(path.stat().st_size for path in ours.newest().iterdir())
    ours.close()
    return replica.bytes, files, shards_sent


def write_bytes():
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["write_bytes"])


def empty(world, folder):
    """Make room, while no clock runs. The newest one of each method stays."""
    barrier(world)
    if world.is_first:
        for path in folder.glob("bare-*"):
            path.unlink()
        for kind in folder.iterdir():
            saved = [path for path in kind.iterdir() if "fence" not in path.name.lower()]
            for path in sorted(saved, key=lambda path: path.stat().st_mtime_ns)[:-1]:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    barrier(world)


def quiet():
    logging.getLogger().setLevel(logging.ERROR)


def cost_rows(megabytes, ranks, found):
    ours_blocked, ours_lost = found[Ours.name]
    for name, (blocked, lost) in found.items():
        # Of medians: what is lost is a small difference of long times, and below zero now and then.
        share = statistics.median(ours_lost) / statistics.median(lost)
        yield (
            f"| {megabytes} MB, {ranks} ranks | {name} | {spread(blocked, 3)} | {spread(lost)} "
            f"| {ratio(ours_blocked, blocked):.2f} | {share:.2f} |"
        )


def main():
    parser = benchmark_parser(__doc__)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[150, 1000])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--windows-s", type=float, nargs="+", default=[2.5, 10.0], help="one for each size")
    parser.add_argument(
        "--methods", nargs="+", choices=[method.name for method in METHODS], default=[method.name for method in METHODS]
    )
    parser.add_argument("--volume-ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--volume-megabytes", type=int, default=150)
    parser.add_argument(
        "--folder", type=Path, help="where checkpoints are written; left out: the system's temporary folder"
    )
    args = parser.parse_args()
    publish("checkpoint_save", "\n".join(tables(args)), write=args.write)


def tables(args):
    meanings = (
        "`blocked` is how long the call that saves stops the training; `lost` is how much longer the same steps "
        "take, until the checkpoint is on disk, than without a save. A value below zero is noise. `kept memory` "
        "means that DCP uses its memory and its plan again; `process` that a process of its own writes, `thread` "
        "that a thread does. `ours / this` divides the value of `Checkpointer` by that of the row."
    )
    notes = [meanings]
    yield "| state | | blocked, s | range | lost, s | range | ours / this: blocked | lost |"
    yield "|---|---|---|---|---|---|---|---|"
    for megabytes, window_s in zip(args.megabytes, args.windows_s, strict=True):
        with folder_for_all(args.folder) as folder:
            step_s, count, size, found = on_ranks(
                costs, args.ranks, folder, megabytes, window_s, args.rounds, args.methods
            )
        yield from cost_rows(megabytes, args.ranks, found)
        notes.append(
            f"The state called {megabytes} MB had {size / 1e6:.0f} MB, and was saved every {count} steps of "
            f"{step_s * 1000:.0f} ms."
        )
    yield f"\n{' '.join(notes)}\n"
    yield (
        "The next table has the time until a checkpoint of `Checkpointer` is on disk, without a training, beside a "
        "bare write and fsync of as many bytes by as many ranks:\n"
    )
    yield "| state | on disk, s | range | bare write and fsync, s | range | ours / this |"
    yield "|---|---|---|---|---|---|"
    for megabytes in args.megabytes:
        with folder_for_all(args.folder) as folder:
            ours, theirs = zip(*on_ranks(durable, args.ranks, folder, megabytes, args.rounds), strict=True)
        yield f"| {megabytes} MB, {args.ranks} ranks | {spread(ours)} | {spread(theirs)} | {ratio(ours, theirs):.2f} |"
    yield (
        "\nThe next table compares the bytes of a checkpoint of DDP ranks with one full copy of the state: the size "
        "of its files, and the bytes that all ranks handed to the disk:"
    )
    yield "\n| ranks | one full copy, MB | files, MB | handed to the disk, MB | files / copy | handed / copy |"
    yield "|---|---|---|---|---|---|"
    for ranks in args.volume_ranks:
        with folder_for_all(args.folder) as folder:
            copy, files, shards_sent = on_ranks(volume, ranks, folder, args.volume_megabytes)
        millions = " | ".join(f"{number / 1e6:.1f}" for number in (copy, files, shards_sent))
        yield f"| {ranks} | {millions} | {files / copy:.3f} | {shards_sent / copy:.3f} |"


if __name__ == "__main__":
    main()
