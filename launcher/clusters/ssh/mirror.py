"""The run's folder here as a mirror of those on its hosts: what they say is copied, and stays when they fall silent."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from launcher.clusters import news
from launcher.clusters.protocol import CancelReport
from launcher.clusters.ssh import growth, unfinished
from launcher.clusters.ssh.crowd import AT_ONCE, failures, for_all
from launcher.clusters.ssh.handover import alone
from launcher.clusters.ssh.letters import Letters, Place
from launcher.clusters.ssh.post import ask_all
from launcher.clusters.ssh.stocks import places_ever
from launcher.clusters.ssh.wire import Cancel, Cancelled, Done, Logs, Look, Pardon, Part, Parts, Seen
from launcher.errors import LaunchError, Refused, Unreachable
from launcher.plan.model import Plan
from launcher.rundir import avoided
from launcher.rundir.attempts import attempts, newest, read_plan
from launcher.rundir.durable import make_dir, read_record, write_bytes, write_record
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import AttemptEnd, Blame, ClusterWord, Handle, Intent
from launcher.status.derive import RunStatus
from launcher.words import Cause, State

LOGS = ("logs", "metrics")
_RECORDS = ("state.json", "events.jsonl", "avoided.json", "FENCE")
_OF_AN_ATTEMPT = ("token.json", "plan.json", "exit.json", "stop.json", "exits.jsonl")
_FROZEN = ("spec.yaml",)  # ours, and never another one's
_LIMIT_S = 10.0
_OVERLAP = 4096  # bytes of the events that are asked for again: do they continue ours, or are they others?

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Testimony:
    """What one host says of a run, and its records."""

    seen: Seen
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


def look(wanted: Sequence[tuple[RunDir, AttemptDir]]) -> list[ClusterWord | None]:
    """What the hosts of each run say of it; their records are copied. What is wrong with one is said of it alone."""
    pairs = {str(attempt.path): (run, attempt) for run, attempt in wanted}
    words = for_all(pairs, lambda _, pair: _looked(*pair), at_once=AT_ONCE)
    return [_said_of(words[name]) for name in pairs]


def _looked(run: RunDir, attempt: AttemptDir) -> ClusterWord | None:
    try:
        return _look(run, attempt)
    except (OSError, msgspec.MsgspecError) as error:
        raise LaunchError(f"{run.path}: {error}") from error


def _said_of(word: ClusterWord | LaunchError | None) -> ClusterWord | None:
    return ClusterWord("unknown", "", 0.0, silent=word.lines[0]) if isinstance(word, LaunchError) else word


def _look(run: RunDir, attempt: AttemptDir) -> ClusterWord | None:
    """The first host is believed where nobody can know better than it says; else all are asked."""
    if unfinished.is_unfinished(attempt):
        if unfinished.in_hand(attempt):
            return None
        if (word := _finish(run, attempt)) is not None:
            return word
    plan = read_plan(run, attempts(run)[-1].number)
    places = _leader_first(plan, places_of(run))
    said = _asked(run, places[:1])
    if not any(one.is_sure and one.seen.attempt >= attempt.number for one in _heard(said)):
        said |= _asked(run, places[1:])
    return _judged(run, attempt, plan, said)


def _judged(run: RunDir, attempt: AttemptDir, plan: Plan, said: Mapping[str, Testimony | LaunchError]) -> ClusterWord:
    """The best testimony, unless those that are silent are enough to have gone on without the others."""
    silent = [one.lines[0] for one in said.values() if isinstance(one, LaunchError)]
    best = best_of(_heard(said), apart=plan.disks_apart)
    if best is None or best.seen.status is None or best.seen.attempt < attempt.number:
        if silent:
            return _unanswered(attempt, silent, best)
        text = "its hosts know nothing of it any more"
        return ClusterWord("ended", "", time.time(), text=text, ended_as=State.LOST)
    if not best.is_sure and len(silent) >= plan.nodes_min:
        return _unanswered(attempt, silent, best)
    copy(run, best)
    word = _word(best.seen.status)
    write_record(run.attempt(best.seen.attempt).seen, word)
    return word


def best_of(heard: Sequence[Testimony], *, apart: bool = True) -> Testimony | None:
    """The one of the newest attempt that knows most, the first of equals."""
    # On a disk that all share nobody but the leader's host can tell whether its keeper lives; else each knows its own.
    order = (State.LOST, State.UNKNOWN) if apart else (State.UNKNOWN, State.LOST)

    def worth(one: Testimony) -> tuple[int, bool, int]:
        doubt = order.index(one.state) if one.state in order else len(order)
        return one.seen.attempt, one.is_sure, doubt

    return max(heard, key=worth, default=None)


def _finish(run: RunDir, attempt: AttemptDir) -> ClusterWord | None:
    """Its submitter is gone: were the hosts that it had chosen told to go? Else it is handed over now."""
    with alone(attempt) as first:
        if not first:
            return ClusterWord("queued", "", time.time(), text="it is being handed to its hosts")
        if not unfinished.is_unfinished(attempt):
            return None  # by now
        said = _asked(run, read_record(attempt.hosts, list[Place]) or [])
        if any(one.seen.attempt >= attempt.number and one.seen.began for one in _heard(said)):
            unfinished.began(attempt)
            return None
        if silent := [one.lines[0] for one in said.values() if isinstance(one, LaunchError)]:
            return _unanswered(attempt, silent, None)
        try:
            unfinished.hand_over(run, attempt)
        except LaunchError as error:
            return _unanswered(attempt, [f"it was never handed over: {error.lines[0]}"], None)
    return None


def _unanswered(attempt: AttemptDir, silent: Sequence[str], best: Testimony | None) -> ClusterWord:
    last = read_record(attempt.seen, ClusterWord) or ClusterWord("unknown", "", 0.0)
    why = silent[0] if len(silent) == 1 else f"{len(silent)} of its hosts do not answer: {'; '.join(silent)}"
    if best is not None and best.state is not None:
        why = f"{why}; the others, who may not know better, say {best.state.upper()}"
    return msgspec.structs.replace(last, silent=why)


def places_of(run: RunDir) -> list[Place]:
    """Where the newest attempt that was handed over from here is."""
    for attempt in reversed(attempts(run)):
        places = read_record(attempt.hosts, list[Place])
        if places is not None:
            return places
    return []


def _leader_first(plan: Plan, places: Sequence[Place]) -> list[Place]:
    """In the order of the newest plan that is known here."""
    order = [node.host for node in plan.nodes]
    return sorted(places, key=lambda place: order.index(place.host.name) if place.host.name in order else len(order))


def _asked(run: RunDir, places: Sequence[Place]) -> dict[str, Testimony | LaunchError]:
    return ask_all(places, lambda letters: hear(run, letters))


def _heard(said: Mapping[str, Testimony | LaunchError]) -> list[Testimony]:
    """Those that know the run; who does not may have a new disk."""
    return [one for one in said.values() if isinstance(one, Testimony) and one.seen.status is not None]


def hear(run: RunDir, letters: Letters, *, whole: bool = False) -> Testimony:
    """Ask one host; nothing is copied yet. Where its events do not continue those that are here, all of them come."""
    known, tail = _end_of_events(run)
    one = _testimony(run, letters, known - len(tail), whole)
    if one.seen.status is None or one.records.get(run.events.name, b"").startswith(tail):
        return replace(one, events_at=known, records=_without(one.records, run.events.name, len(tail)))
    return _testimony(run, letters, 0, whole)


def _testimony(run: RunDir, letters: Letters, events_from: int, whole: bool) -> Testimony:
    question = Look(run.path.name, letters.place.workdir, events_from, whole)
    answer, contents = letters.ask_with_contents(question, limit_s=_LIMIT_S)
    seen = letters.expect(Seen, answer)
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
            growth.put(run.path, (name,), Part(name, told.events_at, len(content)), content)
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


def _word(status: RunStatus) -> ClusterWord:
    now = time.time()
    match status.state:
        case State.QUEUED:
            return ClusterWord("queued", "QUEUED", now, text=status.message)
        case State.LOST:
            return ClusterWord("ended", "LOST", now, text=status.message, ended_as=State.LOST)
        case State.UNKNOWN:
            return ClusterWord("unknown", "UNKNOWN", now, text=status.message)
        case _:
            return ClusterWord("running", status.state.upper(), now)


def bring_logs(run: RunDir) -> None:
    """Copy what is new of the logs, until the run has ended and all is here."""
    every = attempts(run)
    if every[-1].fetched.exists():
        return
    end = read_record(every[-1].end, AttemptEnd)  # looked at first: what was written before it is then fetched
    before = places_ever(run, [attempt for attempt in every if not attempt.fetched.exists()])
    troubles = _fetch(before | {place.host.name: place for place in places_of(run)}, run, LOGS)
    if end is not None and end.state.ended and not troubles:
        for attempt in every:
            write_bytes(attempt.fetched, b"")


def fetch(run: RunDir, folders: Sequence[str] = LOGS) -> dict[str, LaunchError]:
    """Copy what is new in these folders from all hosts that it was ever on; gives those that could not be asked."""
    return _fetch(places_ever(run), run, folders)


def _fetch(places: Mapping[str, Place], run: RunDir, folders: Sequence[str]) -> dict[str, LaunchError]:
    known = growth.sizes(run.path, folders)

    def fetch_from(letters: Letters) -> None:
        mine = dict(known)
        more = True
        while more:
            question = Logs(run.path.name, letters.place.workdir, tuple(folders), mine)
            answer, contents = letters.ask_with_contents(question, limit_s=_LIMIT_S)
            parts = letters.expect(Parts, answer)
            for part, content in zip(parts.parts, contents, strict=True):
                growth.put(run.path, folders, part, content)
                mine[part.name] = part.at + part.size
            more = parts.more

    return failures(ask_all([*places.values()], fetch_from))


def pardon(run: RunDir, hosts: Collection[str]) -> None:
    """Have the keepers of a run that goes on forget what they hold against these hosts, or against all."""

    def forget(letters: Letters) -> Done:
        wish = Pardon(run.path.name, letters.place.workdir, tuple(hosts))
        return letters.expect(Done, letters.ask(wish, limit_s=_LIMIT_S))

    troubles = failures(ask_all(places_of(run), forget))
    # Who was ever blamed may well be gone, whether or not that still counts.
    silent = sorted(troubles.keys() - {blame.host for blame in read_record(run.avoided, list[Blame]) or []})
    if silent:
        avoided.pardon(run, hosts)  # what holds here does not wait for who is gone
        hint = f"hint: launch pardon {run.path.name} again, once {', '.join(silent)} can be reached"
        raise Unreachable(f"could not tell {', '.join(silent)}", troubles[silent[0]].lines[0], hint)


def cancel(run: RunDir, attempt: AttemptDir) -> CancelReport:
    """On every host at once; each answers when nothing of the run is left there. Names those that were not reached."""
    if not unfinished.is_unfinished(attempt):
        return _cancel(run, attempt)
    if not unfinished.in_hand(attempt):
        with alone(attempt) as first:
            if first:
                return _cancel_unfinished(run, attempt)
    hint = f"hint: launch cancel {run.path.name} again, in a moment"
    raise Refused(f"{run.path.name} is being handed to its hosts: nothing was ended", hint)


def _cancel_unfinished(run: RunDir, attempt: AttemptDir) -> CancelReport:
    report = _cancel(run, attempt)
    if unfinished.is_unfinished(attempt):
        unfinished.withdraw(run, attempt)
        return CancelReport(report.ended, already=False)
    return report


def _cancel(run: RunDir, attempt: AttemptDir) -> CancelReport:
    def end(letters: Letters) -> Cancelled:
        return letters.expect(Cancelled, letters.ask(Cancel(run.path.name, letters.place.workdir)))

    results = ask_all([*places_ever(run).values()], end, anew=True)
    answers = {name: one for name, one in results.items() if isinstance(one, Cancelled)}
    troubles = failures(results)
    if not unfinished.is_unfinished(attempt):
        _look(run, attempt)
    ended = tuple(f"{what} on {name}" for name, one in answers.items() for what in one.ended)
    if troubles:
        for line in ended:
            news.say(f"ended {line}")
        lines_ = [line for one in troubles.values() for line in one.lines[:1]]
        hint = f"hint: launch cancel {run.path.name} again, once {', '.join(troubles)} can be reached"
        raise Unreachable(f"could not ask {', '.join(troubles)}: something of the run may be left there", *lines_, hint)
    return CancelReport(ended, already=all(one.already for one in answers.values()))
