"""Exchange, between machines, the state of a run's roles (its programs other than the main one). An attempt is one
batch job, or one start on a pool's hosts.
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from launcher.copies.mirror.records import keep_end, keep_state, renew
from launcher.ids import RunId, parse_run_id
from launcher.plan.model import Plan
from launcher.run.attempts import attempts, read_plan
from launcher.run.durable import make_dir, readable, write_record
from launcher.run.identity import this_process
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import AttemptEnd, Handle, Intent, RunState
from launcher.status.facts import role_dirs


class RoleReport(msgspec.Struct, frozen=True):
    """The state of one role: its newest attempt, the last state that its coordinator wrote (None if it has written
    none), and how the attempt ended (None if it has not).

    A role whose ranks restart independently has a report per rank. `name` is that of the role's folder.
    """

    name: RunId
    attempt: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]  # the role's newest
    last: RunState | None
    end: AttemptEnd | None


def reports_of_roles(run: RunDir) -> Iterator[RoleReport]:
    """Yield the state of each role's newest attempt, as the records in the run's folder show it; roles without an
    attempt are left out.
    """
    for role in map(RunDir, role_dirs(run)):
        if there := attempts(role):
            last = there[-1]
            state, end = readable(role.state, RunState), readable(last.end, AttemptEnd)
            yield RoleReport(parse_run_id(role.path.name), last.number, state, end)


def next_attempts_of_roles(run: RunDir) -> dict[RunId, int]:
    """Return, by the name of each role's folder, the number that its next attempt must have when the run continues on
    another cluster: that after its newest one here. Roles without an attempt are left out.
    """
    found = {parse_run_id(path.name): attempts(RunDir(path)) for path in role_dirs(run)}
    return {name: there[-1].number + 1 for name, there in found.items() if there}


def keep_roles(run: RunDir, attempt: AttemptDir, reports: Sequence[RoleReport], kind: str) -> None:
    """Write the reports, which came from the cluster where the roles run, into the run's folder on this machine.

    A report on a role that the plan of `attempt` does not have is ignored. `kind` is the kind of the cluster, such as
    slurm.
    """
    plans = {Path(plan.run_dir).name: plan for plan in read_plan(run, attempt.number).roles} if reports else {}
    for one in reports:
        if (plan := plans.get(one.name)) is None:
            continue
        role = RunDir(run.roles / one.name)
        there = role.attempt(one.attempt)
        for later in attempts(role):
            if later.number > one.attempt:  # a leader without the records of those before has counted anew
                shutil.rmtree(later.path)
        make_dir(there.path)
        renew(role.plan, plan, Plan)
        renew(there.handle, Handle(kind), Handle)
        if not there.intent.exists():
            me, reason = this_process(), "submit" if one.attempt == 1 else "requeue"
            write_record(there.intent, Intent(one.attempt, "", plan.cluster, reason, None, time.time(), me, kind))
        if one.last is not None:
            keep_state(role, there, one.last)
        keep_end(there, one.end)
