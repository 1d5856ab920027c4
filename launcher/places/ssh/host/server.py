"""`python -m launcher.programs host`: the host's side of a connection. It answers a submitter on stdin until
that hangs up.

Nothing that was begun depends on the connection, and nothing begins before GoAhead.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from launcher.copies.mirror import tails
from launcher.copies.mirror.roles import reports_of_roles
from launcher.errors import LaunchError
from launcher.ids import is_run_id
from launcher.places.place import CancelReport
from launcher.places.ssh.host import presence
from launcher.places.ssh.messages import (
    MOST_OF_A_REPORT,
    AskReport,
    AskSubmitted,
    AskTails,
    Cancel,
    CodeTree,
    ComeBack,
    GoAhead,
    IncludeHosts,
    ListCheckpoints,
    ListRuns,
    OfRun,
    Open,
    Opened,
    OpenedByHosts,
    PassOnCancel,
    Release,
    Request,
    RunReport,
    SendFile,
    Submitted,
    Supervisors,
    Tails,
    TakeFile,
    Tidy,
)
from launcher.remote.rpc.server import Body, WithBytes, serve
from launcher.run.attempts import newest, plan_as, read_intent, remains
from launcher.run.avoided import include
from launcher.run.durable import create_record, readable
from launcher.run.identity import alive, this_process
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import AttemptEnd, Exclusion, Handle, RunState, StopRequest
from launcher.states import State
from launcher.status.derive import derive
from launcher.status.facts import RunFacts, read_facts

if TYPE_CHECKING:
    from launcher.places.ssh.host.receive import AttemptReceiver

_LOGS = ("exits.jsonl", "keeper.log", "node-*/*.log")
MOST_OF_EVENTS, _MOST_OF_A_LOG = 8 << 20, 1 << 20
_MOST_OF_LOGS = MOST_OF_A_REPORT - MOST_OF_EVENTS


class _PlanNode(msgspec.Struct, frozen=True):
    """A node of a plan, of which only the host is decoded."""

    host: str  # its name in the pool


class _PlanHead(msgspec.Struct, frozen=True):
    """The fields of a run's plan that this host sends to a machine which asks about a run. No other fields are decoded,
    to keep `launch status` fast.
    """

    nodes: tuple[_PlanNode, ...]
    overrides: tuple[str, ...]
    submitted_at: float

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts of the plan's nodes."""
        return tuple(node.host for node in self.nodes)


def main(_argv: Sequence[str]) -> int:
    """Serve the submitter on stdin and stdout, and return the exit code."""
    os.umask(0o077)
    return serve(Request, HostServer().answer)


class HostServer:
    """The server for one connection of a submitter, which answers its requests."""

    def __init__(self) -> None:
        self._arrival: AttemptReceiver | None = None

    def answer(self, request: Request, body: Body) -> object:
        """Carry out a request and return the answer, of the type that `messages.py` names beside the request; `body`
        has the bytes that follow it. Raise LaunchError if it fails.
        """
        match request:
            case AskReport():
                return _report(_run(request), request.events_from)
            case ListRuns(workdir=workdir):
                return sorted(path.name for path in _folder(workdir).glob("runs/*") if is_run_id(path.name))
            case AskSubmitted():
                return _submitted(_run(request))
            case AskTails():
                grown, more = tails.grown(_run(request).path, request.folders, request.known)
                return _with_files(grown, Tails(tails.parts_of(grown), more))
            case Release():
                release_here(_run(request))
            case Cancel():
                return _cancel(_run(request))
            case PassOnCancel():
                from launcher.places.ssh.host import late_messages  # late: only a host that is cut off needs it

                late_messages.send(_run(request), "cancel", request.hosts)
            case ComeBack():
                from launcher.places.ssh.host import receive  # late: `launch status` needs none of it

                return receive.come_back(_run(request))
            case IncludeHosts():
                include(_run(request), request.hosts)
            case Tidy():
                from launcher.places.ssh.host import runs_here  # late: `launch status` needs none of it

                return runs_here.tidy(_folder(request.workdir), request)
            case ListCheckpoints() | SendFile() | TakeFile():
                from launcher.places.ssh.host import checkpoint_files  # late: `launch status` needs none of it

                return checkpoint_files.answer(_run(request).path, request, body)
            case Open() | CodeTree() | Supervisors() | GoAhead():
                return self._arrive(request, body)
        return None

    def _arrive(self, request: Open | CodeTree | Supervisors | GoAhead, body: Body) -> Opened | None:
        """Carry out a request of a submit; return the answer to Open, None for the others. `body` has the bytes that
        follow the request.
        """
        from launcher.places.ssh.host import receive  # late: `launch status` needs none of it

        match request:
            case Open():
                self._arrival = receive.AttemptReceiver()
                return self._arrival.open(_run(request), request, body)
            case CodeTree():
                receive.take_code(_folder(request.workdir), request, body)
            case _ if self._arrival is None:
                raise LaunchError("there is no supervisor that could be told")
            case _:
                self._arrival.pass_on(request)
        return None


def _folder(workdir: str) -> Path:
    """Return the folder as a path, with a leading `~` replaced by the user's home."""
    return Path(os.path.expanduser(workdir))


def _run(asked: OfRun) -> RunDir:
    """Return the run that the request is about, which may not exist on this host."""
    return RunDir(_folder(asked.workdir) / "runs" / asked.run_id)


