"""Attempts of a run, each of which is one allocation: their numbers, their intents (who opened the attempt, and why),
and the plan that each follows.
"""

import contextlib
import errno
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from launcher.errors import Refused
from launcher.ids import attempt_token, new_submit_token, new_token
from launcher.run import drafts
from launcher.run.durable import Damaged, make_dir, read_record, readable, sync_dir, write_record
from launcher.run.fence import fence
from launcher.run.identity import this_process
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import ClusterAnswer, Handle, Intent, RunState
from launcher.states import LOCAL, Cause

if TYPE_CHECKING:
    from launcher.plan.model import Plan

T = TypeVar("T")


def attempts(run: RunDir) -> list[AttemptDir]:
    """Return all attempts of the run, oldest first, or an empty list if it has none."""
    return [run.attempt(number) for number in _numbers(run)]


def last_attempt(run: RunDir) -> AttemptDir:
    """Return the attempt with the highest number, whether its intent was written or not; raise Damaged if the run's
    folder has none.
    """
    if not (numbers := _numbers(run)):
        raise Damaged(f"{run.attempts}: has no attempt")
    return run.attempt(numbers[-1])


def _numbers(run: RunDir) -> list[int]:
    """Return the numbers of all attempt folders, sorted, or an empty list if there are none."""
    try:
        names = os.listdir(run.attempts)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def newest(run: RunDir) -> AttemptDir | None:
    """Return the newest attempt whose intent was written, or None if the run has none."""
    return next((one for one in map(run.attempt, reversed(_numbers(run))) if one.intent.exists()), None)


def last_seen(attempt: AttemptDir, silent: str) -> ClusterAnswer:
    """Return the last recorded answer of the attempt's cluster, or an answer whose phase is "unknown" if there is none,
    with `silent` as the reason why the cluster gives no newer one.
    """
    before = readable(attempt.seen, ClusterAnswer) or ClusterAnswer("unknown", "", 0.0)
    return msgspec.structs.replace(before, silent=silent)


def new_attempt(
    run: RunDir,
    cluster: str,
    reason: str,
    cause: Cause | None,
    plan: "Plan | None" = None,
    *,
    kind: str = LOCAL,
    submit_token: str = "",
    batch: str = "",
    after: int | None = None,
    fsync: bool = True,
    first: int = 1,
    secret: str = "",
    handle: Handle | None = None,
) -> tuple[AttemptDir, Intent]:
    """Create the folder of the run's next attempt with its intent, and `plan` and `handle` if given; return (attempt,
    intent).

    The intent records the cluster and its `kind`, the reason (submit, resume or requeue), the `cause` of the previous
    attempt's end, and the submit token (a new one for ""). The number is at least `first`. Without a `plan` the attempt
    follows that of an earlier attempt. `batch` is the folder of runs that were submitted as one job.

    The attempt's folder is renamed into place, which serves as the lock: two callers that race get two numbers. With
    `after`, the number of an attempt that has ended, only one of them gets the next number; the others get Refused.

    The attempt's token is random, or derived from a `secret` that other hosts share. Without `fsync` the caller must
    make the run durable before it tells another process about it. A `handle` shows other processes that the attempt's
    start was attempted.
    """
    make_dir(run.attempts)
    if fsync:
        sync_dir(run.path)
    drafts.remove_orphans(run.attempts)
    there = attempts(run)
    if after is not None:
        _refuse_later(run, there, after)
    number = max([first - 1, *(attempt.number for attempt in there)]) + 1
    drawn, submit_token = new_token(), submit_token or new_submit_token()
    draft = AttemptDir(drafts.new_draft(run.attempts), 0)
    try:
        make_dir(draft.path)
        if plan is not None:
            write_record(draft.plan, plan, fsync=fsync)
        if handle is not None:
            write_record(draft.handle, handle, fsync=fsync)
        while True:
            token = attempt_token(secret, number) if secret else drawn
            intent = Intent(
                number, token, cluster, reason, cause, time.time(), this_process(), kind, submit_token, batch
            )
            write_record(draft.intent, intent, fsync=fsync)
            if _claim(draft, run.attempt(number), fsync=fsync):
                return run.attempt(number), intent
            if after is not None:
                raise _resumed_meanwhile(run, number)
            number += 1
    finally:
        drafts.remove(draft.path)


def read_intent(attempt: AttemptDir) -> Intent:
    """Return the attempt's intent, which says why and by which process it was opened; raise Damaged if it is missing or
    unreadable.
    """
    intent = read_record(attempt.intent, Intent)
    if intent is None:
        raise Damaged(f"{attempt.intent}: is missing")
    return intent


