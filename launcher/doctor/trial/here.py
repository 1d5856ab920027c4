"""A trial from here: submits the job, talks with its nodes through a folder, and leaves nothing behind."""

import contextlib
import math
import platform
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from launcher.doctor.findings import Finding
from launcher.doctor.trial import records
from launcher.doctor.trial.checks import QueueWords, no_nodes_finding, trial_findings
from launcher.doctor.trial.node import talk_s
from launcher.doctor.trial.records import Expected, Stage, Trial, TrialFolder, TrialTask, launcher_version, read_stopped
from launcher.doctor.wish import DoctorWish
from launcher.errors import Unreachable
from launcher.rundir import drafts
from launcher.rundir.durable import make_dir

_LOOK_S, _ASK_S = 0.05, 1.0
_SPARE_S = 10.0  # of the job's time, for what is around the program
_MINUTES = 3  # that a job asks for, at most
_WORD_S = 45.0  # from the job's start to a word of it; a node that has just died seems to run it
_END_S = 45.0  # Slurm's KillWait, and then some
_LATE_S = 40.0  # after a good end the reports are there, even if a file system that caches shows them late


class NoTrial(Exception):
    """There is none; the finding says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text)
        self.finding = finding


@dataclass(frozen=True, slots=True)
class TrialJob:
    """What a queue says of the job; as it is before anything is known."""

    waits: bool = True
    has_ended: bool = False
    word: str = ""  # the queue's own for its state; RUNNING where it has its nodes
    reason: str = ""  # why it waits, in plain words
    nodes: str = ""  # as the queue writes them
    starts_at: float | None = None
    exit_code: int = 0
    requeue: bool | None = None
    restarts: int = 0


class TrialQueue(Protocol):
    """A batch queue, as far as a trial needs it. Each raises Unreachable where nobody answers."""

    @property
    def words(self) -> QueueWords: ...

    def submit(self, script: str, nodes: int) -> str:
        """The job's id. Raises NoTrial where it is refused."""

    def on_each_node(self, command: list[str], nodes: int) -> list[str]:
        """The command line that starts this one on every node, each line that it writes after its number and `: `."""

    def look(self, job: str) -> TrialJob | None:
        """None where it is known no more."""

    def hosts(self, nodes: str) -> tuple[str, ...]: ...

    def cancel(self, job: str) -> None: ...


