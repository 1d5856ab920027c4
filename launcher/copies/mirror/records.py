"""Copy the records of a run that is on other machines into its folder on this machine. Fields that only this machine
can decide, such as the run's name here, are not taken over.
"""

from pathlib import Path
from typing import TypeVar

import msgspec

from launcher.errors import Exit
from launcher.run.attempts import plan_as
from launcher.run.durable import Damaged, read_record, write_record
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import AttemptEnd, RunState
from launcher.states import Cause, State, exit_of

T = TypeVar("T")

_ENDS = frozenset(Exit) - {Exit.INTERRUPTED, Exit.PIPE_CLOSED} - {code for code in Exit if code < Exit.USER_ERROR}


class _OurPlan(msgspec.Struct, frozen=True):
    """The part of this machine's plan that names the run here."""

    run_id: str
    name: str
    cluster: str
    submitted_at: float


def keep_end(attempt: AttemptDir, end: AttemptEnd | None) -> None:
    """Write exit.json, the record with which an attempt ends, on this machine, unless `end` is None. Its exit code is
    the one that `launch wait` gives for such an end.
    """
    if end is not None:
        end = msgspec.structs.replace(end, exit_code=_exit_code(end.state, end.cause, end.exit_code))
    renew(attempt.end, end, AttemptEnd)


def keep_state(run: RunDir, attempt: AttemptDir, last: RunState) -> None:
    """Write the coordinator's newest state `last` to the state record of the run on this machine, with the names that
    run and cluster have here. An ended run gets the exit code that `launch wait` returns here, others None.
    """
    ours = plan_as(run, attempt.number, _OurPlan)
    named = {"run": ours.run_id, "name": ours.name, "cluster": ours.cluster, "submitted_at": ours.submitted_at}
    code = _exit_code(last.state, last.cause, last.exit_code) if last.state.ended else None
    renew(run.state, msgspec.structs.replace(last, **named, exit_code=code, boot_id=""), RunState)


def renew(path: Path, record: T | None, kind: type[T]) -> None:
    """Write a record of type `kind`, unless it is None or the file has the same content already."""
    try:
        known = read_record(path, kind)
    except Damaged:
        known = None
    if record is not None and record != known:
        write_record(path, record)


def _exit_code(state: State, cause: Cause | None, reported: int | None) -> int:
    """Return the exit code that `launch wait` gives for a run that ended elsewhere: 0 for success alone; else
    `reported`, which the other machine has recorded, if it is a code for the end of a run; else the code of the cause.
    """
    if state is State.SUCCEEDED:
        return Exit.OK
    return reported if reported in _ENDS else Exit.LOST if cause is None else exit_of(cause)
