"""Clusters as a page shows them: hosts with their GPUs, who has them, and what waits. Nobody waits for a silent one."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from launcher.board.rows import BoardRow
from launcher.clusters.protocol import HostNow
from launcher.doctor.last import CheckUp, last_check_up
from launcher.errors import LaunchError
from launcher.words import State

if TYPE_CHECKING:
    from launcher.clusters.clusters_file import ClusterEntry

_FRESH_S = 15.0  # hosts are asked no more often
_PATIENCE_S = 0.8  # of a page, for the first answer
_MOST_HOSTS = 400  # that a page shows of a cluster


class WaitingRun(msgspec.Struct, frozen=True):
    run: str
    why: str
    since: float


class HostSums(msgspec.Struct, frozen=True):
    """Of all hosts, those that the page does not show too."""

    hosts: int
    free_hosts: int
    gpus: int
    free_gpus: int


class BoardCluster(msgspec.Struct, frozen=True):
    name: str
    kind: str
    at: float | None  # when its hosts were last seen; None: they have not answered yet, or it has none to ask
    asking: bool
    error: str
    sums: HostSums
    hosts: list[HostNow]
    waiting: list[WaitingRun]
    running: list[str]
    doctor: CheckUp | None


class Survey:
    """The hosts of clusters, asked in threads; what they last said stays until they say something else."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="survey")
        self._lock = threading.Lock()
        self._asked: dict[str, tuple[float, Future[list[HostNow]]]] = {}
        self._said: dict[str, tuple[float, list[HostNow], str]] = {}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def clusters(self, rows: Sequence[BoardRow]) -> list[BoardCluster]:
        """All that the clusters file names, and this machine."""
        from launcher.clusters.clusters_file import named_clusters  # late: it reads YAML

        places = named_clusters()
        asked = [self._ask(name, place) for name, place in places.items()]
        until = time.monotonic() + _PATIENCE_S
        for name, future in zip(places, asked, strict=True):
            if name not in self._said:
                self._wait(future, until)
        return [self._cluster(name, place.kind, rows) for name, place in places.items()]

    @staticmethod
    def _wait(future: "Future[list[HostNow]]", until: float) -> None:
        try:
            future.exception(max(0.0, until - time.monotonic()))
        except TimeoutError:
            return

    def _ask(self, name: str, place: "ClusterEntry") -> "Future[list[HostNow]]":
        with self._lock:
            began, future = self._asked.get(name, (float("-inf"), None))
            old = time.monotonic() - began >= _FRESH_S
            if future is None or (future.done() and old):
                future = self._threads.submit(_hosts_of, place)
                future.add_done_callback(lambda done: self._hear(name, done))
                self._asked[name] = time.monotonic(), future
            return future

    def _hear(self, name: str, done: "Future[list[HostNow]]") -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._said[name] = (time.time(), done.result(), "")
        else:
            at, hosts, _ = self._said.get(name, (0.0, [], ""))
            said = error.lines[0] if isinstance(error, LaunchError) and error.lines else str(error)
            self._said[name] = at, hosts, said

    def _cluster(self, name: str, kind: str, rows: Sequence[BoardRow]) -> BoardCluster:
        at, hosts, error = self._said.get(name, (0.0, [], ""))
        mine = [row for row in rows if row.cluster == name and not row.ended]
        waiting = [WaitingRun(row.id, row.headline, row.submitted_at) for row in mine if row.state is State.QUEUED]
        running = [row.id for row in mine if row.state is not State.QUEUED]
        asking = name in self._asked and not self._asked[name][1].done()
        shown = [with_runs(host, mine) for host in hosts]
        shown.sort(key=lambda host: not host.runs)  # those that one asks about come first
        return BoardCluster(
            name, kind, at if hosts else None, asking, error, _sums(hosts), shown[:_MOST_HOSTS], waiting, running,
            last_check_up(name),
        )  # fmt: skip


def _hosts_of(place: "ClusterEntry") -> list[HostNow]:
    from launcher.clusters.clusters_file import hosts_of  # late: it reads YAML
    from launcher.spec.model import JobSpec, RunOptions  # late: likewise

    return hosts_of(place, JobSpec("board", RunOptions()))


def with_runs(host: HostNow, rows: Sequence[BoardRow]) -> HostNow:
    """With the runs of its jobs, where the cluster knows of jobs alone."""
    runs = tuple(row.id for row in rows if row.job is not None and row.job in host.jobs)
    return replace(host, runs=(*host.runs, *runs)) if runs else host


def _sums(hosts: Sequence[HostNow]) -> HostSums:
    free = sum(host.state == "free" for host in hosts)
    usable = [host for host in hosts if host.state != "unknown"]
    return HostSums(
        len(hosts), free, sum(host.gpus or 0 for host in hosts), sum(host.free_gpus or 0 for host in usable)
    )
