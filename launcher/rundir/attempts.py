"""Attempts of a run: numbering them, their intents, and the plan that each follows."""

import errno
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from launcher.errors import LaunchError, Refused
from launcher.rundir import drafts
from launcher.rundir.durable import Damaged, make_dir, read_record, sync_dir, write_record
from launcher.rundir.identity import this_process
from launcher.rundir.ids import new_ticket, new_token
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import Intent, RunState
from launcher.words import LOCAL, Cause

if TYPE_CHECKING:
    from launcher.plan.model import Plan

T = TypeVar("T")


def attempts(run: RunDir) -> list[AttemptDir]:
    """All attempts, oldest first."""
    try:
        names = [entry.name for entry in run.attempts.iterdir()]
    except FileNotFoundError:
        return []
    return [run.attempt(number) for number in sorted(int(name) for name in names if name.isascii() and name.isdigit())]


def newest(run: RunDir) -> AttemptDir | None:
    """The newest attempt whose intent is on disk."""
    return next((attempt for attempt in reversed(attempts(run)) if attempt.intent.exists()), None)


def new_attempt(
    run: RunDir,
    cluster: str,
    reason: str,
    cause: Cause | None,
    plan: "Plan | None" = None,
    *,
    kind: str = LOCAL,
    ticket: str = "",
    batch: str = "",
    after: int | None = None,
    fsync: bool = True,
    first: int = 1,
) -> tuple[AttemptDir, Intent]:
    """The next attempt, with its intent on disk: its folder gets its name, which is the lock, with all that is in it.

    Two that race get two numbers. With `after`, the attempt that the caller has seen end, one of them gets the next
    number, and the other, or who comes later, is Refused. Without fsync the run is one that nobody knows of yet.
    """
    make_dir(run.attempts)
    if fsync:
        sync_dir(run.path)
    drafts.remove_orphans(run.attempts)
    there = attempts(run)
    if after is not None:
        _refuse_later(run, there, after)
    number = max((attempt.number for attempt in there), default=first - 1) + 1
    token, ticket = new_token(), ticket or new_ticket()
    draft = AttemptDir(drafts.new_draft(run.attempts), 0)
    try:
        make_dir(draft.path)
        if plan is not None:
            write_record(draft.plan, plan, fsync=fsync)
        while True:
            intent = Intent(number, token, cluster, reason, cause, time.time(), this_process(), kind, ticket, batch)
            write_record(draft.intent, intent, fsync=fsync)
            if _claim(draft, run.attempt(number), fsync=fsync):
                return run.attempt(number), intent
            if after is not None:
                raise _resumed_meanwhile(run, number)
            number += 1
    finally:
        drafts.remove(draft.path)


def read_intent(attempt: AttemptDir) -> Intent:
    intent = read_record(attempt.intent, Intent)
    if intent is None:
        raise LaunchError(f"{attempt.intent}: is missing")
    return intent


def used_s_of(run: RunDir, attempt: AttemptDir, last: RunState | None) -> float:
    """How long attempts before this one have lasted, by the run's last word, since a person began or resumed it.

    The word may be older than the resume: an attempt that dies early leaves none.
    """
    if last is None:
        return 0.0
    since = (run.attempt(number) for number in range(last.attempt + 1, attempt.number + 1))
    return 0.0 if any(map(_resumes, since)) else last.used_s


def _resumes(attempt: AttemptDir) -> bool:
    try:
        intent = read_record(attempt.intent, Intent)
    except Damaged:
        return False
    return intent is not None and intent.reason == "resume"


def read_plan(run: RunDir, number: int) -> "Plan":
    """The plan that this attempt follows: its own, or the one before's."""
    from launcher.plan.model import Plan  # late: 8 ms that `launch status` does not need

    return plan_as(run, number, Plan)


def plan_as(run: RunDir, number: int, kind: type[T]) -> T:
    """The plan that this attempt follows, as much of it as this kind of record holds."""
    for attempt in (run.attempt(one) for one in range(number, 0, -1)):
        plan = read_record(attempt.plan, kind)
        if plan is not None:
            return plan
    plan = read_record(run.plan, kind)
    if plan is None:
        raise LaunchError(f"{run.plan}: is missing")
    return plan


def _refuse_later(run: RunDir, there: Sequence[AttemptDir], after: int) -> None:
    later = next((one.number for one in there if one.number > after and one.intent.exists()), None)
    if later is not None:
        raise _resumed_meanwhile(run, later)


def _resumed_meanwhile(run: RunDir, number: int) -> Refused:
    name = run.path.name
    return Refused(f"{name} was resumed meanwhile, as attempt {number}", f"hint: launch status {name}")


def _claim(draft: AttemptDir, attempt: AttemptDir, *, fsync: bool) -> bool:
    try:
        os.rename(draft.path, attempt.path)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        return False
    if fsync:
        sync_dir(attempt.path.parent)
    return True
