"""The run's folder here as a mirror of those on its hosts: what they say is copied, and stays when they fall silent."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from launcher.clusters import news
from launcher.clusters.protocol import CancelReport
from launcher.clusters.ssh import growth, pool, unfinished
from launcher.clusters.ssh.connect import Line
from launcher.clusters.ssh.crowd import for_all
from launcher.clusters.ssh.letters import Place
from launcher.clusters.ssh.post import letters_to, lines_to
from launcher.clusters.ssh.wire import Cancel, Cancelled, Done, Logs, Look, Pardon, Part, Parts, Seen
from launcher.errors import LaunchError, Refused, Unreachable
from launcher.plan.model import Plan
from launcher.rundir.attempts import attempts, read_plan
from launcher.rundir.avoided import avoided
from launcher.rundir.durable import make_dir, read_record, write_bytes, write_record
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import AttemptEnd, ClusterWord, Handle, Intent
from launcher.status.derive import RunStatus
from launcher.words import State

LOGS = ("logs", "metrics")
_RECORDS = ("state.json", "events.jsonl", "avoided.json", "FENCE")
_OF_AN_ATTEMPT = ("token.json", "plan.json", "exit.json", "stop.json", "exits.jsonl")
_FROZEN = ("spec.yaml",)  # ours, and never another one's
_AT_ONCE = 8
_LIMIT_S = 10.0

T = TypeVar("T")


def look(wanted: Sequence[tuple[RunDir, AttemptDir]]) -> list[ClusterWord | None]:
    """What the first host of each run that answers says of it; its records are copied."""
    with ThreadPoolExecutor(_AT_ONCE) as crew:
        return list(crew.map(lambda pair: _look(*pair), wanted))


def _look(run: RunDir, attempt: AttemptDir) -> ClusterWord | None:
    if unfinished.is_unfinished(attempt):
        if unfinished.submitter_lives(attempt):
            return None
        if (word := _finish(run, attempt)) is not None:
            return word
    places, silent = _leader_first(run, places_of(run)), list[str]()
    for place in places:
        if len(silent) == 1:
            lines_to(places[1:])  # at the same time: there may be more that do not answer
        try:
            seen = _ask(run, place)
        except LaunchError as error:
            silent.append(error.lines[0])
            continue
        if seen.status is None:
            continue  # its disk may be new
        word = _word(seen.status)
        write_record(run.attempt(max(seen.attempt, attempt.number)).seen, word)
        return word
    if silent:
        return _unanswered(attempt, silent)
    text = "its hosts know nothing of it any more"
    return ClusterWord("ended", "", time.time(), text=text, ended_as=State.LOST)


def _finish(run: RunDir, attempt: AttemptDir) -> ClusterWord | None:
    """Its submitter is gone: were the hosts that it had chosen told to go? Else it is handed over now."""
    with unfinished.alone(attempt) as first:
        if not first:
            return ClusterWord("queued", "", time.time(), text="it is being handed to its hosts")
        if not unfinished.is_unfinished(attempt):
            return None  # by now
        silent = []
        places = read_record(attempt.hosts, list[Place]) or []
        lines_to(places)
        for place in places:
            try:
                seen = _ask(run, place)
            except LaunchError as error:
                silent.append(error.lines[0])
                continue
            if seen.status is not None and seen.attempt >= attempt.number and seen.began:
                unfinished.began(attempt)
                return None
        if silent:
            return _unanswered(attempt, silent)
        try:
            unfinished.hand_over(run, attempt)
        except LaunchError as error:
            return _unanswered(attempt, [f"it was never handed over: {error.lines[0]}"])
    return None


def _unanswered(attempt: AttemptDir, silent: Sequence[str]) -> ClusterWord:
    last = read_record(attempt.seen, ClusterWord) or ClusterWord("unknown", "", 0.0)
    why = silent[0] if len(silent) == 1 else f"none of its {len(silent)} hosts answers: {'; '.join(silent)}"
    return msgspec.structs.replace(last, silent=why)


def places_of(run: RunDir) -> list[Place]:
    """Where the newest attempt that was handed over from here is."""
    for attempt in reversed(attempts(run)):
        places = read_record(attempt.hosts, list[Place])
        if places is not None:
            return places
    return []


def _leader_first(run: RunDir, places: Sequence[Place]) -> list[Place]:
    """In the order of the newest plan that is known here."""
    newest = attempts(run)[-1]
    order = [node.host for node in read_plan(run, newest.number).nodes]
    return sorted(places, key=lambda place: order.index(place.host.name) if place.host.name in order else len(order))


def _ask(run: RunDir, place: Place) -> Seen:
    """Ask one host, and copy what it has."""
    known = run.events.stat().st_size if run.events.exists() else 0
    question = Look(run.path.name, place.workdir, known)
    answer, contents = letters_to(place).ask_with_contents(question, limit_s=_LIMIT_S)
    if not isinstance(answer, Seen):
        raise LaunchError("it does not speak as expected")
    if answer.status is not None:
        copy(run, answer, known, {blob.name: content for blob, content in zip(answer.blobs, contents, strict=True)})
    return answer


def copy(run: RunDir, seen: Seen, events_known: int, records: Mapping[str, bytes]) -> None:
    """Records as they are there, but for what is our own: where the run is, and how it is asked about."""
    attempt = run.attempt(seen.attempt)
    make_dir(attempt.path)
    ends_last = sorted(records, key=lambda name: (name.endswith("exit.json"), name == "state.json"))
    for name in ends_last:
        if name in _FROZEN:
            continue
        content, path = records[name], _inside(run, name)
        make_dir(path.parent)
        if path == run.events:
            growth.put(run.path, (name,), Part(name, events_known, len(content)), content)
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
    attempt = attempts(run)[-1]
    if attempt.fetched.exists():
        return
    end = read_record(attempt.end, AttemptEnd)  # looked at first: what was written before it is then fetched
    troubles = fetch(run)
    if end is not None and end.state.ended and not troubles:
        write_bytes(attempt.fetched, b"")


def fetch(run: RunDir, folders: Sequence[str] = LOGS) -> dict[str, LaunchError]:
    """Copy what is new in these folders from all hosts; gives those that could not be asked."""
    known = growth.sizes(run.path, folders)

    def fetch_from(place: Place) -> None:
        letters = letters_to(place)
        mine = dict(known)
        more = True
        while more:
            question = Logs(run.path.name, place.workdir, tuple(folders), mine)
            answer, contents = letters.ask_with_contents(question)
            if not isinstance(answer, Parts):
                raise LaunchError(f"{place.host.name}: it does not speak as expected")
            for part, content in zip(answer.parts, contents, strict=True):
                growth.put(run.path, folders, part, content)
                mine[part.name] = part.at + part.size
            more = answer.more

    _, troubles = _at_all(run, fetch_from)
    return troubles


def _at_all(
    run: RunDir, work: Callable[[Place], T], *, anew: bool = False
) -> tuple[dict[str, T], dict[str, LaunchError]]:
    """What is done at each host of the run, all at the same time; and why it could not be done at the others."""
    places = {place.host.name: place for place in places_of(run)}
    lines = lines_to([*places.values()], anew=anew)
    results = lines | for_all(pool.working(lines), lambda name, _: work(places[name]))
    troubles = {name: one for name, one in results.items() if isinstance(one, LaunchError)}
    return {name: one for name, one in results.items() if not isinstance(one, LaunchError | Line)}, troubles


def pardon(run: RunDir, hosts: Collection[str]) -> None:
    """Have the keepers of a run that goes on forget what they hold against these hosts, or against all."""

    def forget(place: Place) -> Done:
        answer = letters_to(place).ask(Pardon(run.path.name, place.workdir, tuple(hosts)))
        if not isinstance(answer, Done):
            raise LaunchError(f"{place.host.name}: it does not speak as expected")
        return answer

    _, troubles = _at_all(run, forget, anew=True)
    silent = sorted(troubles.keys() - {blame.host for blame in avoided(run)})  # who is blamed may well be gone
    if silent:
        hint = f"hint: launch pardon {run.path.name} again, once {', '.join(silent)} can be reached"
        raise Unreachable(f"could not tell {', '.join(silent)}", troubles[silent[0]].lines[0], hint)


def cancel(run: RunDir, attempt: AttemptDir) -> CancelReport:
    """On every host at once; each answers when nothing of the run is left there. Names those that were not reached."""
    if not unfinished.is_unfinished(attempt):
        return _cancel(run, attempt)
    with unfinished.alone(attempt) as first:
        if not first or (unfinished.is_unfinished(attempt) and unfinished.submitter_lives(attempt)):
            hint = f"hint: launch cancel {run.path.name} again, in a moment"
            raise Refused(f"{run.path.name} is being handed to its hosts: nothing was ended", hint)
        report = _cancel(run, attempt)
        if unfinished.is_unfinished(attempt):
            unfinished.withdraw(run, attempt)
            return CancelReport(report.ended, already=False)
    return report


def _cancel(run: RunDir, attempt: AttemptDir) -> CancelReport:
    def end(place: Place) -> Cancelled:
        answer = letters_to(place).ask(Cancel(run.path.name, place.workdir))
        if not isinstance(answer, Cancelled):
            raise LaunchError(f"{place.host.name}: it does not speak as expected")
        return answer

    answers, troubles = _at_all(run, end, anew=True)
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
