"""A job that a batch queue is given so that its nodes look around: whatever queue it is. Leaves nothing behind.

submit ─ script on the first node ─ on each node a shell looks, then `answer_questions`
                                       question in a file ─► answer in a file ─► what is known: `trial_checks`

They meet in a folder where runs will be: that they can is part of what is tried.
"""

import contextlib
import math
import os
import platform
import shlex
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from launcher.agent.interfaces import address_of
from launcher.agent.machine import this_machine
from launcher.doctor import machine_there
from launcher.doctor.findings import Finding
from launcher.doctor.network import Member, measured
from launcher.doctor.session import read_answer
from launcher.doctor.trial_checks import (
    Expected,
    Hello,
    NodeClock,
    NodeReport,
    QueueWords,
    SeenNode,
    Stage,
    Trial,
    TrialJob,
    launcher_version,
    no_nodes_finding,
    read_stopped,
    trial_findings,
)
from launcher.doctor.wish import DoctorWish
from launcher.errors import LaunchError, Unreachable
from launcher.hostlink.parallel import for_all
from launcher.rundir import drafts
from launcher.rundir.durable import make_dir, write_record

T = TypeVar("T")
_LOOK_S, _ASK_S, _STEP_S = 0.05, 1.0, 0.02
_SPARE_S = 10.0  # of the job's time, for what is around the program
_MINUTES = 3  # that a job asks for, at most
_WORD_S = 40.0  # a node that has just died seems to run the job; file systems that cache may show a file that late
_FOR_TALKING = 0.4  # of the time that there is, at most, for a word, and as much again for another
_END_S = 45.0  # Slurm's KillWait, and then some
_LATE_S = 40.0  # after a good end answers are there, even if a file system that caches shows them late
_MOST_BYTES = 1_000_000
_ON_NODE = "launcher.clusters.trial_jobs"  # floors above: it knows how each kind's nodes are reached
_AT_WORK, _LOG = "at-work", "steps.log"


class NoTrial(Exception):
    """There is none; the finding says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text)
        self.finding = finding


class TrialQueue(Protocol):
    """A batch queue, as far as a trial needs it. Each raises Unreachable where nobody answers."""

    @property
    def words(self) -> QueueWords: ...

    def submit(self, script: str) -> str:
        """The job's id. Raises NoTrial where it is refused."""

    def on_each_node(self, program: str) -> str:
        """The shell command that runs this program of a shell on every node, with the node's name in $NODE, each line
        that it writes after its number and `: `."""

    def look(self, job: str) -> TrialJob | None:
        """None where it is known no more."""

    def hosts(self, nodes: str) -> tuple[str, ...]: ...

    def cancel(self, job: str) -> None: ...


