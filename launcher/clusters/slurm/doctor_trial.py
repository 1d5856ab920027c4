"""The job of `launch doctor slurm --try`: submits it, talks with its nodes through a folder, and leaves nothing behind.

sbatch ─ script on the first node ─ srun ─ doctor_probe on each node
                                             │ greeting ─► here ─ question ─► time ─► … ─► report
"""

import contextlib
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.clusters.batch.queue import Phase
from launcher.clusters.slurm.doctor_job import Job, Shape, Wish, minutes, options, read_job, script
from launcher.clusters.slurm.doctor_nodes import no_nodes_finding, refused_finding
from launcher.clusters.slurm.doctor_records import (
    Asked,
    Clock,
    Expected,
    Folder,
    Greeting,
    Report,
    Trial,
    launcher_version,
    read_stopped,
)
from launcher.clusters.slurm.fate import show_job
from launcher.clusters.slurm.hosts import hosts_of
from launcher.clusters.slurm.queries.jobs import cancel, read_submitted
from launcher.clusters.slurm.reach import ask
from launcher.clusters.slurm.reasons import plain
from launcher.doctor.findings import Finding
from launcher.errors import LaunchError, Unreachable
from launcher.rundir import drafts
from launcher.rundir.durable import make_dir, read_record, write_record
from launcher.rundir.file_systems import nearest_folder

_SPARE_S = 10.0  # of the job's time, for what is around the program
_SUBMIT_S = 30.0
_LOOK_S, _ASK_S = 0.05, 1.0
_WORD_S = 45.0  # from the job's start to a word of it; a node that has just died seems to run it
_END_S = 45.0  # KillWait, and then some
_LATE_S = 40.0  # after a good end the reports are there, even if a file system that caches shows them late


