"""A trial on a queue that starts its jobs here, each node as a process: whatever queue it is, this is what it needs."""

import errno
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.health.doctor_request import DoctorRequest
from launcher.health.findings import Level
from launcher.places.batch.trial.carry_out import try_nodes
from launcher.places.batch.trial.checks import Expected, QueueNames, TrialJob, refused_finding, trial_findings
from launcher.places.batch.trial.trial_jobs import NoTrial

QUEUE: Any = SimpleNamespace(called="Here", kind="here", sees="hjob", ends="hdel")
WORDS = QueueNames(
    queue=QUEUE,
    server="server",
    silent_hint="ask somebody",
    submit="hsub",
    shows_ended="hjob -e",
    shows_nodes="hnodes",
    others="--partition",
    starter="hrun",
    starts="node",
    complaint=re.compile(r"^hrun: (.+)$", re.MULTILINE),
)
EACH = 'for number in 0 1; do (NODE=node$number /bin/sh -c {} 2>&1 | sed "s/^/$number: /") & done; wait'


@dataclass
class Here:
    """A queue that starts jobs at once, or never."""

    env: dict = field(default_factory=dict)
    refuses: str = ""
    is_full: bool = False
    job: subprocess.Popen | None = None
    cancelled: int = 0
    words: QueueNames = WORDS

    def submit(self, script):
        if self.refuses:
            raise NoTrial(refused_finding(self.refuses, WORDS))
        if not self.is_full:
            scripts = str(Path(__file__).parent / "scripts")
            env = {**os.environ, "PYTHONPATH": scripts, **self.env}
            self.job = subprocess.Popen(
                ["/bin/sh"], stdin=subprocess.PIPE, env=env, text=True, start_new_session=True, cwd="/"
            )
            self.job.stdin.write(script)
            self.job.stdin.close()
        return "7"

    def on_each_node(self, program):
        assert "-m launcher.programs trial " in program
        program = program.replace("launcher.programs trial", "trial_node_here")
        return EACH.format(shlex.quote(f"export NODE; {program}"))

    def look(self, _job):
        if self.job is None:
            return TrialJob(reason="all are busy", has_ended=bool(self.cancelled), waits=not self.cancelled)
        code = self.job.poll()
        word = "RUNNING" if code is None else "DONE"
        return TrialJob(waits=False, has_ended=code is not None, word=word, nodes="node[0-1]", exit_code=code or 0)

    def hosts(self, nodes):
        assert nodes == "node[0-1]"
        return ("node0", "node1")

    def cancel(self, _job):
        self.cancelled += 1
        if self.job is not None:
            os.killpg(self.job.pid, signal.SIGTERM)


@pytest.fixture
def wish(tmp_path):
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text('#!/bin/sh\necho \'["2.10.0", "", 0]\'\n')
    python.chmod(0o755)
    return DoctorRequest(tmp_path / "runs" / "deep", str(python), trial=True, within_s=0.5)


def tried(queue, wish, told=None):
    found = try_nodes(queue, wish, 1, (told if told is not None else []).append)
    return found, list(trial_findings(found, Expected(wish.python, str(wish.runs_root)), WORDS))


def problems(findings):
    return [(one.about, one.text) for one in findings if one.level is Level.PROBLEM]


def test_nodes_look_around_and_leave_by_themselves(wish, tmp_path):
    queue = Here()
    looked, found = tried(queue, wish)
    assert problems(found) == [] and looked.over and not queue.cancelled
    said = {one.about: one.text for one in found}
    assert said["trial"].startswith("job 7 on node0 and node1, its first word ") and said["trial"].endswith(
        "after hsub"
    )
    assert said["network"].startswith(
        "node0 and node1 reach each other by the addresses that Here has (127.0.0.10, 127.0.0.11) within "
    )
    assert said["torch"] == f"2.10.0 (CPU only) in {wish.python} on node0 and node1"
    assert looked.seen_on == ["node0", "node1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin"]


def test_a_node_without_the_launcher_keeps_nobody_waiting(wish):
    _, found = tried(Here(env={"PYTHONPATH": "/nowhere"}), wish)
    assert {about for about, _ in problems(found)} == {"python"}
    assert all("No module named trial_node_here" in text for _, text in problems(found))


def test_a_queue_that_refuses_and_one_that_is_full(wish, tmp_path):
    with pytest.raises(NoTrial) as refused:
        tried(Here(refuses="no account"), wish)
    assert refused.value.finding.text == "Here refuses a job: no account"
    queue = Here(is_full=True)
    with pytest.raises(NoTrial) as full:
        tried(queue, wish)
    assert "no node was free within 0.5 s; job 7 was cancelled: all are busy" in full.value.finding.text
    assert queue.cancelled == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin"]


def test_a_folder_that_nodes_do_not_have(wish):
    queue = Here()
    begin, queue.submit = queue.submit, lambda script: begin(script.replace("/runs/", "/other/"))
    _, found = tried(queue, wish)
    assert problems(found) == [("runs root", f"{wish.runs_root} is not the same folder on node0")]
    assert sys.executable not in found[0].text


def test_the_job_is_ended_even_where_the_disk_is_in_trouble(wish, monkeypatch):
    unlink = Path.unlink

    def fail(path, **more):
        if path.name == "at-work":
            raise OSError(errno.EIO, "Input/output error")
        unlink(path, **more)

    monkeypatch.setattr(Path, "unlink", fail)
    queue = Here(is_full=True)
    with pytest.raises(NoTrial):
        tried(queue, wish)
    assert queue.cancelled == 1
