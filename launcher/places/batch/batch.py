"""The base class of a batch system, and the states of its jobs. A kind of batch system is one subclass in one file:
command lines, and how to parse their output.

The other modules of this folder do everything that batch clusters have in common.
"""

import os
import re
import shlex
import signal
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum, StrEnum, auto
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from launcher.errors import LaunchError, NotStarted
from launcher.places.batch import environment
from launcher.places.batch.answers import read_submitted
from launcher.places.batch.client import Answer
from launcher.plan.on_hosts import hosts_asked
from launcher.run.layout import AttemptDir
from launcher.states import Cause, State
from launcher.supervisor.standby import supervisor_command

if TYPE_CHECKING:
    from launcher.plan.model import Plan
    from launcher.supervisor.agent_processes import AgentProcess

LIMIT_S, SUBMIT_S = 10.0, 60.0  # how long a scheduler may take to answer, and to take a job
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./+@=-]*")  # of others clients make hosts, variables, patterns, or two words
_LONGEST = 2000
_MARK = "launch:"
_SOONEST_S = 10.0
_WARNED_S = 120.0  # before its limit a run is warned
_REACHED_S = 5.0  # before its limit a job may be ended for that


class SubmitToken(msgspec.Struct, frozen=True):
    """The submit token, which identifies a job before its id is known: it is written on the job, where all users can
    read it.

    `array` is the number of the job's runs if it is an array, else None.
    """

    text: str  # 16 hex digits
    array: int | None = None  # number of runs in the job, if it is an array

    @property
    def mark(self) -> str:
        """Return `launch:` and the token's text, as it is written into a job field that the scheduler keeps, shows and
        does not interpret, such as Slurm's comment.
        """
        return f"{_MARK}{self.text}"


def submit_tokens_in(text: str) -> frozenset[str]:
    """Return the submit tokens that are written in the text, which is the content of a job field to which scripts add
    `SubmitToken.mark`.
    """
    return frozenset(word.removeprefix(_MARK) for word in text.split() if word.startswith(_MARK))


def batch_command(kind: str, where: Path, *, guarded: bool = False) -> str:
    """Return the only command of a batch script for the batch system `kind`: it starts the batch process, which
    supervises the run in this job.

    `where` is the run's folder, or the folder that lists an array's runs. With `guarded` a small process is started
    that restarts the batch process if it is killed.
    """
    if guarded:
        words = [sys.executable, "-P", "-m", "launcher.programs", "guard", kind, str(where)]
    else:
        words = supervisor_command("launcher.places.batch.job.batch_process:BatchSupervisor", where, kind)
    return f"exec {shlex.join(words)}"


def node_command(kind: str, plan: "Plan", attempt: AttemptDir) -> list[str]:
    """Return the command that a job of this kind of batch system runs once on every node but the first, which starts
    the node's agent.
    """
    return [sys.executable, "-P", "-m", "launcher.programs", "on-node", kind, plan.run_dir, str(attempt.number)]


def nodes_asked(plan: "Plan", each: int = 1) -> str:
    """Return the number of nodes that a job requests, spares included, as text: a number or a range such as `2-4`. With
    `each` it counts slots, `each` per node.
    """
    fewest, most = plan.nodes_min * each, (hosts_asked(plan) + plan.spec.recovery.spares) * each
    return f"{fewest}-{most}" if plan.nodes_min < plan.nodes_max else str(most)


def warned_before_s(limit_s: float | None, wanted_s: float) -> float:
    """Return how many seconds before its time limit `limit_s` a run is warned: `wanted_s`, or half of the limit if that
    is less, but never less than ten seconds. Without a limit (None) it is `wanted_s`.
    """
    return wanted_s if limit_s is None else max(_SOONEST_S, min(wanted_s, limit_s / 2))


class Phase(StrEnum):
    """The phase of a job, as far as the launcher distinguishes them."""

    QUEUED = "queued"  # no process of its next start exists
    RUNNING = "running"  # it has its nodes, even if it is suspended
    ENDING = "ending"  # processes may still live; after that it has ended or is queued again
    ENDED = "ended"  # for good
    UNKNOWN = "unknown"  # the scheduler shows a state that has no other phase


