"""Attempts of a run: numbering them, their intents, and the plan that each follows."""

import time
from typing import TYPE_CHECKING, TypeVar

from launcher.errors import LaunchError
from launcher.rundir.durable import create_record, make_dir, read_record, sync_dir, write_record
from launcher.rundir.identity import this_process
from launcher.rundir.ids import new_ticket, new_token
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import Intent
from launcher.words import Cause

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
    kind: str = "local",
    ticket: str = "",
    batch: str = "",
) -> tuple[AttemptDir, Intent]:
    """The next attempt, with its intent on disk. Two that race get two numbers: making the folder is the lock."""
    make_dir(run.attempts)
    sync_dir(run.path)
    number = max((attempt.number for attempt in attempts(run)), default=0) + 1
    while not _claim(run.attempt(number)):
        number += 1
    attempt = run.attempt(number)
    if plan is not None:
        write_record(attempt.plan, plan)
    token, ticket = new_token(), ticket or new_ticket()
    intent = Intent(number, token, cluster, reason, cause, time.time(), this_process(), kind, ticket, batch)
    create_record(attempt.intent, intent)
    return attempt, intent


def read_intent(attempt: AttemptDir) -> Intent:
    intent = read_record(attempt.intent, Intent)
    if intent is None:
        raise LaunchError(f"{attempt.intent}: is missing")
    return intent


def read_plan(run: RunDir, number: int) -> "Plan":
    """The plan that this attempt follows: its own, or the one before's."""
    from launcher.plan.model import Plan  # late: 8 ms that `launch status` does not need

    return plan_as(run, number, Plan)


def plan_as(run: RunDir, number: int, kind: type[T]) -> T:
    """The same, or as much of it as this kind of record holds."""
    for attempt in (run.attempt(one) for one in range(number, 0, -1)):
        plan = read_record(attempt.plan, kind)
        if plan is not None:
            return plan
    plan = read_record(run.plan, kind)
    if plan is None:
        raise LaunchError(f"{run.plan}: is missing")
    return plan


def _claim(attempt: AttemptDir) -> bool:
    try:
        attempt.path.mkdir(mode=0o700)
    except FileExistsError:
        return False
    sync_dir(attempt.path.parent)
    return True
