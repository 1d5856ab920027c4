"""Copy the records of a run on a login node into its folder on this machine. This machine's own records (the run's
place, name and plan) are not changed.
"""

import hashlib
import time
from pathlib import Path

import msgspec

from launcher.copies.mirror.records import keep_end, keep_state, renew
from launcher.copies.mirror.roles import keep_roles
from launcher.errors import LaunchError
from launcher.ids import RunId
from launcher.places.login.address import KIND
from launcher.places.login.messages import EVENTS_BYTES, AttemptNews, KnownRun, RunNews
from launcher.run.attempts import newest, read_intent
from launcher.run.durable import make_dir, read_record, write_record
from launcher.run.identity import this_process
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import ClusterAnswer, Exclusion, Handle, Intent, StopRequest
from launcher.states import State

_OVERLAP = 4096  # bytes of the events that are compared: do others continue these?
_MOST_EVENTS = 256 << 20  # in all: they are read as a whole
_SEEN_S = 5.0  # how much older than the truth the note of when the run was last seen may be


def known_of(run: RunDir, attempt: AttemptDir, there: RunId) -> KnownRun:
    """Return how much of a run's records this machine has, so that the login node, where its id is `there`, sends the
    remainder.
    """
    try:
        size = run.events.stat().st_size
    except FileNotFoundError:
        size = 0
    return KnownRun(there, attempt.number, size, _tail(run.events, size))


def events_after(run: RunDir, known: KnownRun, most: int = EVENTS_BYTES) -> tuple[int, bytes]:
    """Return (offset, text) of the complete lines of this machine's history that are new to another machine, which has
    the records in `known`; the text has at most `most` bytes.

    If the other machine's history is not the beginning of this machine's, the offset is 0 and all lines are sent.
    """
    at = known.events if _tail(run.events, known.events) == known.tail else 0
    try:
        with run.events.open("rb") as events:
            events.seek(at)
            new = events.read(most)
    except FileNotFoundError:
        return 0, b""
    return at, new[: new.rfind(b"\n") + 1]


def _tail(events: Path, end: int) -> str:
    """Return the SHA-256 of the last 4096 bytes of the history before offset `end`, or "" if there is no history. Two
    machines compare it to see whether one's history continues the other's.
    """
    try:
        with events.open("rb") as file:
            start = max(0, end - _OVERLAP)
            file.seek(start)
            return hashlib.sha256(file.read(end - start)).hexdigest()
    except FileNotFoundError:
        return ""


def keep(run: RunDir, attempt: AttemptDir, news: RunNews) -> None:
    """Write the records in `news`, an answer of the login node, into the run's folder here. The node was asked for what
    is new since `attempt`, so the news begin with the records of this attempt, and later attempts follow.

    Ignore the news if this machine has a later attempt than they do. Raise LaunchError if the numbers of the attempts
    or the offset of the events are not those that were asked for. The end is written last, because an ended run is not
    asked about any more, and by then all its events must be here.
    """
    mine = newest(run)
    if mine is not None and mine.number > attempt.number + len(news.attempts) - 1:
        return
    for number, one in enumerate(news.attempts, attempt.number):
        if one.number != number:
            raise LaunchError(f"expected attempt {number} of {run.path.name} there, got {one.number}")
        _keep_beginning(run, attempt, one, news.job)
    _keep_events(run, news)
    _keep_avoided(run, news)
    for one in news.attempts[:-1] if news.more else news.attempts:
        here = run.attempt(one.number)
        renew(here.stop, one.stop, StopRequest)
        keep_end(here, one.end)
    keep_roles(run, attempt, news.roles, KIND)
    if news.last is not None and not (news.more and news.last.state.ended):
        keep_state(run, attempt, news.last)