def used_s_of(run: RunDir, attempt: AttemptDir, last: RunState | None) -> float:
    """Return for how many seconds the attempts before `attempt` have run since a user submitted or resumed the run, as
    the run's last state `last` records it.

    Return 0 if there is no state, or if a user has resumed the run since the state was written: an attempt that ends
    early writes none.
    """
    if last is None:
        return 0.0
    since = (run.attempt(number) for number in range(last.attempt + 1, attempt.number + 1))
    return 0.0 if any(map(_resumes, since)) else last.used_s


def _resumes(attempt: AttemptDir) -> bool:
    """Return whether a user opened the attempt by `launch resume`; False if its intent is missing or damaged."""
    try:
        intent = read_record(attempt.intent, Intent)
    except Damaged:
        return False
    return intent is not None and intent.reason == "resume"


def read_plan(run: RunDir, number: int) -> "Plan":
    """Return the plan that attempt `number` follows: its own, or else that of the newest earlier attempt that has one.
    Raise Damaged if there is none, or if it cannot be decoded.
    """
    from launcher.plan.model import Plan  # late: 8 ms that `launch status` does not need

    return plan_as(run, number, Plan)


def plan_as(run: RunDir, number: int, kind: type[T]) -> T:
    """Return the plan that attempt `number` follows: its own or, if it has none, that of the newest earlier attempt
    with one, else the run's. Raise Damaged if there is none or it cannot be read.

    It is decoded as the record type `kind`, which has only those of a plan's fields that the caller needs.
    """
    plan = next((plan for file in _plans(run, number) if (plan := read_record(file, kind)) is not None), None)
    if plan is None:
        raise Damaged(f"{run.plan}: is missing")
    return plan


def _plans(run: RunDir, number: int) -> Iterator[Path]:
    """Yield the plan files of attempt `number`, of earlier attempts, the newest first, and of the run. The first that
    exists has the plan that the attempt follows.
    """
    yield from (run.attempt(one).plan for one in range(number, 0, -1))
    yield run.plan


@dataclass(frozen=True, slots=True)
class Remains:
    """The parts of a damaged run that can still be read, so that it can be ended: its newest attempt, its plan if
    readable, and the kind of its cluster.
    """

    attempt: AttemptDir  # the newest; if none is readable, the one whose number the other records show
    plan: "Plan | None"
    kind: str  # the kind of its cluster


def remains(run: RunDir) -> Remains:
    """Return the newest attempt, plan and cluster kind of a run that may be damaged; never raise an error.

    A run without any readable record is treated as local, because local processes can be found without records.
    """
    from launcher.plan.model import Plan  # late: 8 ms that `launch status` does not need

    attempt = newest(run) or run.attempt(_newest_ever(run))
    plans = (readable(file, Plan) for file in _plans(run, attempt.number))
    plan = next((plan for plan in plans if plan is not None), None)
    told = (readable(attempt.intent, Intent), readable(attempt.handle, Handle), plan)
    kind = next((one.cluster_kind for one in told if one is not None), LOCAL)
    # Where the attempt's own plan is damaged, an older one's may be of another cluster. On a host of a pool an attempt
    # is local, and follows the pool's plan.
    if plan is not None and kind not in (LOCAL, plan.cluster_kind):
        plan = None
    return Remains(attempt, plan, kind)


def _newest_ever(run: RunDir) -> int:
    """Return the highest attempt number that shows in the attempts' folders, the fence or the last state, at least 1;
    the next attempt needs a higher one. Return 1 if the fence or the folders cannot be read.

    The fence is the file with the number of the attempt that may write checkpoints.
    """
    last = readable(run.state, RunState)
    with contextlib.suppress(Damaged, OSError):
        return max([1, fence(run), *(one.number for one in attempts(run)), last.attempt if last is not None else 0])
    return 1


def _refuse_later(run: RunDir, there: Sequence[AttemptDir], after: int) -> None:
    """Raise Refused if one of the run's attempts in `there` has a number above `after`."""
    later = next((one.number for one in there if one.number > after and one.intent.exists()), None)
    if later is not None:
        raise _resumed_meanwhile(run, later)


def _resumed_meanwhile(run: RunDir, number: int) -> Refused:
    """Return the error for a caller that was overtaken: another one has resumed the run, as attempt `number`."""
    name = run.path.name
    return Refused(f"{name} was resumed meanwhile, as attempt {number}", f"hint: launch status {name}")


def _claim(draft: AttemptDir, attempt: AttemptDir, *, fsync: bool) -> bool:
    """Rename the draft to the attempt's folder, durably with `fsync`; return False if that folder already exists."""
    try:
        os.rename(draft.path, attempt.path)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        return False
    if fsync:
        sync_dir(attempt.path.parent)
    return True
