"""Clusters as a page shows them: hosts with their GPUs, who has them, and what waits. Nobody waits for a silent one."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from launcher.board.rows import BoardRow
from launcher.errors import LaunchError
from launcher.words import State

if TYPE_CHECKING:
    from launcher.clusters.ssh.facts import Surveyed
    from launcher.spec.model import Ssh

_FRESH_S = 15.0  # hosts are asked no more often
_PATIENCE_S = 0.8  # of a page, for the first answer


class BoardHost(msgspec.Struct, frozen=True):
    host: str
    state: str  # free, taken or unknown
    gpus: int | None
    free_gpus: int | None
    runs: list[str]
    text: str = ""


class WaitingRun(msgspec.Struct, frozen=True):
    run: str
    why: str
    since: float


class BoardCluster(msgspec.Struct, frozen=True):
    name: str
    kind: str
    at: float | None  # when its hosts were last seen; None: they have not answered yet, or it has none to ask
    asking: bool
    error: str
    hosts: list[BoardHost]
    waiting: list[WaitingRun]
    running: list[str]


class Survey:
    """The hosts of pools, asked in threads; what they last said stays until they say something else."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="survey")
        self._lock = threading.Lock()
        self._asked: dict[str, tuple[float, Future[tuple[list[BoardHost], str]]]] = {}
        self._said: dict[str, tuple[float, list[BoardHost], str]] = {}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def clusters(self, rows: Sequence[BoardRow]) -> list[BoardCluster]:
        """All that the clusters file names, and this machine."""
        from launcher.clusters.clusters_file import named_clusters, named_pools  # late: it reads YAML

        pools = named_pools()
        asked = [self._ask(name, pool) for name, pool in pools.items()]
        until = time.monotonic() + _PATIENCE_S
        for name, future in zip(pools, asked, strict=True):
            if name not in self._said:
                self._wait(future, until)
        return [self._cluster(name, entry.kind, rows) for name, entry in named_clusters().items()]

    @staticmethod
    def _wait(future: "Future[tuple[list[BoardHost], str]]", until: float) -> None:
        try:
            future.result(max(0.0, until - time.monotonic()))
        except TimeoutError:
            return

    def _ask(self, name: str, pool: "Ssh") -> "Future[tuple[list[BoardHost], str]]":
        with self._lock:
            began, future = self._asked.get(name, (float("-inf"), None))
            old = time.monotonic() - began >= _FRESH_S
            if future is None or (future.done() and old):
                future = self._threads.submit(_survey, pool)
                future.add_done_callback(lambda done: self._hear(name, done))
                self._asked[name] = time.monotonic(), future
            return future

    def _hear(self, name: str, done: "Future[tuple[list[BoardHost], str]]") -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._said[name] = (time.time(), *done.result())
        else:
            at, hosts, _ = self._said.get(name, (0.0, [], ""))
            self._said[name] = at, hosts, str(error)

    def _cluster(self, name: str, kind: str, rows: Sequence[BoardRow]) -> BoardCluster:
        at, hosts, error = self._said.get(name, (0.0, [], ""))
        mine = [row for row in rows if row.cluster == name and not row.ended]
        waiting = [WaitingRun(row.id, row.headline, row.submitted_at) for row in mine if row.state is State.QUEUED]
        running = [row.id for row in mine if row.state is not State.QUEUED]
        asking = name in self._asked and not self._asked[name][1].done()
        return BoardCluster(name, kind, at or None, asking, error, hosts, waiting, running)


def _survey(pool: "Ssh") -> tuple[list[BoardHost], str]:
    from launcher.clusters.ssh import pool as crew  # late: paramiko costs 0.3 s

    try:
        found, troubles = crew.surveyed(pool)
    except LaunchError as error:
        return [], str(error)
    hosts = [
        _host(found[host.name]) if host.name in found else _unseen(host.name, str(troubles.get(host.name, "")))
        for host in crew.hosts_of(pool)
    ]
    return hosts, ""


def _host(one: "Surveyed") -> BoardHost:
    taken = one.taken("gpu")
    runs = [*dict.fromkeys(holder.run for holder in one.occupancy.held if holder.run)]
    waits = len(one.occupancy.waiting)
    text = f"{waits} waiting" if waits else ""
    return BoardHost(one.host.name, "taken" if runs else "free", len(one.gpus), len(one.gpus) - taken, runs, text)


def _unseen(name: str, why: str) -> BoardHost:
    return BoardHost(name, "unknown", None, None, [], why)
