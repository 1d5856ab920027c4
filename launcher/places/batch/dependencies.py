"""Translate the runs that a new run waits for into jobs of the same scheduler. A scheduler knows how jobs end, but not
which step a run has reached.
"""

from collections.abc import Sequence
from pathlib import Path

from launcher.errors import Refused
from launcher.places.batch.batch import BatchSystem
from launcher.plan.facts import Misfit
from launcher.plan.model import AwaitedRun
from launcher.run.attempts import newest
from launcher.run.durable import readable
from launcher.run.layout import RunDir
from launcher.run.records import Handle, Intent
from launcher.supervisor.waiting import WAITS_HERE, ended_as, has_happened

_KNOWN = ("succeeded", "ended")


def jobs_to_follow(awaited: Sequence[AwaitedRun]) -> list[tuple[AwaitedRun, str]]:
    """Return (run, job id) for each of the awaited runs whose awaited end has not come yet; raise Refused if one of
    these has no job yet.

    Call it only for runs in which `dependency_problems` finds no problem, such as that a step is awaited.
    """
    found = []
    for one in awaited:
        if not has_happened(one):
            handle = _handle_of(one)
            if handle is None or handle.job_id is None:
                raise Refused(f"{one.run_id}, which is to be followed, has no job yet", "hint: submit this one later")
            found.append((one, handle.job_id))
    return found


def dependency_problems(scheduler: BatchSystem, awaited: Sequence[AwaitedRun]) -> list[Misfit]:
    """Return a problem for each run for which the scheduler cannot wait, such as one on another kind of cluster, and
    for each that has ended otherwise than awaited.
    """
    found = ((index, _problem(scheduler, one)) for index, one in enumerate(awaited))
    return [Misfit(f"queue.after.{index}", why, WAITS_HERE) for index, why in found if why]


def _problem(scheduler: BatchSystem, one: AwaitedRun) -> str:
    """Return why the scheduler cannot wait for this run, or "" if it can."""
    if one.until not in _KNOWN:
        return f"{scheduler.called} knows how jobs end, and nothing of steps"
    attempt = newest(RunDir(Path(one.run_dir)))
    intent = readable(attempt.intent, Intent) if attempt is not None else None
    if intent is None or intent.cluster_kind != scheduler.kind:
        return f"{one.run_id} is not on {scheduler.called}, which waits for its own jobs alone"
    state = ended_as(one)
    too_late = state is not None and not has_happened(one)
    return f"{one.run_id} is {state}: it will not succeed any more" if too_late else ""


def _handle_of(one: AwaitedRun) -> Handle | None:
    """Return the handle (the record of its job) of the awaited run's newest attempt, or None if the run has no attempt
    or that one has no readable handle.
    """
    attempt = newest(RunDir(Path(one.run_dir)))
    return readable(attempt.handle, Handle) if attempt is not None else None
