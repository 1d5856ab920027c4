"""Clusters as the board shows them: hosts with their GPUs, the runs on them, and queued runs. A pool is a cluster that
is a list of SSH hosts; a row is a run's row in the table of all runs. Clusters are queried in threads, so that one that
does not answer delays nothing.
"""

import contextlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace as replace_struct

from launcher import api
from launcher.apps.board.rows import BoardRow
from launcher.errors import BadInput, LaunchError
from launcher.health.last import CheckUp, last_check_up
from launcher.places.place import HostNow
from launcher.run.attempts import newest, read_plan
from launcher.run.layout import RunDir
from launcher.states import LOCAL, State

if TYPE_CHECKING:
    from launcher.places.clusters_file import ClusterEntry
    from launcher.spec.model import JobSpec

_FRESH_S = 15.0  # hosts are asked no more often
_PATIENCE_S = 0.8  # of a page, for the first answer
_SILENT_S = 60.0  # since it was asked: then the page says so
_AT_ONCE = 16  # a silent one holds up no other
_MOST_HOSTS = 400  # that a page shows of a cluster


class WaitingRun(msgspec.Struct, frozen=True):
    """A queued run: its id, why it waits, and since when (Unix time)."""

    run: str
    why: str
    since: float


class HostSums(msgspec.Struct, frozen=True):
    """The number of hosts and GPUs of a cluster in total, including hosts that the page does not show, and how many are
    free. A host of which a run has a part is not free, but its other GPUs count as free.
    """

    hosts: int
    free_hosts: int
    gpus: int
    free_gpus: int


class BoardCluster(msgspec.Struct, frozen=True):
    """A cluster as the page shows it. `at` is when its hosts were last read (None: never), `asking` tells whether a
    query is under way, `error` says why the last one failed or is "", `running` are ids of runs, and `doctor` has the
    last findings of `launch doctor`.
    """

    name: str
    kind: str  # such as local, slurm or ssh
    at: float | None  # when its hosts were last read; None: never, or it has none that can be read
    asking: bool
    error: str
    sums: HostSums  # totals over its hosts
    hosts: list[HostNow]
    waiting: list[WaitingRun]  # runs that are queued on it
    running: list[str]
    doctor: CheckUp | None


class BoardClusters(msgspec.Struct, frozen=True):
    """The clusters of the board; `error` says why those of the clusters file are missing, or is ""."""

    clusters: list[BoardCluster]
    error: str