class QueuedJob(msgspec.Struct, frozen=True):
    """A job, or one element of an array, as the scheduler or its accounting shows it.

    `word` is the scheduler's own name for the state, `text` its explanation, `element` (the array's id, the number of
    the run from 0). `starts_at` is an estimate, `ends_at` follows from the time limit, `ended_as` is how the run ended
    if it left no record. A `suspended` job has its nodes but stands still.
    """

    id: str  # in the form that the scheduler's commands accept
    phase: Phase  # what the state means for the launcher
    word: str  # the scheduler's own name of the state
    text: str = ""  # for people: why it waits, where it runs, who ended it
    hosts: str = ""  # those that it has, in the scheduler's own notation
    submit_tokens: frozenset[str] = frozenset()  # that it shows
    element: tuple[str, int] | None = None  # in an array: the array's id, and the number of the run from 0
    starts_at: float | None = None  # Unix time; the scheduler's estimate while it waits
    ends_at: float | None = None  # Unix time; by its time limit, while it runs
    ended_as: State | None = None  # how the run ended if it left no end record
    cause: Cause | None = None  # why the run ended if it left no end record
    exit_code: int | None = None  # of its batch process, if the accounting has it
    suspended: bool = False  # it has its nodes, but stands still
    name: str = ""  # the job's name, if the scheduler lists it

    def may_have(self, submit_token: str) -> bool:
        """Return whether the job may be the one submitted with this token. A job that shows no token may be, because a
        site's plugins can overwrite the field.
        """
        return not submit_token or not self.submit_tokens or submit_token in self.submit_tokens


class JobStart(msgspec.Struct, frozen=True):
    """The job in which this process runs, and the number of its run if the job is an array's element, else None."""

    job: str  # its id
    element: int | None  # the number of the run in an array, from 0


class NodeAnswer(msgspec.Struct, frozen=True):
    """The state of a node as the scheduler reports it.

    `down` means that the scheduler has given it up; `drains` that an administrator wants no new jobs on it; `text` is
    for people.
    """

    down: bool  # given up by the scheduler; a node that only takes no new jobs is not
    text: str  # its state and the reason, for people
    booted_at: float | None = None  # Unix time; None: not reported
    drains: bool = False  # an administrator wants no new jobs on it; its present jobs may end


class ExecHost(msgspec.Struct, frozen=True):
    """A host on which jobs run, and its resources; None means that the batch system does not report one.

    `used` tells whether any jobs run on it, `up` whether it answers, `drains` whether it takes no new jobs; `text` is
    its state for people.
    """

    name: str
    cpus: int
    gpus: int | None = None  # all that it has
    free_gpus: int | None = None  # those that no job has
    used: bool = False  # jobs of any user run on it
    up: bool = True  # it answers
    drains: bool = False  # an administrator wants no new jobs on it; its present jobs may end
    queues: frozenset[str] = frozenset()  # names of the queues whose jobs may run on it
    text: str = ""  # its state, for people


class Fate(Enum):
    """The ways in which a scheduler deals with a job whose batch process it has asked to exit."""

    QUEUED_AGAIN = auto()  # the scheduler itself has requeued it
    PREEMPTED = auto()  # its nodes go to other jobs, and the scheduler does not requeue it
    TIMED_OUT = auto()  # its time limit has passed
    CANCELLED = auto()  # it is being ended for none of these reasons: by a user or administrator
    RUNS = auto()  # the scheduler is not ending it
    UNKNOWN = auto()  # the scheduler does not report it