def _keep_beginning(run: RunDir, known: AttemptDir, news: AttemptNews, job: str | None) -> None:
    """Write here the handle and the intent of the attempt that `news` tells of: how to ask the cluster about it, and
    who opened it and why. What `news` lacks comes from the records of `known`, the attempt from which the news begin;
    `job` is the job's id on the login node's cluster (None: no job).

    The handle is written first, because an attempt without one counts as not yet sent to the login node.
    """
    here = run.attempt(news.number)
    handle = read_record(known.handle, Handle) or Handle(KIND)
    make_dir(here.path)
    renew(here.handle, msgspec.structs.replace(handle, job_id=job), Handle)
    if not here.intent.exists():
        before = read_intent(known)
        intent = Intent(news.number, "", before.cluster, news.reason, news.cause, news.created_at, this_process(), KIND)
        write_record(here.intent, msgspec.structs.replace(intent, submit_token=before.submit_token))


def _keep_avoided(run: RunDir, news: RunNews) -> None:
    """Replace the run's excluded hosts here by those in `news`, as far as attempts behind a login node excluded them;
    hosts that other attempts excluded stay.
    """
    before = read_record(run.avoided, list[Exclusion]) or []
    theirs = {
        number for number in {exclusion.attempt for exclusion in (*before, *news.avoided)} if _was_there(run, number)
    }
    exclusions = [exclusion for exclusion in before if exclusion.attempt not in theirs]
    exclusions += [exclusion for exclusion in news.avoided if exclusion.attempt in theirs]
    if exclusions != before:
        write_record(run.avoided, exclusions)


def _was_there(run: RunDir, number: int) -> bool:
    """Return whether attempt `number` was on a cluster behind a login node, as its intent says; False if this machine
    has no intent of it. Raise Damaged if the intent cannot be read.
    """
    intent = read_record(run.attempt(number).intent, Intent)
    return intent is not None and intent.cluster_kind == KIND


def _keep_events(run: RunDir, news: RunNews) -> None:
    """Write the new events into the history on this machine, at their offset; at offset 0 they replace it as a whole.

    Raise LaunchError if events between the history here and the new ones are missing, or if it would become larger than
    256 MiB.
    """
    if not news.events:
        return
    size = run.events.stat().st_size if news.events_at and run.events.exists() else 0
    if news.events_at > size or news.events_at + len(news.events) > _MOST_EVENTS:
        raise LaunchError(f"expected events of {run.path.name} from byte {size} on, got some from {news.events_at} on")
    with run.events.open("r+b" if news.events_at else "wb") as file:
        file.seek(news.events_at)
        file.write(news.events)  # not durable: what a crash takes is asked for again


def answer_of(attempt: AttemptDir, news: RunNews) -> ClusterAnswer:
    """Return the news of the login node as a ClusterAnswer, the form in which every kind of cluster reports the state
    of a run. Record it in the attempt's folder, for times when the login node does not answer.
    """
    last = read_record(attempt.seen, ClusterAnswer)
    word = _cluster_answer(news, last)
    if last is None or last.word != word.word or word.at - last.at > _SEEN_S:
        write_record(attempt.seen, word)
    return word


def _cluster_answer(news: RunNews, last: ClusterAnswer | None) -> ClusterAnswer:
    """Return the login node's report as the answer of a cluster. If the login node does not know the state, the state's
    name and time are those of `last`, the answer before this one (None: there is none, so they are "" and 0).

    A run that has ended counts as running until all its events have been copied here.
    """
    at = time.time()
    match news.state:
        case State.UNKNOWN:
            word, at = (last.word, last.at) if last is not None else ("", 0.0)
            return ClusterAnswer("unknown", word, at, text=news.message)
        case State.QUEUED:
            return ClusterAnswer("queued", "QUEUED", at, job_id=news.job or "", text=news.message)
        case state if state.ended and news.more:
            return ClusterAnswer("running", State.RUNNING.upper(), at, text="it has ended, and its events are coming")
        case state if state.ended:
            return ClusterAnswer("ended", state.upper(), at, text=news.message, ended_as=state, cause=news.cause)
        case state:
            return ClusterAnswer("running", state.upper(), at, text=news.message)