def minutes(longest_s: float) -> int:
    """So much time the job asks for, where none may have more than that."""
    return int(max(1, min(_MINUTES, longest_s // 60)))


def tried(
    queue: TrialQueue, wish: DoctorWish, limit_minutes: int, tell: Callable[[str], None]
) -> Generator[Finding, None, list[str] | None]:
    """What nodes tell, and in the end on which all of our own was found; None where there was no trial."""
    try:
        trial = try_nodes(queue, wish, limit_minutes, tell)
    except NoTrial as reason:
        yield reason.finding
        return None
    yield from trial_findings(trial, Expected(wish.python, str(wish.runs_root)), queue.words)
    return trial.seen_on


def try_nodes(queue: TrialQueue, wish: DoctorWish, limit_minutes: int, tell: Callable[[str], None]) -> Trial:
    """Have a job look at nodes; `tell`: what goes on meanwhile. Raises NoTrial, and Unreachable."""
    limit_s = limit_minutes * 60.0 - _SPARE_S
    with _folder(wish.runs_root) as folder:
        (folder / _AT_WORK).write_text(wish.chosen.get("interface", ""))
        job = _Job(queue, queue.submit(batch_script(queue, folder, sys.executable, limit_s)))
        trial = Trial(job.id)
        try:
            job.wait_for_nodes(wish.within_s, tell)
            _talk(trial, job, folder, wish, time.monotonic() + limit_s)
            trial.state, trial.log = job.state, said_by_nodes(folder)
        finally:
            with contextlib.suppress(OSError):  # a disk in trouble: the job is ended all the same
                (folder / _AT_WORK).unlink()  # nodes leave then
            trial.over = job.end(trial)
    return trial


def batch_script(queue: TrialQueue, folder: Path, python: str, limit_s: float) -> str:
    """A shell looks first: where the folder or Python is missing, no program of ours can tell."""
    where, interpreter, log = (shlex.quote(str(path)) for path in (folder, python, folder / _LOG))
    program = f"""\
stopped() {{ echo "stopped $NODE $1"; exit "$1"; }}
[ -d {where} ] || stopped {Stage.NOT_THERE:d}
(: > {where}/"seen-$NODE") 2> /dev/null || stopped {Stage.NOT_WRITABLE:d}
[ -x {interpreter} ] || stopped {Stage.NO_PYTHON:d}
{interpreter} -P -m {_ON_NODE} {queue.words.kind} {where} {limit_s:g} "$NODE" < /dev/null || stopped $?
"""
    return f"""\
#!/bin/sh
[ -d {where} ] || exit {Stage.NOT_THERE:d}
(: > {where}/seen) 2> /dev/null || exit {Stage.NOT_WRITABLE:d}
exec > {log} 2>&1
{queue.on_each_node(program)}
"""


@contextlib.contextmanager
def _folder(runs_root: Path) -> Iterator[Path]:
    """One where runs will be; nothing of it is left, nor of what was made on the way to it."""
    made = [folder for folder in (runs_root, *runs_root.parents) if not folder.exists()]
    folder = drafts.new_draft(runs_root)
    try:
        make_dir(folder)
        yield folder
    finally:
        drafts.remove(folder)
        with contextlib.suppress(OSError):  # a run has begun there meanwhile
            for empty in made:
                empty.rmdir()


def _talk(trial: Trial, job: "_Job", folder: Path, wish: DoctorWish, until: float) -> None:
    """With every node, until it has told all or is known not to, or the job has ended or used up its time."""
    trial.hosts = job.queue.hosts(job.state.nodes) if job.state.nodes else ()
    patience_s = min(_WORD_S, _FOR_TALKING * (until - time.monotonic()))
    boxes = {host: _Mailbox(host, folder, job) for host in trial.hosts}

    def meet(host: str, box: _Mailbox) -> None:
        first = box.ask(None, Hello, patience_s)
        trial.first_word_s = trial.first_word_s or time.monotonic() - job.began
        node = trial.seen[host] = SeenNode(first)
        asked_at = time.time()
        again, now = box.ask({"do": "hello"}, Hello, patience_s), time.time()
        node.clock = NodeClock(again.now - (now + asked_at) / 2, now - asked_at)

    def look(host: str, box: _Mailbox) -> None:
        limit_s = max(1.0, until - time.monotonic())
        asked = {"do": "report", "python": wish.python, "limit_s": 0.8 * limit_s}
        trial.seen[host].report = box.ask(asked, NodeReport, limit_s)

    for_all(boxes, meet)
    there = {host: box for host, box in boxes.items() if host in trial.seen and trial.seen[host].clock}
    for name in dict.fromkeys(("", wish.chosen.get("interface", ""))):
        addresses = {host: trial.seen[host].hello.addresses.get(name, "") for host in there}
        members = [Member(there[host], address) for host, address in addresses.items() if address]
        trial.ways[name] = measured(members, flood=False)
        trial.closed |= {one.name: one.closed for one in members if one.closed}
    for_all(there, look)


class _Job:
    """The trial's job, as the queue has it."""

    def __init__(self, queue: TrialQueue, job: str) -> None:
        self.id, self.began, self.state = job, time.monotonic(), TrialJob()
        self.queue, self._looked_at, self._turn = queue, -math.inf, threading.Lock()

    def look(self, *, every_s: float = 0.0) -> TrialJob:
        with self._turn:
            if time.monotonic() >= self._looked_at + every_s:
                self.state = self.queue.look(self.id) or replace(self.state, waits=False, has_ended=True)
                self._looked_at = time.monotonic()
            return self.state

    def wait_for_nodes(self, within_s: float, tell: Callable[[str], None]) -> None:
        """Raises NoTrial where there are none in time."""
        deadline, told = self.began + within_s, ""
        while (state := self.look()).waits and not state.restarts:
            now = time.monotonic()
            if now >= deadline:
                raise NoTrial(no_nodes_finding(self.id, within_s, state.reason, state.starts_at, self.queue.words))
            if state.reason != told and now > self.began + _ASK_S:
                told = state.reason
                tell(f"job {self.id} is pending: {told}")
            time.sleep(min(_ASK_S / 2, max(_LOOK_S, deadline - now)))

    def end(self, trial: Trial) -> bool:
        """Whether it is over: it might still write into the folder, which is about to be removed."""
        now = time.monotonic()
        # One that has said nothing, on a node that does not answer, may take as long as it likes.
        deadline = now + (_END_S if trial.seen else _ASK_S)
        cancel_at = now + _ASK_S if trial.reported else now  # with reports it is about to end by itself
        try:
            while not self.look().has_ended:
                now = time.monotonic()
                if now >= cancel_at:
                    self.queue.cancel(self.id)
                    cancel_at = math.inf
                elif now >= deadline:
                    return False
                time.sleep(_LOOK_S)
        except Unreachable as error:
            hint = f"hint: job {self.id} may still wait or run: {self.queue.words.cancel} {self.id}"
            raise Unreachable(error.lines[0], hint) from error
        return True


class _Mailbox:
    """A node of the job, asked through the folder: a file for each question, and one for its answer."""

    def __init__(self, name: str, folder: Path, job: _Job) -> None:
        self.name, self._folder, self._job, self._numbers = name, folder, job, count()

    def ask(self, words: Mapping[str, object] | None, answer: type[T], limit_s: float) -> T:
        """Without words: what it says by itself, once."""
        file = _name(self.name, next(self._numbers))
        if words is not None:
            write_record(self._folder / f"{file}.asked", words)
        until = time.monotonic() + limit_s
        while True:
            state = self._job.look(every_s=_ASK_S)  # what the node wrote before is read once more
            if (said := _read(self._folder / f"{file}.said")) is not None:
                with contextlib.suppress(ValueError):
                    return read_answer(said, answer)
                raise Unreachable(f"{self.name} answers what nobody asked for")
            now = time.monotonic()
            if now >= until or state.restarts or self.name in read_stopped(said_by_nodes(self._folder)):
                raise Unreachable(f"nothing more came from {self.name}")
            if state.has_ended:
                until = min(until, now + (_LATE_S if state.exit_code == 0 and state.nodes else 0.0))
            time.sleep(_LOOK_S)


def said_by_nodes(folder: Path) -> str:
    return (_read(folder / _LOG) or b"").decode(errors="replace")


def _name(node: str, number: int) -> str:
    return f"{quote(node, safe='')}-{number}"


def _read(path: Path) -> bytes | None:
    """So much of its end as may be of use. A folder that is listed anew shows what others have put into it."""
    try:
        if path.name not in os.listdir(path.parent):
            return None
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST_BYTES))
            return file.read(_MOST_BYTES)
    except FileNotFoundError:
        return None


# On the nodes


def answer_questions(folder: Path, limit_s: float, me: str, address: str) -> None:
    """`me`: as the queue calls this node; `address`: by which the others reach it, as the queue's programs have it."""
    until = time.monotonic() + limit_s
    interface = (folder / _AT_WORK).read_text()
    write_record(folder / f"{_name(me, 0)}.said", _hello(address, interface))
    for number in count(1):
        while (asked := _read(folder / f"{_name(me, number)}.asked")) is None:
            if time.monotonic() >= until or _read(folder / _AT_WORK) is None:
                return
            time.sleep(_STEP_S)
        said: object
        match words := read_answer(asked, dict[str, Any]):
            case {"do": "hello"}:
                said = _hello(address, interface)
            case {"do": "report", "python": python, "limit_s": limit}:
                torch = machine_there.torch_of(python, os.environ, limit)
                said = NodeReport(torch, len(this_machine(os.environ).gpus))
            case _:
                said = asdict(machine_there.answer(words))
        write_record(folder / f"{_name(me, number)}.said", said)


def _hello(address: str, interface: str) -> Hello:
    addresses, error = {"": address}, ""
    if interface:
        try:
            addresses[interface] = address_of(interface)
        except LaunchError as found:
            error = found.lines[0]
    return Hello(launcher_version(), platform.python_version(), time.time(), addresses, error)