class BatchSystem(ABC):
    """A batch system: its command lines, how to parse their output, its states and reasons. A query raises Unreachable
    if the scheduler does not answer, within `limit_s` seconds if it has that parameter.

    A subclass fills in `script`, `jobs` and a few attributes; the rest has defaults that suit systems with a command
    like qsub. It fills in `exec_hosts` if the batch system can list hosts.

    `called` is the name for users; `ask` runs one of its programs; `submits` is the command that submits a script,
    `sees` and `ends` those by which a user shows and ends a job, `starts` the one that starts a program on a host of
    the job. If `leaves_with` is set, a job is requeued by exiting with this code, else by `requeue`.
    """

    kind: str  # its name in the registry of kinds
    called: str  # the name for users, such as Slurm
    ask: Callable[..., Answer]  # runs one of its commands (`Programs.ask`)
    submits: Sequence[str] = ()  # the command that submits the script, its last argument, such as qsub -terse
    reads_stdin = False  # that command reads the script from its stdin instead
    sees: str  # the command by which a user shows a job, whose id follows, such as squeue -j
    ends: str  # the command by which a user ends a job
    releases = ""  # the command by which a user releases a held job; "": jobs cannot be held
    starts: Sequence[str] = ()  # the command that starts a program on a host of the job, such as qrsh -inherit
    id_variable = "JOB_ID"  # the variable that holds the job's id in the job
    hosts_variable = "PE_HOSTFILE"  # names a file with the job's hosts, one at each line's start, its own first
    leaves_with: int | None = None  # the exit code by which a job is requeued; None: `requeue` does it
    gpu_resource = "gpu"  # its resource name for GPUs, unless the spec has one
    most_in_array = 1  # number of runs that one array may have; 1: no arrays

    def __init__(self) -> None:
        self.started: list[AgentProcess] = []  # what this process has started on other hosts of the job

    # -- how jobs go in

    @abstractmethod
    def script(self, plan: "Plan", submit_token: SubmitToken, where: Path, avoid: Sequence[str]) -> str:
        """Return the whole batch script, whose only command is `batch_command(kind, where)` and which writes
        `submit_token` into a field of the job.

        `where` is the run's folder, or an array's, to which goes what the batch process prints before it has a log. The
        job should not get nodes in `avoid`, unless the spec insists on them.
        """

    def submit(self, script: Path, environ: Mapping[str, str], lock: int) -> str:
        """Submit the script once and return the job's id. Raise NotStarted if the job is refused, and LaunchError if it
        was accepted but the output has no id.

        The submitting command gets the variables `environ`, and inherits `lock`, the descriptor of a lock file, so that
        the lock is held as long as it lives. By default the job itself gets these variables from a file, which is
        written beside the script here.
        """
        given = environment.beside(script, environ)
        words, stdin = ([], script.read_text()) if self.reads_stdin else ([str(script)], None)
        argv = [*self.submits, *words]
        answer = self.ask(argv, limit_s=SUBMIT_S, environ=given, stdin=stdin, pass_fds=[lock])
        if answer.code != 0:
            raise NotStarted(f"{self.called} refuses the job: {self.refusal(answer)}")
        if (job := self.submitted(answer.out)) is None:  # it may have taken the job, so the run is kept
            said = answer.out.strip()[:200]
            raise LaunchError(f"{' '.join(self.submits[:2])}: expected the number of a job, got {said!r}")
        return job

    def submitted(self, text: str) -> str | None:
        """Return the job's id from the submitting command's output, or None if the output has none."""
        return read_submitted(text)

    def refusal(self, answer: Answer) -> str:
        """Return why the job was refused, from the submitting command's output."""
        return answer.refusal

    def may_submit(self) -> bool:
        """Return whether the scheduler lets this host, which may be one that runs a job, submit jobs: by default True,
        as only some schedulers can be asked.
        """
        return True

    def try_out(self, script: str) -> str:  # noqa: ARG002 - of those that can
        """Return what the scheduler says about a script without submitting it, as text for the user; by default a line
        that it cannot be asked.
        """
        return f"{self.called} cannot look at a script without taking it"

    def name_of(self, job: str, element: int) -> str:
        """Return the id of element `element` (from 0) of the array whose id is `job`."""
        return f"{job}[{element}]"

    def site(self) -> str:
        """Return the name that the cluster's scheduler gives itself, or "" if it has none.

        It tells several clusters apart that share one home directory.
        """
        return ""

    # -- how jobs are asked about, and ended

    @abstractmethod
    def jobs(self, ids: Sequence[str] = (), *, called: str = "", limit_s: float = LIMIT_S) -> list[QueuedJob]:
        """Return jobs of this user with one query: those with the ids `ids`, or those with the job name of run id
        `called`, or all.

        Raise Unreachable, also after `limit_s`, rather than leave a job out.
        """

    def accounts(self, ids: Sequence[str], since: float) -> list[QueuedJob]:  # noqa: ARG002 - of those that can
        """Return the accounting's records of jobs that the scheduler no longer shows, or an empty list if there are
        none.

        A record older than `since` (Unix time) belongs to an earlier job with the same id and is left out.
        """
        return []

    def warn(self, job: str) -> None:  # noqa: B027 - doing nothing is the default
        """Send SIGTERM to the batch process, if the system can send it to that process alone.

        By default nothing is sent: the batch process reads requests to stop from its folder every two seconds.
        """

    def cancel(self, job: str) -> None:
        """End the job for good, whether it is queued or runs. Raise Unreachable if the batch system does not answer; if
        it refuses, as for a job that has ended, nothing is raised.
        """
        self.ask([*self.ends.split(), job])

    def by_hand(self, job: str) -> tuple[str, str]:
        """Return (the command by which a user can see the job, the command by which a user can end it), for a
        message.
        """
        return f"{self.sees} {job}", f"{self.ends} {job}"

    def release(self, job: str) -> str:
        """Release a job that is held on its user's request; return why the scheduler refuses, or ""."""
        return self.ask([*self.releases.split(), job]).refusal if self.releases else "it holds no jobs"

    # -- how a job is started again: where it cannot, the run continues in a new job

    def fate(self, job: str) -> Fate:
        """Return why this job's batch process was asked to exit: the job is requeued, preempted, out of time, or
        cancelled; RUNS if it is not being ended, UNKNOWN if the scheduler does not report it.

        It is called inside the job, and by default judges by the state that the scheduler shows.
        """
        return fate_by(next(iter(self.jobs([job])), None), self.hosts())

    def requeue(self, job: str) -> str:  # noqa: ARG002 - of those that can
        """Put this job back into the queue; return why the scheduler refuses, or "".

        By default the scheduler is not asked: return "" if it requeues a job that exits with the code `leaves_with`,
        else the text that this batch system requeues none.
        """
        return "" if self.leaves_with is not None else f"{self.called} puts no job back"

    def puts_back_within_s(self, plan: "Plan", job: str) -> float | None:  # noqa: ARG002 - of those that can
        """Return within how many seconds the scheduler may by itself requeue this job after the job lost a node; None
        if it never does.

        A job requeued in this way stays at the head of the queue.
        """
        return None

    def start_again(  # noqa: B027 - doing nothing is the default
        self, plan: "Plan", job: str, avoid: Sequence[str], delay_s: float | None = None
    ) -> None:
        """Change a waiting job so that it starts on nodes that are not in `avoid`, unless that would leave it fewer
        nodes than it needs; by default nothing is changed.

        Give `delay_s` for a job that is being requeued at this moment: it then starts that many seconds later, and the
        call returns at once, before the scheduler has applied the change.
        """

    def follow(self, job: str, others: Sequence[str]) -> bool:  # noqa: ARG002 - of those that can
        """Make this job, which is about to be requeued, wait in the queue for the ends of the jobs `others`.

        Return False if that is impossible, in which case the job waits while it holds its nodes.
        """
        return False

    def warn_before_s(self, plan: "Plan") -> float:
        """Return how many seconds before its time limit the run is warned: the `warn_before` that the spec sets for
        this batch system, or 120 s by default; at most half of the limit, but at least ten seconds.
        """
        own = getattr(plan.spec, self.kind, None)
        return warned_before_s(plan.spec.resources.time_s, getattr(own, "warn_before_s", _WARNED_S))

    # -- what processes of a job find out

    @property
    def warnings(self) -> tuple[int, ...]:
        """Return the signals, besides SIGTERM, that announce that the job will lose its nodes; an empty tuple if the
        scheduler sends none.

        They may arrive on every host of the job; only the batch process acts on them.
        """
        return () if environment.HOST in os.environ else (signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)

    def this_start(self) -> JobStart:
        """Return the job in which this process runs, read from its environment; raise KeyError outside a job.

        By default the job is no element of an array; batch systems with arrays override this.
        """
        return JobStart(os.environ[self.id_variable], None)

    def this_host(self) -> str:
        """Return the name by which the batch system knows the machine that this process of a job runs on. By default it
        is in a variable that the launcher set on the job's other hosts, else the machine's own host name.
        """
        return os.environ.get(environment.HOST) or os.uname().nodename

    def hosts(self) -> dict[str, str]:
        """Return the address of each host of the job in which this process runs, by the host's name, this host first.

        The address is the batch system's, or the one to which the name resolves; raise LaunchError if there is neither.
        """
        file = Path(os.environ.get(self.hosts_variable) or "/nonexistent")  # or one that another job has left behind
        names = [line.split()[0] for line in file.read_text().splitlines()] if file.is_file() else [self.this_host()]
        return {name: resolved(name, "hint: the hosts of a job have to know each other by name") for name in names}

    def processes(self, plan: "Plan", attempt: AttemptDir) -> "list[AgentProcess]":
        """Return the processes that the batch process starts: the agent of node 0, then for each other node a process
        that supervises its agent.
        """
        from launcher.supervisor.agent_processes import (  # late: only a job needs it
            agent_process,
            starter_process,
        )

        file, command = os.environ[environment.FILE], node_command(self.kind, plan, attempt)
        hosts = [node.host for node in plan.nodes[1:]]
        argvs = [(*self.starts, host, *environment.packed(file, host, command)) for host in hosts]
        self.started = [starter_process(argv, plan, attempt) for argv in argvs]
        return [agent_process(plan, attempt, 0), *self.started]

    def role_processes(self, whole: "Plan", plan: "Plan", attempt: AttemptDir) -> "list[AgentProcess]":  # noqa: ARG002 - of those that can
        """Return the processes to start for one role of the run other than its main one. `whole` is the plan of the
        run, and `plan` the part of it for this role.

        The first of them ends together with the role's node 0. By default raise LaunchError: only some batch systems
        support roles.
        """
        raise LaunchError(f"{self.called} starts no agents for a program beside the main one")

    # -- hosts

    def exec_hosts(self, queue: str | None, gpu: str, *, limit_s: float = LIMIT_S) -> list[ExecHost]:  # noqa: ARG002 - of those that can
        """Return the hosts that jobs of the queue (None: any queue) may get, with one query. By default return none, as
        a batch system that cannot list them does. `gpu` is the batch system's name of the resource GPU.
        """
        return []

    def nodes(self, hosts: Sequence[str], *, limit_s: float = LIMIT_S) -> dict[str, NodeAnswer]:
        """Return the states of these nodes by name, without nodes that the scheduler does not know."""
        known = {one.name: one for one in self.exec_hosts(None, self.gpu_resource, limit_s=limit_s)}
        found = {host: known[host] for host in hosts if host in known}
        return {host: NodeAnswer(not one.up, one.text, drains=one.drains) for host, one in found.items()}


