"""What a host says of a run, and its records: heard, weighed against what others say, and copied here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from launcher.clusters.mirror import tails
from launcher.clusters.ssh.letters import Letters
from launcher.clusters.ssh.messages import LIMIT_S, AskReport, RunReport
from launcher.errors import LaunchError
from launcher.plan.model import Plan
from launcher.rundir.attempts import newest
from launcher.rundir.durable import make_dir, write_bytes, write_record
from launcher.rundir.layout import RunDir
from launcher.rundir.records import Handle, Intent
from launcher.words import Cause, State

_RECORDS = ("state.json", "events.jsonl", "avoided.json", "FENCE")
_OF_AN_ATTEMPT = ("token.json", "plan.json", "exit.json", "stop.json", "exits.jsonl")
_FROZEN = ("spec.yaml",)  # ours, and never another one's
_OVERLAP = 4096  # bytes of the events that are asked for again: do they continue ours, or are they others?


@dataclass(frozen=True, slots=True)
class Testimony:
    """What one host says of a run, and its records."""

    seen: RunReport
    records: Mapping[str, bytes]
    events_at: int  # where in the events here those that came belong; 0: they are all

    @property
    def state(self) -> State | None:
        return self.seen.status.state if self.seen.status is not None else None

    @property
    def is_sure(self) -> bool:
        """A host that was cut off, or has started anew, may take for over what others have gone on with."""
        status = self.seen.status
        if status is None or status.state in (State.LOST, State.UNKNOWN):
            return False
        if status.state is State.QUEUED and any(name.endswith("exit.json") for name in self.records):
            return False  # its attempt is over, and the next one may be somebody else's
        return not (status.state is State.FAILED and status.cause is Cause.NODE_LOST)


def knowing(said: Mapping[str, Testimony | LaunchError]) -> list[Testimony]:
    """Those that know the run; who does not may have a new disk."""
    return [one for one in said.values() if isinstance(one, Testimony) and one.seen.status is not None]


def best_of(heard: Sequence[Testimony], *, apart: bool = True) -> Testimony | None:
    """The one of the newest attempt that knows most, the first of equals."""
    # On a disk that all share nobody but the leader's host can tell whether its keeper lives; else each knows its own.
    order = (State.LOST, State.UNKNOWN) if apart else (State.UNKNOWN, State.LOST)

    def worth(one: Testimony) -> tuple[int, bool, int]:
        doubt = order.index(one.state) if one.state in order else len(order)
        return one.seen.attempt, one.is_sure, doubt

    return max(heard, key=worth, default=None)


def hear(run: RunDir, letters: Letters, *, whole: bool = False) -> Testimony:
    """Ask one host; nothing is copied yet. Where its events do not continue those that are here, all of them come."""
    known, tail = _end_of_events(run)
    one = _testimony(run, letters, known - len(tail), whole)
    if one.seen.status is None or one.records.get(run.events.name, b"").startswith(tail):
        return replace(one, events_at=known, records=_without(one.records, run.events.name, len(tail)))
    return _testimony(run, letters, 0, whole)


def _testimony(run: RunDir, letters: Letters, events_from: int, whole: bool) -> Testimony:
    question = AskReport(run.path.name, letters.place.workdir, events_from, whole)
    answer, contents = letters.ask_with_contents(question, limit_s=LIMIT_S)
    seen = letters.expect(RunReport, answer)
    records = {blob.name: content for blob, content in zip(seen.blobs, contents, strict=True)}
    return Testimony(seen, records, events_from)


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


def copy(run: RunDir, told: Testimony) -> None:
    """Records as they are there, but for what is our own: where the run is, and how it is asked about.

    Those of an attempt before the newest that is known here are nobody's news.
    """
    mine = newest(run)
    if mine is not None and mine.number > told.seen.attempt:
        return
    attempt = run.attempt(told.seen.attempt)
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
                write_record(path, msgspec.structs.replace(plan, run_dir=str(run.path)))
        elif not path.exists() or path.read_bytes() != content:
            write_bytes(path, content)


def _inside(run: RunDir, name: str) -> Path:
    steps = name.split("/")
    *folders, last = steps
    of_an_attempt = folders[:1] == [run.attempts.name] and (last in _OF_AN_ATTEMPT or last.endswith(".log"))
    if {"", ".", ".."} & set(steps) or not (name in _RECORDS or of_an_attempt):
        raise LaunchError(f"{name[:100]!r} is no record of a run that a host may write")
    return run.path.joinpath(*steps)
