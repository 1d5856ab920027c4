"""Why Slurm ends a job, from what `scontrol show job` says at that moment."""

import pytest

from launcher.places.batch.batch import Fate
from launcher.places.slurm.queries.jobs import fate_of, show_job
from launcher.places.slurm.queue import SlurmSystem

# As Slurm 22.05 writes it, but for the fields that nobody reads.
LINE = (
    "JobId={job} JobName=x {name}UserId=root(0) GroupId=root(0) Priority=1 Nice=0 Account=(null) QOS=(null) "
    "JobState={state} Reason={reason} Dependency=(null) Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 "
    "ExitCode=0:0 SuspendTime=None {preempt}SecsPreSuspend=0 Partition=main NodeList=node0\n"
)


def line(state="COMPLETING", reason="None", restarts=0, preempt="", name=""):
    return LINE.format(job=7, state=state, reason=reason, restarts=restarts, preempt=preempt, name=name)


PREEMPTED = "PreemptEligibleTime=2026-11-21T12:00:00 PreemptTime=2026-11-21T12:00:05 "


@pytest.mark.parametrize(
    ("text", "restarts", "expected"),
    [
        (line("CANCELLED"), 0, Fate.CANCELLED),
        (line("COMPLETING"), 0, Fate.CANCELLED),
        (line("COMPLETING", preempt=PREEMPTED), 0, Fate.PREEMPTED),
        (line("PREEMPTED", preempt=PREEMPTED), 0, Fate.PREEMPTED),
        (line("PREEMPTED", preempt="PreemptEligibleTime=2026-11-21T12:00:00 PreemptTime=None "), 0, Fate.CANCELLED),
        (line("COMPLETING") + line("COMPLETING", preempt=PREEMPTED), 0, Fate.PREEMPTED),  # of two components
        (line("TIMEOUT", "TimeLimit"), 0, Fate.TIMED_OUT),
        (line("COMPLETING", "TimeLimit"), 0, Fate.TIMED_OUT),
        (line("RUNNING"), 0, Fate.RUNS),
        (line("RUNNING", preempt=PREEMPTED), 0, Fate.RUNS),  # within its GraceTime
        (line("SUSPENDED"), 3, Fate.RUNS),
        (line("PENDING", "BeginTime", restarts=1), 0, Fate.QUEUED_AGAIN),
        (line("COMPLETING", restarts=1), 0, Fate.QUEUED_AGAIN),
        (line("COMPLETING", restarts=1), 1, Fate.CANCELLED),  # that one was long ago
        (line("PENDING", "BeginTime", restarts=2), 2, Fate.QUEUED_AGAIN),
        (line("EXPEDITING", restarts=1), 1, Fate.QUEUED_AGAIN),
        ("", 0, Fate.UNKNOWN),
        ("slurm_load_jobs error: Invalid job id specified\n", 0, Fate.UNKNOWN),
        ("JobState=CANCELLED", 0, Fate.UNKNOWN),
        ("Restarts=many JobState=CANCELLED", 0, Fate.UNKNOWN),
    ],
)
def test_what_becomes_of_the_job(text, restarts, expected):
    assert fate_of(text, restarts) is expected


def test_the_earlier_starts_of_this_job_are_told_by_its_environment(monkeypatch, client):
    client(f"cat <<'END'\n{line('COMPLETING', restarts=2)}END\n")
    for restarts, expected in (("2", Fate.CANCELLED), ("1", Fate.QUEUED_AGAIN), ("", Fate.QUEUED_AGAIN)):
        monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
        assert SlurmSystem().fate("7") is expected


def test_it_asks_for_this_job_alone():
    assert show_job("7_3") == ["scontrol", "--oneliner", "show", "job", "7_3"]


@pytest.fixture
def client(tmp_path, monkeypatch):
    """A scontrol that does this."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def write(body):
        program = tmp_path / "scontrol"
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)

    return write