class NoTrial(Exception):
    """There is none; the finding says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text)
        self.finding = finding


def try_nodes(wish: Wish, shape: Shape, tell: Callable[[str], None]) -> Trial:
    """Have a job look at nodes; `tell`: what goes on meanwhile. Raises NoTrial, and Unreachable."""
    nodes = min(wish.nodes or 2, max(1, shape.nodes))
    limit_s = minutes(shape) * 60.0 - _SPARE_S
    with _folder(wish.runs_root) as folder:
        write_record(folder.asked, Asked(wish.interface, wish.rank_python, limit_s))
        return _Trying(folder, _submit(folder, wish, shape, nodes), limit_s, tell).carry_out(wish.within_s)


@contextlib.contextmanager
def _folder(runs_root: Path) -> Iterator[Folder]:
    """One where runs will be; nothing of it is left, nor of what was made on the way to it."""
    there = nearest_folder(runs_root)
    made = [folder for folder in (runs_root, *runs_root.parents) if folder.is_relative_to(there) and folder != there]
    folder = Folder(drafts.new_draft(runs_root))
    try:
        make_dir(folder.path)
        yield folder
    finally:
        drafts.remove(folder.path)
        with contextlib.suppress(OSError):  # a run has begun there meanwhile
            for empty in made:
                empty.rmdir()


def expected(wish: Wish) -> Expected:
    version = platform.python_version()
    return Expected(launcher_version(), version, sys.executable, wish.rank_python, str(wish.runs_root))


def _submit(folder: Folder, wish: Wish, shape: Shape, nodes: int) -> str:
    argv = ["sbatch", "--parsable", *options(wish, shape, nodes)]
    answer = ask(argv, limit_s=_SUBMIT_S, stdin=script(folder, nodes, sys.executable))
    job = read_submitted(answer.out)
    if answer.code != 0 or job is None:
        lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in answer.err.strip().splitlines()]
        raise NoTrial(refused_finding("; ".join(dict.fromkeys(lines)) or f"sbatch leaves with {answer.code}"))
    return job


class _Trying:
    """One trial, from the job's submission to its end."""

    def __init__(self, folder: Folder, job: str, limit_s: float, tell: Callable[[str], None]) -> None:
        self._folder, self._id, self._limit_s, self._tell = folder, job, limit_s, tell
        self._began = time.monotonic()
        self._job = Job()
        self._first_word_s: float | None = None
        self._hosts: tuple[str, ...] = ()
        self._greetings: dict[str, Greeting] = {}
        self._asked_at: dict[str, float] = {}
        self._clocks: dict[str, Clock] = {}
        self._reports: dict[str, Report] = {}

    def carry_out(self, within_s: float) -> Trial:
        try:
            self._wait_for_nodes(within_s)
            self._listen()
            trial = self._trial()
        finally:
            over = self._end()
        return replace(trial, over=over)

    def _wait_for_nodes(self, within_s: float) -> None:
        """Raises NoTrial where there are none in time."""
        deadline = self._began + within_s
        told = ""
        self._look()
        while self._job.phase in (Phase.QUEUED, Phase.UNKNOWN) and not self._job.restarts:
            now, why = time.monotonic(), plain(self._job.reason)
            if now >= deadline:
                raise NoTrial(no_nodes_finding(self._id, within_s, why, self._job.starts_at))
            if why != told and now > self._began + _ASK_S:
                told = why
                self._tell(f"job {self._id} is pending: {why}")
            time.sleep(min(_ASK_S / 2, max(_LOOK_S, deadline - now)))
            self._look()

    def _look(self) -> None:
        """What Slurm says of the job."""
        answer = ask(show_job(self._id))
        self._job = read_job(answer.out) if answer.code == 0 else replace(self._job, phase=Phase.ENDED)

    def _listen(self) -> None:
        """Until every node has reported or is known not to, or the job has ended or used up its time."""
        self._hosts = tuple(hosts_of(self._job.nodes)) if self._job.nodes else ()
        began = time.monotonic()
        deadline, look_at = began + self._limit_s, began + _ASK_S
        while True:
            ended = self._job.phase is Phase.ENDED  # what it wrote before is read once more
            self._read_folder()
            done = self._reports.keys() | read_stopped(self._log()).keys()
            now = time.monotonic()
            if (self._hosts and done >= set(self._hosts)) or now >= deadline:
                return
            if self._job.restarts or (not self._greetings and now >= began + _WORD_S):
                return
            if ended:
                deadline = min(deadline, now + (_LATE_S if self._job.exit_code == 0 and self._hosts else 0.0))
            elif now >= look_at:
                self._look()
                look_at = now + _ASK_S
            time.sleep(_LOOK_S)

    def _read_folder(self) -> None:
        names = set(os.listdir(self._folder.path))
        for host in self._hosts:
            greeting, its_time = self._folder.greeting(host), self._folder.time(host)
            if host not in self._greetings and greeting.name in names:
                self._greetings[host] = _read(greeting, Greeting)
                self._first_word_s = self._first_word_s or time.monotonic() - self._began
                self._asked_at[host] = time.time()
                write_record(self._folder.question(host), True)
            if host not in self._clocks and its_time.name in names:
                now, asked_at = time.time(), self._asked_at[host]
                self._clocks[host] = Clock(_read(its_time, float) - (now + asked_at) / 2, now - asked_at)
            if host not in self._reports and self._folder.report(host).name in names:
                self._reports[host] = _read(self._folder.report(host), Report)

    def _log(self) -> str:
        return self._folder.log.read_text(errors="replace") if self._folder.log.exists() else ""

    def _trial(self) -> Trial:
        return Trial(
            self._id,
            self._hosts,
            self._first_word_s,
            self._job.word,
            self._job.exit_code,
            self._job.requeue,
            self._greetings,
            self._clocks,
            self._reports,
            self._log(),
            again=self._job.restarts > 0,
        )

    def _end(self) -> bool:
        """Whether the job is over: it might still write into the folder, which is about to be removed."""
        try:
            return self._see_it_end()
        except Unreachable as error:
            hint = f"hint: job {self._id} may still wait or run: scancel {self._id}"
            raise Unreachable(error.lines[0], hint) from error

    def _see_it_end(self) -> bool:
        now = time.monotonic()
        # One that has said nothing, on a node that does not answer, may take as long as it likes.
        deadline = now + (_END_S if self._greetings else _ASK_S)
        cancel_at = now + _ASK_S if self._reports else now  # with reports it is about to end by itself
        self._look()
        while self._job.phase is not Phase.ENDED:
            now = time.monotonic()
            if now >= cancel_at:
                ask(cancel(self._id))
                cancel_at = math.inf
            elif now >= deadline:
                return False
            time.sleep(_LOOK_S)
            self._look()
        return True


def _read(path: Path, kind: Any) -> Any:
    record = read_record(path, kind)
    if record is None:
        raise LaunchError(f"{path} was there and is gone")
    return record
