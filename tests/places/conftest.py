"""Slurm's clients as small programs, and a run whose first attempt is a job, as its batch process finds it."""

import os
import shlex
from dataclasses import dataclass

import msgspec
import pytest
from run_folder import plan_of

from launcher.plan.model import Plan
from launcher.run.attempts import new_attempt
from launcher.run.durable import create_record, write_record
from launcher.run.fence import raise_fence
from launcher.run.identity import this_process
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import Handle
from launcher.supervisor.attempt_end import first_state


@dataclass
class Commit:
    """A run on node0 and node1, whose first attempt has been started as job 7."""

    run: RunDir
    attempt: AttemptDir
    plan: Plan
    submit_token: str
    job: str = "7"


@pytest.fixture
def begun(tmp_path):
    run = RunDir(tmp_path / "train-7k3f")
    run.path.mkdir()
    submitted = msgspec.structs.replace(plan_of(run.path, nodes=2), cluster="slurm", cluster_kind="slurm")
    write_record(run.plan, submitted)
    attempt, intent = new_attempt(run, "slurm", "submit", None, kind="slurm")
    raise_fence(run, 1)
    nodes = tuple(msgspec.structs.replace(node, host=f"node{node.index}") for node in submitted.nodes)
    plan = msgspec.structs.replace(submitted, nodes=nodes)
    create_record(attempt.started, this_process())
    create_record(attempt.handle, Handle("slurm", this_process(), Commit.job, intent.submit_token))
    write_record(attempt.plan, plan)
    write_record(run.state, first_state(plan, 1))
    return Commit(run, attempt, plan, intent.submit_token)


@pytest.fixture
def slurm_programs(tmp_path, monkeypatch):
    """`slurm_programs(squeue="echo")`: programs that do this, and note their words; `.asked()` gives all of these."""
    folder, log = tmp_path / "bin", tmp_path / "asked"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)

    def programs(**bodies):
        for name, body in bodies.items():
            path = folder / name
            path.write_text(f'#!/bin/sh\necho "{name} $*" >>{shlex.quote(str(log))}\n{body}\n')
            path.chmod(0o755)

    programs.asked = lambda: log.read_text().splitlines() if log.exists() else []
    return programs


@pytest.fixture
def program(tmp_path, monkeypatch):
    """`program("qsub", "exit 1")`: one that does this."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def write(name, body):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)

    return write
