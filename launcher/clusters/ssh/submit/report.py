"""What a host says of a run, and its records: asked for, weighed against what others say, and copied here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from launcher.clusters.mirror import tails
from launcher.clusters.ssh.host_client import HostClient, Place
from launcher.clusters.ssh.host_clients import ask_all
from launcher.clusters.ssh.messages import LIMIT_S, AskReport, RunReport
from launcher.errors import LaunchError
from launcher.plan.model import Plan
from launcher.plan.on_hosts import kept_at
from launcher.rundir.attempts import newest
from launcher.rundir.durable import make_dir, write_bytes, write_record
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import Handle, Intent
from launcher.words import Cause, State

_RECORDS = ("state.json", "events.jsonl", "avoided.json", "FENCE")
_OF_AN_ATTEMPT = ("token.json", "plan.json", "exit.json", "stop.json", "exits.jsonl")
_FROZEN = ("spec.yaml",)  # ours, and never another one's
_OVERLAP = 4096  # bytes of the events that are asked for again: do they continue ours, or are they others?


@dataclass(frozen=True, slots=True)
class HostReport:
    """What one host says of a run, and its records."""

    head: RunReport
    records: Mapping[str, bytes]
    events_at: int  # where in the events here those that came belong; 0: they are all

    @property
    def state(self) -> State | None:
        return self.head.status.state if self.head.status is not None else None

    @property
    def is_sure(self) -> bool:
        """A host that was cut off, or has started anew, may take for over what others have gone on with."""
        status = self.head.status
        if status is None or status.state in (State.LOST, State.UNKNOWN):
            return False
        if status.state is State.QUEUED and any(name.endswith("exit.json") for name in self.records):
            return False  # its attempt is over, and the next one may be somebody else's
        return not (status.state is State.FAILED and status.cause is Cause.NODE_LOST)

    def is_of(self, attempt: AttemptDir) -> bool:
        """Of this attempt, or of one after it."""
        return self.head.attempt >= attempt.number

    def has_begun(self, attempt: AttemptDir) -> bool:
        """The host was told to carry it out."""
        return self.is_of(attempt) and self.head.began


def knowing(said: Mapping[str, HostReport | LaunchError]) -> list[HostReport]:
    """Those that know the run; who does not may have a new disk."""
    return [one for one in said.values() if isinstance(one, HostReport) and one.head.status is not None]


def best_of(heard: Sequence[HostReport], *, apart: bool = True) -> HostReport | None:
    """The one of the newest attempt that knows most, the first of equals."""
    # On a disk that all share nobody but the leader's host can tell whether its keeper lives; else each knows its own.
    order = (State.LOST, State.UNKNOWN) if apart else (State.UNKNOWN, State.LOST)

    def worth(one: HostReport) -> tuple[int, bool, int]:
        doubt = order.index(one.state) if one.state in order else len(order)
        return one.head.attempt, one.is_sure, doubt

    return max(heard, key=worth, default=None)


def ask_reports(run: RunDir, places: Sequence[Place]) -> dict[str, HostReport | LaunchError]:
    """Of each of these hosts; nothing is copied yet."""
    return ask_all(places, lambda client: ask_report(run, client))


def ask_report(run: RunDir, client: HostClient, *, whole: bool = False) -> HostReport:
    """Ask one host; nothing is copied yet. Where its events do not continue those that are here, all of them come."""
    known, tail = _end_of_events(run)
    one = _asked(run, client, known - len(tail), whole)
    if one.head.status is None or one.records.get(run.events.name, b"").startswith(tail):
        return replace(one, events_at=known, records=_without(one.records, run.events.name, len(tail)))
    return _asked(run, client, 0, whole)


def _asked(run: RunDir, client: HostClient, events_from: int, whole: bool) -> HostReport:
    question = AskReport(run.path.name, client.place.workdir, events_from, whole)
    answer, contents = client.ask_with_contents(question, limit_s=LIMIT_S)
    head = client.expect(RunReport, answer)
    records = {blob.name: content for blob, content in zip(head.blobs, contents, strict=True)}
    return HostReport(head, records, events_from)


def _end_of_events(run: RunDir) -> tuple[int, bytes]:
    """How many bytes there are here, and the last of them."""
    try:
        with run.events.open("rb") as events:
            size = events.seek(0, 2)
            events.seek(max(0, size - _OVERLAP))
            return size, events.read(_OVERLAP)
    except FileNotFoundError:
        return 0, b""


def _without(records: Mapping[str, bytes], name: str, known: int) -> dict[str, bytes]:
    return {one: content[known:] if one == name else content for one, content in records.items()}


def copy(run: RunDir, told: HostReport) -> None:
    """Records as they are there, but for what is our own: where the run is, and how it is asked about.

    Those of an attempt before the newest that is known here are nobody's news.
    """
    mine = newest(run)
    if mine is not None and mine.number > told.head.attempt:
        return
    attempt = run.attempt(told.head.attempt)
    make_dir(attempt.path)
    ends_last = sorted(told.records, key=lambda name: (name.endswith("exit.json"), name == "state.json"))
    for name in ends_last:
        if name in _FROZEN:
            continue
        content, path = told.records[name], _inside(run, name)
        make_dir(path.parent)
        if path == run.events and told.events_at:
            tails.put(run.path, (name,), tails.Tail(name, told.events_at, content))
        elif path == attempt.intent:
            if not path.exists():
                intent = msgspec.json.decode(content, type=Intent)
                write_record(path, msgspec.structs.replace(intent, cluster_kind="ssh"))
                write_record(attempt.handle, Handle("ssh", ticket=intent.ticket))
        elif path == attempt.plan:
            if not path.exists():
                plan = msgspec.json.decode(content, type=Plan)
                write_record(path, kept_at(plan, str(run.path)))
        elif not path.exists() or path.read_bytes() != content:
            write_bytes(path, content)


def _inside(run: RunDir, name: str) -> Path:
    steps = name.split("/")
    *folders, last = steps
    of_an_attempt = folders[:1] == [run.attempts.name] and (last in _OF_AN_ATTEMPT or last.endswith(".log"))
    if {"", ".", ".."} & set(steps) or not (name in _RECORDS or of_an_attempt):
        raise LaunchError(f"{name[:100]!r} is no record of a run that a host may write")
    return run.path.joinpath(*steps)
