"""Sample every five seconds what a node's machine and ranks use.

A thread takes the samples, so that a slow driver cannot block the agent, and the next heartbeat carries the newest.
While ranks run, samples are written to a file of metrics, at longer and longer intervals as the run grows older.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from launcher.clock import boottime
from launcher.node.load.gpus import Gpu, Gpus
from launcher.node.ranks.reports.metrics_file import MetricsFile
from launcher.plan.model import NodePlan
from launcher.run.identity import stat_fields
from launcher.run.processes import io_counts, pids
from launcher.run.records import NodeLoad, RankLoad
from launcher.wire.interfaces import interface_of

EVERY_S = 5.0
KEPT_SAMPLES = 500  # all of them; later ones are as far apart as one of so many parts of the time that has passed
_LEAST_S = 0.1  # over which a rate means anything: the kernel counts time in hundredths

_OF_NODE = ("cpu", "memory", "received", "sent", "read", "written")

Pids = Mapping[int, int]  # by rank
_TICKS = os.sysconf("SC_CLK_TCK")
_SECTOR = 512
_WORD = 4  # InfiniBand counts in these
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LOOKS = 12  # after so many everybody is looked at again: a number may have become a process of ours


class Process(NamedTuple):
    """The kernel's counters of one process: its processor time in seconds (`cpu_s`), which includes that of its
    children that have ended, and its own memory. `parent` is the pid of its parent.
    """

    pid: int
    parent: int
    started_s: float  # seconds from the machine's boot
    cpu_s: float
    memory: int  # bytes resident


class TreeUse(NamedTuple):
    """The resources that a process and all its descendants have used so far: seconds of processors (`cpu_s`), bytes
    `read` from and `written` to disks.

    `memory` is the number of bytes that they hold now, `started_s` the root's start in seconds from the machine's
    boot.
    """

    started_s: float
    cpu_s: float
    memory: int
    read: int
    written: int
    pids: frozenset[int]  # of all these processes


class Trees:
    """A repeated search for the descendants of given processes. To save time it reads those pids no more that an
    earlier search found to be unrelated, except at every twelfth search and when a given process is new.
    """

    def __init__(self) -> None:
        self._strangers: set[int] = set()
        self._roots: set[int] = set()
        self._looks = 0

    def look(self, roots: Collection[int]) -> dict[int, TreeUse]:
        """Return the resource use of each process tree, by the pid of its root; a root that has ended is left out."""
        if self._looks % _LOOKS == 0 or not self._roots.issuperset(roots):
            self._strangers = set()
        self._looks, self._roots = self._looks + 1, set(roots)
        there = set(pids())
        found = {pid: one for pid in (there - self._strangers) | self._roots if (one := read_process(pid)) is not None}
        children: dict[int, list[Process]] = {}
        for one in found.values():
            children.setdefault(one.parent, []).append(one)
        trees = {root: [found[root], *_below(root, children)] for root in roots if root in found}
        ours = {one.pid for tree in trees.values() for one in tree}
        self._strangers = (self._strangers & there) | (found.keys() - ours)
        return {root: _use(tree) for root, tree in trees.items()}


def read_process(pid: int) -> Process | None:
    """Return a process's parent, start, processor time and memory, from /proc, or None if it has ended."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return None
    ticks = sum(map(int, fields[11:15]))
    return Process(pid, int(fields[1]), int(fields[19]) / _TICKS, ticks / _TICKS, int(fields[21]) * _PAGE)


def _below(root: int, children: dict[int, list[Process]]) -> Iterator[Process]:
    """Yield the descendants of the process `root`, without itself, given the children of each process by its pid."""
    stack = [root]
    while stack:
        for one in children.get(stack.pop(), ()):
            yield one
            stack.append(one.pid)


def _use(tree: list[Process]) -> TreeUse:
    """Return the sum of the resources that the processes of `tree` use; the first one is its root."""
    moved = [_moved(one.pid) for one in tree]
    return TreeUse(
        started_s=tree[0].started_s,
        cpu_s=sum(one.cpu_s for one in tree),
        memory=sum(one.memory for one in tree),
        read=sum(read for read, _ in moved),
        written=sum(written for _, written in moved),
        pids=frozenset(one.pid for one in tree),
    )


def _moved(pid: int) -> tuple[int, int]:
    """Return (bytes read from disks, bytes written to disks) by the process; zeros if the kernel does not show them."""
    try:
        counts = io_counts(pid)
    except OSError:
        return 0, 0
    return counts[b"read_bytes"], counts[b"write_bytes"]


class MachineUse(NamedTuple):
    """The machine's counters since boot: CPU seconds of all cores, bytes `received` and `sent` over the network, bytes
    `read` from and `written` to disks.

    `memory` is the number of bytes in use now, of `memory_total`.
    """

    cpu_s: float = 0.0
    memory: int = 0
    memory_total: int = 0
    received: int = 0
    sent: int = 0
    read: int = 0
    written: int = 0


