"""Shared parts of the checkpoint benchmarks: a replicated state of a given size on gloo ranks, and clocks."""

import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "trainer"))  # where `ranks` is

import torch
import torch.distributed as dist
from ranks import Ranks
from torch import nn

from trainer import world as worlds

_LIMIT_S = 7200.0


class Replica:
    """A model and its Adam on each rank: a third of the bytes are parameters."""

    def __init__(self, megabytes, device="cpu"):
        width = 128 if megabytes < 20 else 1024 if megabytes < 500 else 2048
        layers = max(1, round(megabytes * 1e6 / (12 * width * (width + 1))))
        torch.manual_seed(1)
        self.model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        for parameter in self.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    @property
    def bytes(self):
        """Return the bytes of one full copy."""
        tensors = [*self.model.parameters(), *(t for state in self.optimizer.state.values() for t in state.values())]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def state_dict(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


class Clock:
    """Times that count are those of the slowest rank."""

    def __init__(self, world):
        self.world = world

    def together(self):
        """Wait for all ranks, and until the disk is idle."""
        if self.world.is_first:
            os.sync()
        worlds.barrier(self.world)

    def slowest(self, seconds):
        if self.world.control is None:
            return seconds
        value = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(value, dist.ReduceOp.MAX, group=self.world.control)
        return float(value)

    def total(self, number):
        if self.world.control is None:
            return number
        value = torch.tensor(number, dtype=torch.int64)
        dist.all_reduce(value, group=self.world.control)
        return int(value)

    def time(self, work):
        """Seconds until the slowest rank has done it."""
        self.together()
        began = time.perf_counter()
        work()
        return self.slowest(time.perf_counter() - began)


@contextlib.contextmanager
def folder_for_all(where):
    """A folder that is gone afterwards; made before there are ranks."""
    path = Path(tempfile.mkdtemp(prefix="benchmark-", dir=where))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def on_ranks(work, size, *args):
    """Return the first rank's result of `work(world, *args)`."""
    environment = {name: "" for name in os.environ if name.startswith("LAUNCH_")}
    ranks = Ranks(_entry, size, work, args, env=environment)
    return ranks.results(_LIMIT_S)[0]


def _entry(work, args):
    world = worlds.join(device="cpu")
    answer = work(world, *args)
    worlds.barrier(world)
    return answer


def ratio(ours, theirs):
    """The median of the ratios of what was measured side by side."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def spread(values, digits=2):
    """Median and range, as cells of a table."""
    between = " to " if min(values) < 0 else "-"
    return f"{statistics.median(values):.{digits}f} | {min(values):.{digits}f}{between}{max(values):.{digits}f}"