def directives(sign: str, options: Mapping[str, str | None]) -> list[str]:
    """Return the lines of a script that set its options; `sign` begins each line, such as `#$`. An option with the
    value None is left out.
    """
    return [f"{sign} -{name} {value}".rstrip() for name, value in options.items() if value is not None]


def output_file(where: Path, name: str) -> str:
    """Return the path in the folder `where`, with the name `name`, for the batch process's output before it has a log,
    or /dev/null if batch systems may misread the folder's path.
    """
    return f"{where}/{name}" if _PLAIN_PATH.fullmatch(str(where)) else os.devnull


def job_name(run_id: str) -> str:
    """Return the name of a run's job: the run's id, after `run-` if it does not begin with a letter, as a name must."""
    return run_id if run_id[0].isalpha() else f"run-{run_id}"


def meanings(table: Mapping[str, str]) -> list[tuple[re.Pattern[str], str]]:
    """Return `table`, from regular expressions of messages to their meanings in plain words, compiled for
    `in_plain_words`. The first pattern that matches counts.
    """
    return [(re.compile(sign), words) for sign, words in table.items()]


def in_plain_words(message: str, table: Iterable[tuple[re.Pattern[str], str]], called: str) -> str:
    """Return the meaning of a batch system's message by the table, the first pattern that matches. If none does, return
    "NAME says: MESSAGE" with the system's name `called`; return "" for an empty message.
    """
    message = message.strip()[:_LONGEST]  # the patterns would take minutes for a longer one
    found = ((sign.search(message), words) for sign, words in table)
    return next((fit.expand(words) for fit, words in found if fit), f"{called} says: {message}" if message else "")