class Survey:
    """The hosts of all clusters, queried in threads. A cluster's last answer is kept until a newer one comes."""

    def __init__(self, *, fresh_s: float = _FRESH_S, silent_s: float = _SILENT_S) -> None:
        self._fresh_s, self._silent_s = fresh_s, silent_s
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="survey")
        self._lock = threading.Lock()
        self._asked: dict[str, tuple[float, Future[list[HostNow]]]] = {}
        self._answers: dict[str, tuple[float, list[HostNow], str]] = {}

    def close(self) -> None:
        """Stop the threads, without waiting for clusters to answer."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def clusters(self, rows: Sequence[BoardRow]) -> BoardClusters:
        """Return this machine, the clusters of the clusters file, and pools that only specs of active runs name, with
        their last answers; `rows`, the rows of all runs, tell which runs are on each.

        New queries are started for answers that are out of date; only a cluster that has never answered is waited for,
        for less than a second.
        """
        places, error = _named()
        specs = _pools_of_specs(rows, places)
        asked = [self._ask(name, place, specs.get(name)) for name, place in places.items()]
        until = time.monotonic() + _PATIENCE_S
        for name, future in zip(places, asked, strict=True):
            if name not in self._answers:
                self._wait(future, until)
        return BoardClusters([self._cluster(name, place.kind, rows) for name, place in places.items()], error)

    @staticmethod
    def _wait(future: "Future[list[HostNow]]", until: float) -> None:
        """Wait until the query has succeeded or failed, but not longer than until `until`, by the monotonic clock."""
        try:
            future.exception(max(0.0, until - time.monotonic()))
        except TimeoutError:
            return

    def _ask(self, name: str, place: "ClusterEntry", spec: "JobSpec | None") -> "Future[list[HostNow]]":
        """Return the future of a query for the hosts of the cluster `name`: the last query if it is under way or began
        less than `fresh_s` seconds ago, else a new one.

        `spec` names the hosts of a pool that the clusters file lacks; it is None for any other cluster.
        """
        with self._lock:
            began, future = self._asked.get(name, (float("-inf"), None))
            old = time.monotonic() - began >= self._fresh_s
            if future is None or (future.done() and old):
                future = self._threads.submit(_hosts_of, place, spec)
                future.add_done_callback(lambda done: self._store_answer(name, done))
                self._asked[name] = time.monotonic(), future
            return future

    def _store_answer(self, name: str, done: "Future[list[HostNow]]") -> None:
        """Store the answer of a query for the cluster `name`; if it failed, store the error beside the last good
        answer.
        """
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._answers[name] = (time.time(), done.result(), "")
        else:
            at, hosts, _ = self._answers.get(name, (0.0, [], ""))
            self._answers[name] = at, hosts, _error_text(name, error)

    def _cluster(self, name: str, kind: str, rows: Sequence[BoardRow]) -> BoardCluster:
        """Return the cluster `name` for the page, from its last answer (without hosts before the first one) and from
        those of `rows`, the rows of all runs, that are on it and have not ended.
        """
        at, hosts, error = self._answers.get(name, (0.0, [], ""))
        mine = [row for row in rows if row.cluster == name and not row.ended]
        waiting = [WaitingRun(row.id, row.headline, row.submitted_at) for row in mine if row.state is State.QUEUED]
        running = [row.id for row in mine if row.state is not State.QUEUED]
        asking = not self._asked[name][1].done()
        if asking and time.monotonic() - self._asked[name][0] >= self._silent_s:
            asking, error = (
                False,
                f"{name} has not answered for {self._silent_s:.0f} s: `launch doctor {name}` looks why",
            )
        shown = [with_runs(host, mine) for host in hosts]
        shown.sort(key=lambda host: not host.runs)  # those that one asks about come first
        return BoardCluster(
            name, kind, at if hosts else None, asking, error, _sums(hosts), shown[:_MOST_HOSTS], waiting, running,
            last_check_up(name),
        )  # fmt: skip


def _named() -> "tuple[dict[str, ClusterEntry], str]":
    """Return (all clusters by name, ""): this machine as `local`, the batch systems whose commands are installed here,
    and those of the clusters file. If that file cannot be read, return (this machine alone, the error).
    """
    from launcher.places.clusters_file import ClusterEntry, named_clusters  # late: it reads YAML

    try:
        return named_clusters(), ""
    except BadInput as error:
        said = f"the clusters file cannot be used, so that its clusters are missing here; mend it: {error.lines[0]}"
        return {LOCAL: ClusterEntry(LOCAL, LOCAL)}, said


def _pools_of_specs(rows: Sequence[BoardRow], places: "dict[str, ClusterEntry]") -> "dict[str, JobSpec]":
    """Find the pools of active runs that are not in the clusters file, and add them to `places`, the clusters by name.

    Return {pool: the spec of one of its runs, in which the hosts are those of all specs that name it}. `rows` has the
    runs.
    """
    from launcher.places.clusters_file import ClusterEntry, is_pool  # late: it reads YAML

    specs = dict[str, "JobSpec"]()
    for row in (row for row in rows if not row.ended and (row.cluster not in places or row.cluster in specs)):
        with contextlib.suppress(LaunchError, OSError):  # it is being removed
            run = RunDir(api.run(row.id).path)
            attempt = newest(run)
            plan = read_plan(run, attempt.number if attempt is not None else 1)
            if is_pool(plan.cluster_kind):
                known = specs.get(row.cluster, plan.spec)
                hosts = tuple(dict.fromkeys((*known.ssh.hosts, *plan.spec.ssh.hosts)))
                specs[row.cluster] = replace_struct(known, ssh=replace_struct(known.ssh, hosts=hosts))
                places[row.cluster] = ClusterEntry(plan.cluster_kind, row.cluster)
    return specs


def _error_text(name: str, error: BaseException) -> str:
    """Return a sentence for the user on the `error` of a query for the cluster `name`, and on what to do."""
    doctor = f"`launch doctor {name}` looks into it"
    if isinstance(error, LaunchError) and error.lines:
        said, *hints = error.lines
        return "; ".join([said, *(hint.removeprefix("hint: ") for hint in hints or [doctor])])
    why = (
        f"cannot be asked ({error.strerror or error})" if isinstance(error, OSError) else "answered what cannot be read"
    )
    return f"{name} {why}: {doctor}"


def _hosts_of(place: "ClusterEntry", spec: "JobSpec | None") -> list[HostNow]:
    """Query the cluster for its hosts, and return them.

    `spec` names the hosts of a pool that the clusters file lacks; it is None for any other cluster.
    """
    from launcher.places.clusters_file import hosts_of  # late: it reads YAML
    from launcher.spec.model import JobSpec, RunOptions  # late: likewise

    return hosts_of(place, spec or JobSpec("board", RunOptions()))


def with_runs(host: HostNow, rows: Sequence[BoardRow]) -> HostNow:
    """Return `host` with the runs added that, by their row in `rows`, belong to one of its batch jobs; a batch system
    itself reports only jobs.
    """
    runs = tuple(row.id for row in rows if row.job is not None and row.job in host.jobs)
    return replace(host, runs=(*host.runs, *runs)) if runs else host


def _sums(hosts: Sequence[HostNow]) -> HostSums:
    """Return the totals over the hosts; GPUs of a host in an unknown state do not count as free."""
    free = sum(host.state == "free" for host in hosts)
    usable = [host for host in hosts if host.state != "unknown"]
    return HostSums(
        len(hosts), free, sum(host.gpus or 0 for host in hosts), sum(host.free_gpus or 0 for host in usable)
    )