def minutes(longest_s: float) -> int:
    """So much time the job asks for, where none may have more than that."""
    return int(max(1, min(_MINUTES, longest_s // 60)))


def try_nodes(
    queue: TrialQueue, wish: DoctorWish, nodes: int, limit_minutes: int, tell: Callable[[str], None]
) -> Trial:
    """Have a job look at nodes; `tell`: what goes on meanwhile. Raises NoTrial, and Unreachable."""
    limit_s = limit_minutes * 60.0 - _SPARE_S
    with _folder(wish.runs_root) as folder:
        folder.put(TrialTask(wish.chosen.get("interface"), wish.python, limit_s, secrets.token_hex(32)))
        job = queue.submit(batch_script(queue, folder, nodes, sys.executable), nodes)
        return _Trying(folder, queue, job, limit_s, tell).carry_out(wish.within_s)


def findings_of(trial: Trial, queue: TrialQueue, wish: DoctorWish) -> Iterator[Finding]:
    version = platform.python_version()
    expected = Expected(launcher_version(), version, sys.executable, wish.python, str(wish.runs_root))
    yield from trial_findings(trial, expected, queue.words)


def batch_script(queue: TrialQueue, folder: TrialFolder, nodes: int, python: str) -> str:
    """A shell looks first: where the folder or Python is missing, no program of ours can tell."""
    quoted, node = shlex.quote(str(folder.path)), queue.words.node_name
    look = f"""\
stopped() {{ echo "stopped {node} $1"; exit "$1"; }}
[ -d "$1" ] || stopped {Stage.NOT_THERE:d}
(: > "$1/seen-{node}") 2> /dev/null || stopped {Stage.NOT_WRITABLE:d}
[ -x "$2" ] || stopped {Stage.NO_PYTHON:d}
"$2" -P -m {queue.words.module} "$1" || stopped $?
"""
    run = queue.on_each_node(["/bin/sh", "-c", look, "look", str(folder.path), python], nodes)
    return f"""\
#!/bin/sh
[ -d {quoted} ] || exit {Stage.NOT_THERE:d}
(: > {quoted}/seen) 2> /dev/null || exit {Stage.NOT_WRITABLE:d}
exec {shlex.join(run)} > {shlex.quote(str(folder.log))} 2>&1
"""


@contextlib.contextmanager
def _folder(runs_root: Path) -> Iterator[TrialFolder]:
    """One where runs will be; nothing of it is left, nor of what was made on the way to it."""
    made = [folder for folder in (runs_root, *runs_root.parents) if not folder.exists()]
    folder = TrialFolder(drafts.new_draft(runs_root))
    try:
        make_dir(folder.path)
        yield folder
    finally:
        drafts.remove(folder.path)
        with contextlib.suppress(OSError):  # a run has begun there meanwhile
            for empty in made:
                empty.rmdir()


class _Trying:
    """One trial, from the job's submission to its end."""

    def __init__(
        self, folder: TrialFolder, queue: TrialQueue, job: str, limit_s: float, tell: Callable[[str], None]
    ) -> None:
        self._folder, self._queue, self._limit_s, self._tell = folder, queue, limit_s, tell
        self._began = time.monotonic()
        self._job = TrialJob()
        self._asked_at: dict[str, float] = {}
        self._trial = Trial(job)

    def carry_out(self, within_s: float) -> Trial:
        try:
            self._wait_for_nodes(within_s)
            self._listen()
        finally:
            self._trial.over = self._end()
        return self._trial

    def _wait_for_nodes(self, within_s: float) -> None:
        """Raises NoTrial where there are none in time."""
        job, deadline, told = self._trial.job, self._began + within_s, ""
        self._look()
        while self._job.waits and not self._job.restarts:
            now, why = time.monotonic(), self._job.reason
            if now >= deadline:
                raise NoTrial(no_nodes_finding(job, within_s, why, self._job.starts_at, self._queue.words))
            if why != told and now > self._began + _ASK_S:
                told = why
                self._tell(f"job {job} is pending: {why}")
            time.sleep(min(_ASK_S / 2, max(_LOOK_S, deadline - now)))
            self._look()

    def _look(self) -> None:
        """What the queue says of the job."""
        found = self._queue.look(self._trial.job)
        self._job = found or replace(self._job, waits=False, has_ended=True)

    def _listen(self) -> None:
        """Until every node has reported or is known not to, or the job has ended or used up its time."""
        trial = self._trial
        trial.hosts = self._queue.hosts(self._job.nodes) if self._job.nodes else ()
        began = time.monotonic()
        deadline, look_at = began + self._limit_s, began + _ASK_S
        while True:
            ended = self._job.has_ended  # what it wrote before is read once more
            done = self._read_folder(began) | trial.reports.keys()
            now = time.monotonic()
            if (trial.hosts and done >= set(trial.hosts)) or now >= deadline:
                break
            if self._job.restarts or (not trial.greetings and now >= began + _WORD_S):
                break
            if ended:
                deadline = min(deadline, now + (_LATE_S if self._job.exit_code == 0 and trial.hosts else 0.0))
            elif now >= look_at:
                self._look()
                look_at = now + _ASK_S
            time.sleep(_LOOK_S)
        trial.word, trial.exit_code, trial.requeue = self._job.word, self._job.exit_code, self._job.requeue
        trial.again = self._job.restarts > 0

    def _read_folder(self, began: float) -> set[str]:
        """What nodes have written; gives those that came no further."""
        trial, folder = self._trial, self._folder
        for host in trial.hosts:
            if host not in trial.greetings and (greeting := folder.get(records.NodeGreeting, host)):
                trial.greetings[host] = greeting
                trial.started_after_s = trial.started_after_s or time.monotonic() - self._began
            if host not in trial.clocks and (answer := folder.get(records.NodeTime, host)):
                now, asked_at = time.time(), self._asked_at[host]
                trial.clocks[host] = records.NodeClock(answer.now - (now + asked_at) / 2, now - asked_at)
            if host not in trial.reports and (report := folder.get(records.NodeReport, host)):
                trial.reports[host] = report
        trial.log = folder.said()
        stopped = set(read_stopped(trial.log))
        late = time.monotonic() >= began + talk_s(self._limit_s)
        if late or trial.greetings.keys() | stopped >= set(trial.hosts):
            self._ask()
        return stopped

    def _ask(self) -> None:
        """All nodes that are there, as soon as it is known who is."""
        greetings = self._trial.greetings
        for host in greetings.keys() - self._asked_at.keys():
            self._asked_at[host] = time.time()
            self._folder.put(
                records.TrialQuestion(tuple(one for other, one in greetings.items() if other != host)), host
            )

    def _end(self) -> bool:
        """Whether the job is over: it might still write into the folder, which is about to be removed."""
        try:
            with contextlib.suppress(OSError):  # a disk in trouble: the job is ended all the same
                self._folder.drop(TrialTask)  # nodes leave then
            return self._see_it_end()
        except Unreachable as error:
            job = self._trial.job
            hint = f"hint: job {job} may still wait or run: {self._queue.words.cancel} {job}"
            raise Unreachable(error.lines[0], hint) from error

    def _see_it_end(self) -> bool:
        now = time.monotonic()
        # One that has said nothing, on a node that does not answer, may take as long as it likes.
        deadline = now + (_END_S if self._trial.greetings else _ASK_S)
        cancel_at = now + _ASK_S if self._trial.reports else now  # with reports it is about to end by itself
        self._look()
        while not self._job.has_ended:
            now = time.monotonic()
            if now >= cancel_at:
                self._queue.cancel(self._trial.job)
                cancel_at = math.inf
            elif now >= deadline:
                return False
            time.sleep(_LOOK_S)
            self._look()
        return True
