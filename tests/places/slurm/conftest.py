"""A Slurm that is a table of rows, behind real little programs; and runs as their submitter leaves them."""

import os

import msgspec
import pytest
from run_folder import dead_process, plan_of

from launcher.run.attempts import new_attempt
from launcher.run.durable import create_record, make_dir, write_record
from launcher.run.fence import raise_fence
from launcher.run.layout import RunDir
from launcher.run.records import Handle
from launcher.supervisor.attempt_end import first_state

FIELD, ROW = "\x1f", "\x1e"
CONFIG = "Configuration data as of 2026-11-22T02:00:00\nClusterName             = {}\n"


def _rows_where(option, job):
    """A filter of rows by their id, for sh."""
    return rf"""tr '\036\037' '\n|' | grep {option} "^{job}|" | tr '\n|' '\036\037'"""


class Clients:
    """squeue lists `rows`, scancel takes its job off them and is noted in `ended`."""

    def __init__(self, folder):
        self._folder = folder
        (folder / "bin").mkdir()
        self._rows = folder / "rows"
        self._ended = folder / "ended"
        self._rows.touch()
        self._ended.touch()
        asked = 'for word; do case "$word" in --jobs=*) id="${word#*=}" ;; esac; done; '
        self.program("squeue", f"{asked}cat '{self._rows}' | {_rows_where('-e', '${id:-[^|]*}')}")
        self.program("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
        note = f"for id; do :; done; echo \"$id\" >> '{self._ended}'"
        left = f"cat '{self._rows}' | {_rows_where('-v', '$id')} > '{folder}/left'; mv '{folder}/left' '{self._rows}'"
        self.program("scancel", f"{note}; {left}")
        self.cluster("here")

    @property
    def path(self):
        return self._folder / "bin"

    @property
    def ended(self):
        """Return the jobs that scancel was called with."""
        return self._ended.read_text().split()

    def program(self, name, body):
        path = self.path / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def cluster(self, name):
        """The name that the controller says it has."""
        (self._folder / "config").write_text(CONFIG.format(name))
        self.program("scontrol", f"cat '{self._folder / 'config'}'")

    def silent(self, *names):
        for name in names:
            self.program(name, f"echo '{name}: error: Connection refused' >&2; exit 1")

    def rows(self, *jobs):
        """Return the queue's rows: (id, state, comment) of each job."""
        lines = [
            [job, job.partition("_")[0], state, "0", "N/A", "N/A", "n0", "n0", "None", comment]
            for job, state, comment in jobs
        ]
        self._rows.write_text("".join(FIELD.join(line) + f"{ROW}\n" for line in lines))


@pytest.fixture
def clients(tmp_path, monkeypatch):
    made = Clients(tmp_path)
    monkeypatch.setenv("PATH", f"{made.path}{os.pathsep}{os.environ['PATH']}")
    return made


@pytest.fixture
def submitted(tmp_path):
    """A run that was handed over as this job; with None its submitter was killed before it could note that."""

    def make(name, job, submit_token, *, batch="", **handle):
        run = RunDir(tmp_path / name)
        make_dir(run.path)
        plan = msgspec.structs.replace(plan_of(run.path), cluster_kind="slurm")
        attempt, intent = new_attempt(
            run, "slurm", "submit", None, kind="slurm", submit_token=submit_token, batch=str(batch)
        )
        write_record(attempt.intent, msgspec.structs.replace(intent, created_by=dead_process()))
        raise_fence(run, 1)
        write_record(run.plan, plan)
        write_record(run.state, first_state(plan, 1))
        if job is not None:
            create_record(attempt.handle, Handle("slurm", job_id=job, submit_token=submit_token, **handle))
        return run, attempt, plan

    return make
