"""Runs that a job is to follow: which jobs these are, in a scheduler's words, and what none can wait for."""

import msgspec
import pytest

from launcher.errors import Refused
from launcher.places.batch.dependencies import dependency_problems, jobs_to_follow
from launcher.places.gridengine.gridengine import GridEngineSystem
from launcher.places.slurm.queue import SlurmSystem, dependency_of
from launcher.plan.model import AwaitedRun
from launcher.run.records import Handle
from launcher.states import State
from tests.run_folder import RunFolder


def folder(tmp_path, name, job="12", kind="slurm", ended=None):
    """A run on Slurm, as its submitter and its coordinator left it."""
    made = RunFolder(tmp_path / name).plan().intent(kind=kind)
    if job:
        made.write(made.run.attempt(1).handle, Handle(kind, job_id=job))
    state = ended or State.RUNNING
    return made.state(state)


def after(made, until="succeeded"):
    return AwaitedRun(made.path.name, str(made.path), until)


def test_jobs_that_go_on_are_named_with_the_end_that_is_wanted(tmp_path):
    first, second = folder(tmp_path, "prep-7k3f"), folder(tmp_path, "vit-9x2d", job="13_4")
    assert dependency_of([after(first), after(second, "ended")]) == "afterok:12,afterany:13_4"
    assert dependency_problems(SlurmSystem(), [after(first), after(second, "ended")]) == []


def test_what_has_happened_is_not_waited_for(tmp_path):
    good, bad = folder(tmp_path, "a-1111", ended=State.SUCCEEDED), folder(tmp_path, "b-1111", ended=State.FAILED)
    assert dependency_of([after(good), after(bad, "ended")]) == ""
    assert dependency_problems(SlurmSystem(), [after(good), after(bad, "ended")]) == []


def test_what_slurm_cannot_wait_for_is_refused(tmp_path):
    bad, here = folder(tmp_path, "b-1111", ended=State.FAILED), folder(tmp_path, "c-1111", kind="local")
    problems = dependency_problems(
        SlurmSystem(), [after(bad), after(here), msgspec.structs.replace(after(bad), until="step", step=3)]
    )
    assert [(one.key, one.reason) for one in problems] == [
        ("queue.after.0", "b-1111 is failed: it will not succeed any more"),
        ("queue.after.1", "c-1111 is not on Slurm, which waits for its own jobs alone"),
        ("queue.after.2", "Slurm knows how jobs end, and nothing of steps"),
    ]


def test_a_run_that_has_no_job_yet_cannot_be_followed(tmp_path):
    with pytest.raises(Refused, match="prep-7k3f, which is to be followed, has no job yet"):
        dependency_of([after(folder(tmp_path, "prep-7k3f", job=None))])


def test_another_scheduler_is_named_by_its_own_name(tmp_path):
    there, here = folder(tmp_path, "a-1111", job="7", kind="gridengine"), folder(tmp_path, "c-1111", kind="slurm")
    assert [job for _, job in jobs_to_follow([after(there), after(there, "ended")])] == ["7", "7"]
    assert [one.reason for one in dependency_problems(GridEngineSystem(), [after(there), after(here)])] == [
        "c-1111 is not on Grid Engine, which waits for its own jobs alone"
    ]