def _report(run: RunDir, events_from: int) -> object:
    """Return this host's RunReport on the run, with the events from byte `events_from` of the history on, and the ends
    of logs, attached. Its state is None if this host has no attempt of the run.

    While a supervisor waits to be told whether the newest attempt begins, wait for up to five seconds; raise
    LaunchError if that is not decided by then.
    """
    attempt = presence.decided(run)
    if attempt is None:
        return RunReport(None)
    facts = read_facts(run.path)
    if attempt.host_index.exists():
        facts = _of_this_host(run, facts)
    status = derive(facts)
    end = readable(attempt.end, AttemptEnd) if not facts.settling else None
    last = readable(run.state, RunState)
    events = [*_new_events(run, events_from)]  # after the end was read, which must not be sent without its events
    files = [*events, *_logs(attempt)]
    report = RunReport(
        state=status.state,
        message=status.message,
        cause=status.cause,
        attempt=attempt.number,
        began=presence.began(attempt),
        begun=_begun(run, attempt),
        last=last,
        avoided=readable(run.avoided, tuple[Exclusion, ...]),
        stop=readable(attempt.stop, StopRequest),
        end=end,
        roles=tuple(reports_of_roles(run)),
        files=tails.parts_of(files),
        more=any(len(one.content) == MOST_OF_EVENTS for one in events),
        supervised=presence.is_held(run),
        stale=status.state is State.RUNNING and status.as_of is not None,
    )
    return _with_files(files, report)


def _of_this_host(run: RunDir, facts: RunFacts) -> RunFacts:
    """Return the facts with processes of other hosts, whose records are copied here, counted as not running instead of
    unknown: each host reports its own processes.
    """
    supervisor = facts.living.supervisor or (None if presence.is_held(run) else False)
    living = replace(
        facts.living,
        supervisor=supervisor,
        coordinator=facts.living.coordinator or False,
        agents=facts.living.agents or False,
    )
    return replace(facts, living=living, submitter=facts.submitter or False)


def _begun(run: RunDir, attempt: AttemptDir) -> OpenedByHosts | None:
    """Return the hosts of an attempt, why the one before it ended, and when it was created, or None if its records
    cannot be read.
    """
    with contextlib.suppress(LaunchError):
        intent = read_intent(attempt)
        return OpenedByHosts(plan_as(run, attempt.number, _PlanHead).hosts, intent.cause, intent.created_at)
    return None


def _new_events(run: RunDir, at: int) -> Iterator[tails.Tail]:
    """Yield the run's history from byte `at` on, cut off at MOST_OF_EVENTS bytes, as one item, or none if the run has
    no history yet.
    """
    with contextlib.suppress(FileNotFoundError), run.events.open("rb") as events:
        events.seek(at)
        yield tails.Tail(run.events.name, at, events.read(MOST_OF_EVENTS))


def _logs(attempt: AttemptDir, most_bytes: int = _MOST_OF_LOGS) -> Iterator[tails.Tail]:
    """Yield the end of each of the attempt's logs, up to 1 MiB of a log and `most_bytes` in all. Once these are used
    up, the log is cut off there, and those that follow it are left out: first come the records of exits and the
    keeper's log, then the nodes' logs by name.
    """
    left = most_bytes
    for path in (path for pattern in _LOGS for path in sorted(attempt.path.glob(pattern))):
        if not left:
            break  # an empty one would take the place of what is there of it
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_OF_A_LOG))
            content = file.read(min(_MOST_OF_A_LOG, left))
            left -= len(content)
            yield tails.Tail(str(path.relative_to(attempt.path)), 0, content)


def _with_files(found: Sequence[tails.Tail], answer: object) -> WithBytes:
    """Return the answer to a request, and the contents of the pieces of files in `found`, which are sent as bytes after
    it.
    """
    return WithBytes(answer, sum(len(one.content) for one in found), [one.content for one in found])


def _submitted(run: RunDir) -> Submitted:
    """Return the spec, the overrides, the time of the submission, and the hosts of the newest plan; raise LaunchError
    if there is no such run.
    """
    attempt = newest(run)
    if attempt is None:
        raise LaunchError("there is no such run")
    plan = plan_as(run, attempt.number, _PlanHead)
    return Submitted(run.spec.read_text(encoding="utf-8"), plan.overrides, plan.submitted_at, plan.hosts)


def release_here(run: RunDir) -> None:
    """Let the newest attempt of a run that was submitted to be held (`launch submit --hold`) start on this host, by a
    record in its folder. Do nothing if it is released already, or if this host has no attempt of the run.
    """
    attempt = newest(run)
    if attempt is not None:
        with contextlib.suppress(FileExistsError):
            create_record(attempt.released, this_process())


def _cancel(run: RunDir) -> CancelReport:
    """End all processes of the run on this host, and return a report of what was ended.

    Write also the record that the attempt ended as cancelled, if there is none yet. If the run's hosts share a disk,
    only the host that leads the attempt writes it.
    """
    from launcher.places.local.cluster import end_here  # late: only to end a run

    left, begun = remains(run), newest(run) is not None
    apart = left.plan is not None and left.plan.disks_apart
    last_word = begun and (apart or _leader_was_here(left.attempt))
    alone = apart and not left.attempt.started.exists()  # its leader has claimed it
    report = end_here(run, left.attempt, left.plan, last_word=last_word, alone=alone)
    return CancelReport(report.ended, report.already if begun else not report.ended)


def _leader_was_here(attempt: AttemptDir) -> bool:
    """Return whether this host leads the attempt, or no host is recorded as its leader; for hosts that share a disk.

    Only the leader of such hosts may write how the run ended.
    """
    handle = readable(attempt.handle, Handle)
    return handle is None or handle.supervisor is None or alive(handle.supervisor) is not None
