"""The run's folder here as a mirror of those on its hosts: what they say is copied, and stays when they fall silent."""

import time
from collections.abc import Mapping, Sequence

import msgspec

from launcher.clusters.ssh.letters import Place
from launcher.clusters.ssh.post import ask_all
from launcher.clusters.ssh.run_hosts import handed_to, places_of
from launcher.clusters.ssh.submit import unfinished
from launcher.clusters.ssh.submit.handover import alone
from launcher.clusters.ssh.submit.report import Testimony, best_of, copy, hear, knowing
from launcher.errors import LaunchError
from launcher.hostlink.parallel import AT_ONCE, failures, for_all, reasons
from launcher.plan.model import Plan
from launcher.rundir.attempts import attempts, read_plan
from launcher.rundir.durable import read_record, write_record
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import ClusterWord
from launcher.status.derive import RunStatus
from launcher.words import State


def look(wanted: Sequence[tuple[RunDir, AttemptDir]]) -> list[ClusterWord | None]:
    """What the hosts of each run say of it; their records are copied. What is wrong with one is said of it alone."""
    pairs = {str(attempt.path): (run, attempt) for run, attempt in wanted}
    words = for_all(pairs, lambda _, pair: _looked(*pair), at_once=AT_ONCE)
    return [_said_of(words[name]) for name in pairs]


def _looked(run: RunDir, attempt: AttemptDir) -> ClusterWord | None:
    try:
        return judge(run, attempt)
    except LaunchError:
        raise
    except Exception as error:  # whatever it is, the others are to be shown
        raise LaunchError(f"{run.path}: {type(error).__name__}: {error}") from error


def _said_of(word: ClusterWord | LaunchError | None) -> ClusterWord | None:
    return ClusterWord("unknown", "", 0.0, silent=word.lines[0]) if isinstance(word, LaunchError) else word


def judge(run: RunDir, attempt: AttemptDir) -> ClusterWord | None:
    """The first host is believed where nobody can know better than it says; else all are asked."""
    if unfinished.is_unfinished(attempt):
        if unfinished.in_hand(attempt):
            return None
        if (word := _finish(run, attempt)) is not None:
            return word
    plan = read_plan(run, attempts(run)[-1].number)
    places = _leader_first(plan, places_of(run))
    said = _asked(run, places[:1])
    if not any(one.is_sure and one.seen.attempt >= attempt.number for one in knowing(said)):
        said |= _asked(run, places[1:])
    return _judged(run, attempt, plan, said)


def _judged(run: RunDir, attempt: AttemptDir, plan: Plan, said: Mapping[str, Testimony | LaunchError]) -> ClusterWord:
    """The best testimony, unless those that are silent are enough to have gone on without the others."""
    silent = reasons(failures(said))
    best = best_of(knowing(said), apart=plan.disks_apart)
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


def _finish(run: RunDir, attempt: AttemptDir) -> ClusterWord | None:
    """Its submitter is gone: were the hosts that it had chosen told to go? Else it is handed over now."""
    with alone(attempt) as first:
        if not first:
            return ClusterWord("queued", "", time.time(), text="it is being handed to its hosts")
        if not unfinished.is_unfinished(attempt):
            return None  # by now
        said = _asked(run, handed_to(run, attempt))
        if any(one.seen.attempt >= attempt.number and one.seen.began for one in knowing(said)):
            unfinished.began(attempt)
            return None
        if silent := reasons(failures(said)):
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


def _leader_first(plan: Plan, places: Sequence[Place]) -> list[Place]:
    """In the order of the newest plan that is known here."""
    order = [node.host for node in plan.nodes]
    return sorted(places, key=lambda place: order.index(place.host.name) if place.host.name in order else len(order))


def _asked(run: RunDir, places: Sequence[Place]) -> dict[str, Testimony | LaunchError]:
    return ask_all(places, lambda letters: hear(run, letters))


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
