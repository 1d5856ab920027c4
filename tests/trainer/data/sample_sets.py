"""Data sets for the tests of trainer.data."""

# ruff: noqa: NPY002 - data sets of strangers draw from NumPy's global generator

import ctypes
import os
import random
import time

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info


def three_draws():
    """Return one number from each of the generators that data sets use."""
    return random.random(), float(np.random.rand()), float(np.random.randn()), float(torch.rand(()))


class Numbers:
    """Sample i is i."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index


class Augmented(Numbers):
    """Sample i is i, and what was drawn for it."""

    def __getitem__(self, index):
        return torch.tensor([float(index), *three_draws()], dtype=torch.float64)


class Broken(Numbers):
    """Has one sample that cannot be read."""

    def __init__(self, length, bad, error):
        super().__init__(length)
        self.bad, self.error = bad, error

    def __getitem__(self, index):
        if index == self.bad:
            raise self.error
        return index


class Slow(Numbers):
    """Says in a folder that it fetches, and goes on fetching."""

    def __init__(self, length, folder):
        super().__init__(length)
        self.folder = folder

    def __getitem__(self, index):
        (self.folder / str(os.getpid())).touch()
        time.sleep(3600)


class BlockedThread(Slow):
    """Fetches in a library that never lets another thread of its process run."""

    def __getitem__(self, index):
        (self.folder / str(os.getpid())).touch()
        ctypes.PyDLL(None).sleep(3600)


class Pids(Numbers):
    """Sample i is the process that fetched it."""

    def __getitem__(self, index):
        return os.getpid()


class Stream(IterableDataset):
    """Counts up, and draws. Keeps no place."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        for number in range(self.length):
            yield torch.tensor([float(number), *three_draws()], dtype=torch.float64)


class PlacedStream(Stream):
    """Keeps its place; each pass counts from another thousand, which it keeps too. Ends with its place at the end."""

    def __init__(self, length):
        super().__init__(length)
        self.at, self.passes = 0, 0
        self.resumed = False

    def __iter__(self):
        if not self.resumed:
            self.passes += 1
            self.at = 0
        self.resumed = False
        while self.at < self.length:
            number = self.at
            self.at += 1
            yield torch.tensor([1000.0 * self.passes + number, *three_draws()], dtype=torch.float64)

    def state_dict(self):
        return {"at": self.at, "passes": self.passes}

    def load_state_dict(self, state):
        self.at, self.passes = state["at"], state["passes"]
        self.resumed = True


class WrappingStream(PlacedStream):
    """A PlacedStream that starts its next pass at once when it ends."""

    def __iter__(self):
        self.passes = max(1, self.passes)
        while self.at < self.length:
            number = self.at
            self.at += 1
            yield torch.tensor([1000.0 * self.passes + number, *three_draws()], dtype=torch.float64)
        self.at, self.passes = 0, self.passes + 1


class ShardingStream(PlacedStream):
    """Gives each rank and each worker its own numbers; rank r's part is `lengths[r]` long."""

    shards_itself = True

    def __init__(self, lengths, rank):
        super().__init__(lengths[rank])
        self.rank = rank

    def __iter__(self):
        worker = get_worker_info()
        step, first = (worker.num_workers, worker.id) if worker else (1, 0)
        if not self.resumed:
            self.passes += 1
            self.at = first
        self.resumed = False
        while self.at < self.length:
            number = self.at
            self.at += step
            yield torch.tensor([1000.0 * self.rank + number, self.passes, *three_draws()], dtype=torch.float64)


class UnplacedShards(Stream):
    """Shards itself and keeps no place."""

    shards_itself = True


class InShards:
    """Has shards of these lengths; item i of shard s is 1000 s + i. Each epoch they come in another order."""

    def __init__(self, lengths):
        self.lengths, self.shards = lengths, len(lengths)

    def numbers(self):
        return [1000 * shard + number for shard, length in enumerate(self.lengths) for number in range(length)]

    def read_shard(self, shard, *, start, seed):
        length = self.lengths[shard]
        for number in random.Random(seed).sample(range(length), length)[start:]:
            yield torch.tensor([1000.0 * shard + number, *three_draws()], dtype=torch.float64)


def generator_states():
    return random.getstate(), repr(np.random.get_state(legacy=False)), torch.get_rng_state().tolist()


def children():
    """The processes that this one has started and that still run."""
    found = []
    for task in os.listdir(f"/proc/{os.getpid()}/task"):
        with open(f"/proc/{os.getpid()}/task/{task}/children") as file:
            found += [int(word) for word in file.read().split()]
    return found


def is_running(pid):
    """Return whether the process exists and is not a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
