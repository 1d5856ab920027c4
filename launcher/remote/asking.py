"""The status of remote runs: one question to each login node, all at once, and none that holds up the others."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from launcher.errors import LaunchError
from launcher.remote import known
from launcher.remote.known import Asked, Login, RemoteRun, Seen
from launcher.remote.places import logins, now
from launcher.remote.ssh import Connection
from launcher.remote.wire import Outcome, Settle, Statuses
from launcher.rundir.identity import alive
from launcher.status.derive import RunStatus, derive
from launcher.status.facts import Moment, PlanHead, RunFacts
from launcher.words import State

LIMIT_S = 13.0
_GONE = "does not know it any more"
_QUIET_S = 30.0  # how long a login node that did not answer is left alone while somebody watches


_Memory = dict[str, dict[str, Seen]]  # by cluster and run


@dataclass(slots=True)
class _Question:
    """What one login node is asked."""

    login: Login
    runs: list[RemoteRun] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)  # whose askers are gone
    connection: Connection | None = None


class Board:
    """The statuses of remote runs, time and again over the same connections."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._open: dict[Login, Connection] = {}
        self._quiet: dict[Login, tuple[float, str]] = {}  # until when, and why

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def statuses(self, wanted: Sequence[RemoteRun] | None = None) -> list[RunStatus]:
        """Of these runs; or of all, and then of those that have ended what is known already."""
        runs = known.runs() if wanted is None else list(wanted)
        seen = {cluster: known.answers(cluster) for cluster in {run.login.cluster for run in runs}}
        live = runs if wanted is not None else [run for run in runs if not _has_ended(run, seen)]
        questions = _questions(live, _orphans() if wanted is None else [])
        deadline = time.monotonic() + self._limit_s
        troubles: dict[str, str] = {}
        for question in questions:
            self._begin(question, troubles)
        for question in questions:
            runs += self._finish(question, deadline, troubles, seen)
        return [_status(run, seen, troubles.get(run.run, "")) for run in runs]

    def _begin(self, question: _Question, troubles: dict[str, str]) -> None:
        """Ask; the answer is read when all have been asked."""
        login = question.login
        until, why = self._quiet.get(login, (0.0, ""))
        if time.monotonic() < until:
            troubles |= {run.run: why for run in question.runs}
            return
        try:
            question.connection = self._open.pop(login, None) or Connection(login)
        except LaunchError as error:
            troubles |= {run.run: error.lines[0] for run in question.runs}
            return
        if question.asked:
            question.connection.send(Settle(login.folder, tuple(one.token for one in question.asked)))
        else:
            question.connection.send(_statuses_of(question))

    def _finish(self, question: _Question, deadline: float, troubles: dict[str, str], seen: _Memory) -> list[RemoteRun]:
        """Read the answers into `seen`; gives the runs that only now turn out to exist."""
        connection, found = question.connection, list[RemoteRun]()
        if connection is None:
            return found
        try:
            if question.asked:
                outcomes = connection.receive(dict[str, Outcome], deadline)
                answered = [(asked, outcomes[asked.token]) for asked in question.asked if asked.token in outcomes]
                found = [run for pair in answered for run in known.settle(*pair)]
                question.runs += found
                connection.send(_statuses_of(question))
            statuses = connection.receive(dict[str, RunStatus], deadline)
        except LaunchError as error:
            connection.close()
            why = "; ".join(line.strip() for line in error.lines if not line.startswith("hint:"))
            self._quiet[question.login] = (time.monotonic() + _QUIET_S, why)
            troubles |= {run.run: why for run in question.runs}
            return found
        self._open[question.login] = connection
        _keep(question, statuses, seen)
        troubles |= {run.run: f"{question.login.login} {_GONE}" for run in question.runs if run.run not in statuses}
        return found


def statuses(wanted: Sequence[RemoteRun] | None = None) -> list[RunStatus]:
    """Of these runs, or of all, once."""
    with Board() as board:
        return board.statuses(wanted)


def _questions(runs: Iterable[RemoteRun], asked: Iterable[Asked]) -> list[_Question]:
    found: dict[Login, _Question] = {}
    places: dict[str, Login] | None = None
    everything: list[RemoteRun | Asked] = [*runs, *asked]
    for one in everything:
        places = logins() if places is None else places
        login = now(one.login, places)
        question = found.setdefault(login, _Question(login))
        if isinstance(one, RemoteRun):
            question.runs.append(one)
        else:
            question.asked.append(one)
    return list(found.values())


def _orphans() -> list[Asked]:
    """The submits whose submitter is gone without an answer."""
    return [asked for asked in known.asked() if alive(asked.by) is False]


def _statuses_of(question: _Question) -> Statuses:
    return Statuses(tuple(run.run for run in question.runs))


def _keep(question: _Question, statuses: dict[str, RunStatus], seen: _Memory) -> None:
    """For the time when nothing is answered."""
    at = time.time()
    by_cluster: _Memory = {}
    for run in question.runs:
        if run.run in statuses:
            by_cluster.setdefault(run.login.cluster, {})[run.run] = Seen(at, statuses[run.run])
    for cluster, new in by_cluster.items():
        seen[cluster] = {**known.answers(cluster), **new}
        known.keep_answers(cluster, seen[cluster])


def _has_ended(run: RemoteRun, seen: _Memory) -> bool:
    last = seen[run.login.cluster].get(run.run)
    return last is not None and last.status.state.ended


def _status(run: RemoteRun, seen: _Memory, trouble: str) -> RunStatus:
    """What is known of the run."""
    last = seen.get(run.login.cluster, {}).get(run.run)
    if last is None:
        moment = Moment(time.time(), 0.0, "")
        head = PlanHead(run.name, run.login.cluster, run.submitted_at)
        status = derive(RunFacts(Path(run.run), moment, head=head, trouble=(trouble,)))
        return _placed(run, status)
    if not trouble or (last.status.state.ended and _GONE not in trouble):
        return _placed(run, last.status)
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last.at))
    return msgspec.structs.replace(
        _placed(run, last.status),
        state=State.UNKNOWN,
        message=f"{trouble}; last seen {last.status.state.upper()} at {at}",
        cause=None,
        exit_code=None,
        rate=None,
        eta_s=None,
        as_of=last.at,
        next="",
    )


def _placed(run: RemoteRun, status: RunStatus) -> RunStatus:
    """As seen from here."""
    return msgspec.structs.replace(
        status, run=run.run, cluster=run.login.cluster, run_dir=f"{run.login.login}:{run.path}"
    )