def script_of(kind: str, directives: Iterable[str], where: Path, limit_s: float | None, warn_s: float) -> str:
    """Return a batch script with these directives, whose job reads its environment from a file. `kind` is the kind of
    batch system, and `where` the run's folder, or the folder that lists an array's runs.

    A timer in the job sends it a warning `warn_s` before its time limit `limit_s` (None for no limit).
    """
    words = shlex.join(environment.environment_prefix(None if limit_s is None else limit_s - warn_s))
    supervisor = batch_command(kind, where).removeprefix("exec ")
    return "\n".join(["#!/bin/sh", *directives, f"exec {words} {supervisor}", ""])


def resolved(name: str, hint: str) -> str:
    """Return the IP address of the host with this name or address, an IPv4 address if it has one. Raise LaunchError
    with `hint` if the name cannot be resolved.
    """
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise LaunchError(f"no address for host {name}: {error}", hint) from error
    return str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0])


def fate_by(shown: QueuedJob | None, ours: Collection[str]) -> Fate:
    """Return what the scheduler does with a job, judged by the job's shown state alone: UNKNOWN if it is not shown
    (None), CANCELLED if it is ending, QUEUED_AGAIN, TIMED_OUT if its time limit is near or over, else RUNS.

    `ours` are the hosts on which this start of the job runs, with or without their domain: a job shown on another host
    has been queued again.
    """
    if shown is None:
        return Fate.UNKNOWN
    if shown.phase is Phase.ENDING:
        return Fate.CANCELLED
    first = shown.hosts.partition(",")[0].partition(".")[0]
    if shown.phase is Phase.QUEUED or first not in {host.partition(".")[0] for host in ours}:
        return Fate.QUEUED_AGAIN
    return Fate.TIMED_OUT if shown.ends_at and time.time() > shown.ends_at - _REACHED_S else Fate.RUNS
