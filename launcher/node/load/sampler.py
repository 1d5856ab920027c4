"""Sample every five seconds what a node's machine and ranks use.

A thread takes the samples, so that a slow driver cannot block the agent, and the next heartbeat carries the newest.
Samples of running ranks are kept in a file of metrics, further and further apart as the run grows older.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from launcher.clock import boottime
from launcher.node.load.counters import MachineUse, machine_use
from launcher.node.load.gpus import Gpu, Gpus
from launcher.node.load.trees import Trees, TreeUse
from launcher.node.ranks.reports.metrics_file import MetricsFile
from launcher.plan.model import NodePlan
from launcher.run.records import NodeLoad, RankLoad
from launcher.wire.interfaces import interface_of

EVERY_S = 5.0
KEPT_SAMPLES = 500  # all of them; later ones are as far apart as one of so many parts of the time that has passed
_LEAST_S = 0.1  # over which a rate means anything: the kernel counts time in hundredths

_OF_NODE = ("cpu", "memory", "received", "sent", "read", "written")

Pids = Mapping[int, int]  # by rank


class Sampler:
    """A thread that samples the load of a node, and calls `ranks` for the pids of the live ranks."""

    def __init__(
        self, node: NodePlan, ranks: Callable[[], Pids], every_s: float = EVERY_S, kept: MetricsFile | None = None
    ) -> None:
        """Prepare to sample; samples of live ranks are written to `kept`."""
        self._node, self._ranks, self._every_s, self._kept = node, ranks, every_s, kept
        self._interface = interface_of(node.address) if node.address else None
        self._trees = Trees()
        self._before: dict[int, tuple[float, TreeUse]] = {}  # by pid: when it was looked at, and what was seen
        self._machine: tuple[float, MachineUse] = (boottime(), machine_use(self._interface))
        self._fresh: NodeLoad | None = None
        self._thread = threading.Thread(target=self._work, name="load", daemon=True)

    def start(self) -> None:
        """Start the thread that samples."""
        self._thread.start()

    def fresh(self) -> NodeLoad | None:
        """Return the newest sample if it has not been returned before, else None."""
        sample, self._fresh = self._fresh, None
        return sample

    def _work(self) -> None:
        """Take samples for ever, at the interval."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") if self._node.gpus is None else ",".join(self._node.gpus)
        gpus = Gpus(visible)
        while True:
            time.sleep(self._every_s)
            self.take(gpus)

    def take(self, gpus: Gpus) -> None:
        """Sample now, for `fresh` and for the file."""
        self._fresh = sample = self.sample(gpus)
        if self._kept is not None and sample.ranks:
            self._kept.add(sample.node, int(sample.at), named_values(sample))

    def close(self) -> None:
        """Write the newest samples to the file."""
        if self._kept is not None:
            self._kept.close()

    def sample(self, gpus: Gpus) -> NodeLoad:
        """Return the load, averaged over the time since the last sample."""
        cards, pids = gpus.look(), dict(self._ranks())
        at = boottime()
        seen = {pid: (at, use) for pid, use in self._trees.look(pids.values()).items()}
        ranks = [
            rank_load(rank, self._before.get(pid), seen[pid], cards)
            for rank, pid in sorted(pids.items())
            if pid in seen
        ]
        before, self._before = self._machine, seen
        self._machine = (at, machine_use(self._interface))
        return node_load(self._node.index, before, self._machine, cards, ranks)


def named_values(load: NodeLoad) -> dict[str, float]:
    """Return a sample as metrics: `node0/cpu`, `node0/gpu1/busy`, `rank3/memory`; cores, bytes and bytes a second."""
    node = f"node{load.node}"
    values = {f"{node}/{name}": float(getattr(load, name)) for name in _OF_NODE}
    for gpu in load.gpus:
        if gpu.busy is not None:
            values[f"{node}/gpu{gpu.index}/busy"] = float(gpu.busy)
        values[f"{node}/gpu{gpu.index}/gpu_memory"] = float(gpu.memory)
    for rank in load.ranks:
        values |= {f"rank{rank.rank}/cpu": rank.cpu, f"rank{rank.rank}/memory": float(rank.memory)}
        if rank.gpus:
            values[f"rank{rank.rank}/gpu_memory"] = float(rank.gpu_memory)
    return values


def rank_load(
    rank: int, before: tuple[float, TreeUse] | None, now: tuple[float, TreeUse], cards: Sequence[Gpu]
) -> RankLoad:
    """Return the use of a rank between two samples, or since the rank's start if `before` is None."""
    at, use = now
    since, was = before or (use.started_s, TreeUse(use.started_s, 0.0, 0, 0, 0, frozenset()))
    passed_s = max(_LEAST_S, at - since)
    mine = [card for card in cards if use.pids & card.held.keys()]
    return RankLoad(
        rank,
        cpu=round(max(0.0, use.cpu_s - was.cpu_s) / passed_s, 2),
        memory=use.memory,
        processes=len(use.pids),
        read=_rate(was.read, use.read, passed_s),
        written=_rate(was.written, use.written, passed_s),
        gpus=tuple(card.load.index for card in mine),
        gpu_memory=sum(card.held.get(pid, 0) for card in mine for pid in use.pids),
    )


def node_load(
    node: int,
    before: tuple[float, MachineUse],
    now: tuple[float, MachineUse],
    cards: Sequence[Gpu],
    ranks: Sequence[RankLoad],
) -> NodeLoad:
    """Return the load of a node between two readings of its counters."""
    (since, was), (at, use) = before, now
    passed_s = max(_LEAST_S, at - since)
    return NodeLoad(
        node,
        at=round(time.time(), 3),
        cores=os.cpu_count() or 0,
        cpu=round(max(0.0, use.cpu_s - was.cpu_s) / passed_s, 2),
        memory=use.memory,
        memory_total=use.memory_total,
        received=_rate(was.received, use.received, passed_s),
        sent=_rate(was.sent, use.sent, passed_s),
        read=_rate(was.read, use.read, passed_s),
        written=_rate(was.written, use.written, passed_s),
        gpus=tuple(card.load for card in cards),
        ranks=tuple(ranks),
    )


def _rate(before: int, now: int, passed_s: float) -> int:
    """Return the increase of a counter per second, or 0 if it has decreased."""
    return int(max(0, now - before) / passed_s)  # less than before: a counter of something that is gone
