"""Carry out the trial of `launch doctor --try`: a job of a batch queue whose nodes examine themselves and each other,
and report through files in a folder.

submit ─ script on the first node ─ on each node a shell looks, then `answer_questions`
                                       question in a file ─► answer in a file ─► what is known: `checks`

The folder is one in which runs will be stored: whether nodes see it is part of the trial.
"""

import contextlib
import math
import shlex
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from launcher.errors import Unreachable
from launcher.health.checks import shared_findings
from launcher.health.doctor_request import DoctorRequest
from launcher.health.findings import Finding
from launcher.health.network import Member, measured
from launcher.places.batch.trial.checks import (
    Expected,
    Hello,
    NodeClock,
    NodeReport,
    QueueNames,
    SeenNode,
    Stage,
    Trial,
    silence_finding,
    trial_findings,
)
from launcher.places.batch.trial.mailbox import AT_WORK, LATE_S, LOG, Mailbox, trial_output
from launcher.places.batch.trial.trial_jobs import JobOnTrial, NoTrial, TrialJobs
from launcher.remote.parallel import for_all
from launcher.run import drafts
from launcher.run.durable import make_dir

_SPARE_S = 10.0  # of the job's time, for what is around the program
_MINUTES = 3  # that a job asks for, at most
_FOR_TALKING = 0.4  # the part of the remaining time in which a node must answer, twice


def minutes(longest_s: float = math.inf) -> int:
    """Return the time limit of the trial's job in whole minutes: three, or less if the partition's limit, `longest_s`
    in seconds, is lower, but at least one.
    """
    return int(max(1, min(_MINUTES, longest_s // 60)))


def all_findings(
    site: Generator[Finding, None, TrialJobs | None],
    words: QueueNames,
    request: DoctorRequest,
    tell: Callable[[str], None],
) -> Iterator[Finding]:
    """Yield the findings about a site (`site` returns how to submit a trial, or None if it cannot), then those of a
    trial on nodes if one is requested, then those about shared folders.

    If the scheduler does not answer, a finding that says so takes the place of all further ones about site and trial.
    `words` are the names of the batch system for texts; `tell` is called with a line of text before steps that take
    long.
    """
    seen_on: list[str] | None = None
    try:
        queue = yield from site
        if queue is not None and request.trial:
            seen_on = yield from tried(queue, request, tell)
    except Unreachable as error:
        yield silence_finding(error.lines, words)
    yield from shared_findings(request, seen_on)


def tried(
    queue: TrialJobs, request: DoctorRequest, tell: Callable[[str], None]
) -> Generator[Finding, None, list[str] | None]:
    """Yield the findings of a trial, and return the nodes on which all files of the launcher were found (by the
    generator's return value); return None if no trial took place.

    `tell` is called with a line of text before steps that take long.
    """
    try:
        trial = try_nodes(queue, request, queue.minutes, tell)
    except NoTrial as reason:
        yield reason.finding
        return None
    yield from trial_findings(trial, Expected(request.python, str(request.runs_root)), queue.words)
    return trial.seen_on


def try_nodes(queue: TrialJobs, request: DoctorRequest, limit_minutes: int, tell: Callable[[str], None]) -> Trial:
    """Submit a job with the time limit `limit_minutes`, have it examine its nodes as `request` says, end it, and return
    the trial, which has the nodes' reports. `tell` is called with a line of text before steps that take long.

    Raise NoTrial if no job runs, or Unreachable if the scheduler does not answer.
    """
    limit_s = limit_minutes * 60.0 - _SPARE_S
    with _folder(request.runs_root) as folder:
        (folder / AT_WORK).write_text(request.chosen.get("interface", ""))
        job = JobOnTrial(queue, queue.submit(batch_script(queue, folder, sys.executable, limit_s)))
        trial = Trial(job.id)
        try:
            job.wait_for_nodes(request.within_s, tell)
            _talk(trial, job, folder, request, time.monotonic() + limit_s)
            trial.state, trial.log = job.state, trial_output(folder)
        finally:
            with contextlib.suppress(OSError):  # a disk in trouble: the job is ended all the same
                (folder / AT_WORK).unlink()  # nodes leave then
            trial.over = job.end(trial)
    return trial


def batch_script(queue: TrialJobs, folder: Path, python: str, limit_s: float) -> str:
    """Return the trial job's script, whose programs exchange files in `folder`, run in the interpreter `python` and
    exit after `limit_s`.

    A shell checks the folder and Python first, because without these no program of the launcher can report.
    """
    where, interpreter, log = (shlex.quote(str(path)) for path in (folder, python, folder / LOG))
    kind = queue.words.queue.kind
    program = f"""\
stopped() {{ echo "stopped $NODE $1"; exit "$1"; }}
[ -d {where} ] || stopped {Stage.NOT_THERE:d}
(: > {where}/"seen-$NODE") 2> /dev/null || stopped {Stage.NOT_WRITABLE:d}
[ -x {interpreter} ] || stopped {Stage.NO_PYTHON:d}
{interpreter} -P -m launcher.programs trial {kind} {where} {limit_s:g} "$NODE" < /dev/null || stopped $?
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
    """Yield a new folder in the runs root; afterwards remove it, and parents that were created for it."""
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


def _talk(trial: Trial, job: JobOnTrial, folder: Path, request: DoctorRequest, until: float) -> None:
    """Ask every node who it is, what its clock shows, how fast it reaches each other node and what its report says, and
    record the answers in `trial`, until the time `until` (by `time.monotonic`) or the end of the job. A node that does
    not answer at first is not asked any further.
    """
    trial.hosts = job.queue.hosts(job.state.nodes) if job.state.nodes else ()
    patience_s = min(LATE_S, _FOR_TALKING * (until - time.monotonic()))
    boxes = {host: Mailbox(host, folder, job) for host in trial.hosts}

    def meet(host: str, box: Mailbox) -> None:
        """Wait for the node's first answer, and measure its clock with a second one."""
        first = box.ask(None, Hello, patience_s)
        trial.first_word_s = trial.first_word_s or time.monotonic() - job.began
        node = trial.seen[host] = SeenNode(first)
        asked_at = time.time()
        again, now = box.ask({"do": "hello"}, Hello, patience_s), time.time()
        node.clock = NodeClock(again.now - (now + asked_at) / 2, now - asked_at)

    def look(host: str, box: Mailbox) -> None:
        """Ask the node for its report."""
        limit_s = max(1.0, until - time.monotonic())
        asked = {"do": "report", "python": request.python, "limit_s": 0.8 * limit_s}
        trial.seen[host].report = box.ask(asked, NodeReport, limit_s)

    for_all(boxes, meet)
    there = {host: box for host, box in boxes.items() if host in trial.seen and trial.seen[host].clock}
    for name in dict.fromkeys(("", request.chosen.get("interface", ""))):
        addresses = {host: trial.seen[host].hello.addresses.get(name, "") for host in there}
        members = [Member(there[host], address) for host, address in addresses.items() if address]
        trial.ways[name] = measured(members, flood=False)
        trial.closed |= {one.name: one.closed for one in members if one.closed}
    for_all(there, look)
