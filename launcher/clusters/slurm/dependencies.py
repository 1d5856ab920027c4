"""Runs that a job is to follow, in Slurm's words: it knows jobs and their ends, and nothing of steps."""

from collections.abc import Sequence
from pathlib import Path

from launcher.errors import Refused
from launcher.plan.facts import Misfit
from launcher.plan.model import AwaitedRun
from launcher.rundir.attempts import newest
from launcher.rundir.durable import readable
from launcher.rundir.layout import RunDir
from launcher.rundir.records import Handle, Intent, RunState
from launcher.words import State

_KIND = "slurm"
_WORDS = {"succeeded": "afterok", "ended": "afterany"}
_HINT = "one that waits on this machine can: `--on local`"


def dependency_of(awaited: Sequence[AwaitedRun]) -> str:
    """The value of --dependency; "" where all that was to be waited for has happened."""
    words = []
    for one in awaited:
        if not _has_happened(one):
            handle = _handle_of(one)
            if handle is None or handle.job_id is None:
                raise Refused(f"{one.run_id}, which is to be followed, has no job yet", "hint: submit this one later")
            words.append(f"{_WORDS[one.until]}:{handle.job_id}")
    return ",".join(words)


def dependency_problems(awaited: Sequence[AwaitedRun]) -> list[Misfit]:
    """Of the runs to follow, those that Slurm cannot wait for, and those for which it is too late."""
    found = ((index, _problem(one)) for index, one in enumerate(awaited))
    return [Misfit(f"queue.after.{index}", why, _HINT) for index, why in found if why]


def _problem(one: AwaitedRun) -> str:
    if one.until not in _WORDS:
        return "Slurm knows how jobs end, and nothing of steps"
    attempt = newest(RunDir(Path(one.run_dir)))
    intent = readable(attempt.intent, Intent) if attempt is not None else None
    if intent is None or intent.cluster_kind != _KIND:
        return f"{one.run_id} is not on Slurm, which waits for its own jobs alone"
    state = _ended_as(one)
    too_late = state is not None and not _has_happened(one)
    return f"{one.run_id} is {state}: it will not succeed any more" if too_late else ""


def _has_happened(one: AwaitedRun) -> bool:
    state = _ended_as(one)
    return state is State.SUCCEEDED or (state is not None and one.until == "ended")


def _ended_as(one: AwaitedRun) -> State | None:
    """None: it has not, or it was resumed since."""
    run = RunDir(Path(one.run_dir))
    said, attempt = readable(run.state, RunState), newest(run)
    resumed = said is not None and attempt is not None and attempt.number > said.attempt
    return said.state if said is not None and said.state.ended and not resumed else None


def _handle_of(one: AwaitedRun) -> Handle | None:
    attempt = newest(RunDir(Path(one.run_dir)))
    return readable(attempt.handle, Handle) if attempt is not None else None