def machine_use(interface: str | None, root: Path = Path("/")) -> MachineUse:
    """Return the machine's counters since boot, with 0 for those that the kernel does not report.

    Bytes of all physical network devices count, and those of `interface` even if it is virtual. `root` is the folder
    that holds /proc and /sys.
    """
    memory = {name: int(rest.split()[0]) * 1024 for name, rest in _pairs(root / "proc/meminfo") if rest.split()}
    total = memory.get("MemTotal", 0)
    received, sent = _network(interface, root)
    read, written = _disks(root)
    in_use = max(0, total - memory.get("MemAvailable", total))
    return MachineUse(_cpu_s(root), in_use, total, received, sent, read, written)


def _cpu_s(root: Path) -> float:
    """Return the seconds of processor time used by all cores since boot; `root` is the folder that holds /proc."""
    for line in _lines(root / "proc/stat"):
        words = line.split()
        if words[0] == "cpu":
            user, nice, system, _, _, *more = map(int, words[1:])
            return (user + nice + system + sum(more[:3])) / _TICKS  # guests are in user
    return 0.0


def _network(interface: str | None, root: Path) -> tuple[int, int]:
    """Return (bytes received, bytes sent) since boot by physical devices, and by `interface` if it is virtual, such as
    a bond or a container's. `root` is the folder that holds /proc and /sys.

    A physical device below `interface` is not counted twice.
    """
    folder = root / "sys/class/net"
    below = {name.removeprefix("lower_") for name in _names(folder / (interface or "-")) if name.startswith("lower_")}
    devices = {name for name in _names(folder) if (folder / name / "device").exists()} - below
    wanted = devices | ({interface} if interface else set())
    received = sent = 0
    for name, rest in _pairs(root / "proc/net/dev"):
        if name in wanted:
            fields = rest.split()
            received, sent = received + int(fields[0]), sent + int(fields[8])
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*/counters")):
        received += _number(port / "port_rcv_data") * _WORD
        sent += _number(port / "port_xmit_data") * _WORD
    return received, sent


def _disks(root: Path) -> tuple[int, int]:
    """Return (bytes read, bytes written) since boot by physical disks, without devices built on them, which would count
    twice. `root` is the folder that holds /proc and /sys.
    """
    read = written = 0
    blocks = root / "sys/block"
    for line in _lines(root / "proc/diskstats"):
        fields = line.split()
        if len(fields) > 9 and (blocks / fields[2] / "device").exists():
            read, written = read + int(fields[5]) * _SECTOR, written + int(fields[9]) * _SECTOR
    return read, written


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each line `name: value` of a file."""
    for line in _lines(path):
        name, colon, rest = line.partition(":")
        if colon:
            yield name.strip(), rest


def _lines(path: Path) -> list[str]:
    """Return the lines of a file, or an empty list if it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _names(folder: Path) -> list[str]:
    """Return the names in a folder, or an empty list if it cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _number(path: Path) -> int:
    """Return the number in a file, or 0 if the file holds none or cannot be read."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


class Sampler:
    """A thread that samples the load of a node and its ranks every five seconds; it calls `ranks` for the pids of the
    live ranks by rank number.

    `fresh` returns the newest sample, for the heartbeat; while ranks run, samples are also written to a file.
    """

    def __init__(self, node: NodePlan, ranks: Callable[[], Pids], kept: MetricsFile | None = None) -> None:
        """Prepare to sample; samples of live ranks are written to `kept`."""
        self._node, self._ranks, self._kept = node, ranks, kept
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
            time.sleep(EVERY_S)
            self.take(gpus)

    def take(self, gpus: Gpus) -> None:
        """Take one sample: hold it for `fresh`, which the heartbeat calls, and add it to the node's metrics file if
        ranks run.
        """
        self._fresh = sample = self.sample(gpus)
        if self._kept is not None and sample.ranks:
            self._kept.add(sample.node, int(sample.at), named_values(sample))

    def close(self) -> None:
        """Write samples that are not on disk yet to the metrics file, if there is one. The thread is not stopped: it
        ends with the process.
        """
        if self._kept is not None:
            self._kept.close()

    def sample(self, gpus: Gpus) -> NodeLoad:
        """Return the load of the node, of its ranks and of `gpus`; rates are averages since the last sample."""
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
    """Return the values of a sample by name, such as `node0/cpu`, `node0/gpu1/busy` and `rank3/memory`. Processor time
    is in cores, memory in bytes, traffic in bytes a second.
    """
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
    """Return the load of rank `rank` between two samples, `before` and `now`: pairs of the time by `boottime` and the
    resources that the rank's processes had used by then. None for `before` means since the rank's start. `cards` are
    the node's GPUs.
    """
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
    """Return the load of node `node` between two readings of its machine's counters, `before` and `now`, each a pair of
    the time by `boottime` and the counters. `cards` are its GPUs, and `ranks` the loads of the ranks on it.
    """
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
    """Return by how much a counter grew per second from `before` to `now`, over `passed_s` seconds, or 0 if it has
    decreased.
    """
    return int(max(0, now - before) / passed_s)  # less than before: a counter of something that is gone
