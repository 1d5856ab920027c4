"""What a batch scheduler has to be able to do and to say. All else that a batch cluster does is in this folder.

A kind fills in one `Queue`: its command lines, and how their answers are read. Every method that asks the scheduler
raises Unreachable where it does not answer, which is never taken for a no.
"""

import shlex
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from enum import Enum, StrEnum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from launcher.rundir.layout import AttemptDir
from launcher.supervisor.standby import supervisor_command
from launcher.words import Cause, State

if TYPE_CHECKING:
    from launcher.plan.model import Plan
    from launcher.supervisor.agent_processes import AgentProcess

LIMIT_S, SUBMIT_S = 10.0, 60.0  # how long a scheduler may take to answer, and to take a job
_MARK = "launch:"
_SOONEST_S = 10.0
_REACHED_S = 5.0  # before its limit a job may be ended for that


class Ticket(msgspec.Struct, frozen=True):
    """What names a job for good, before it has an id: it is written on the job, where everybody may read it."""

    text: str
    array: int | None = None  # how many runs share the job, where it is an array

    @property
    def mark(self) -> str:
        """The word that a job carries, in a field that the scheduler keeps and shows and makes nothing of."""
        return f"{_MARK}{self.text}"


def tickets_in(text: str) -> frozenset[str]:
    """Those whose marks are among these words."""
    return frozenset(word.removeprefix(_MARK) for word in text.split() if word.startswith(_MARK))


def batch_command(kind: str, where: Path, *, guarded: bool = False) -> str:
    """Return the only command of a script: the batch process, or the guard that has it below itself.

    `where` is the run's folder, or an array's list of them.
    """
    if guarded:
        words = [sys.executable, "-P", "-m", "launcher.clusters.batch.job.guard", kind, str(where)]
    else:
        words = supervisor_command("launcher.clusters.batch.job.batch_process:BatchSupervisor", where, kind)
    return f"exec {shlex.join(words)}"


def node_command(kind: str, plan: "Plan", attempt: AttemptDir) -> list[str]:
    """What is to run once on every node but the first."""
    return [sys.executable, "-P", "-m", "launcher.clusters.batch.job.on_node", kind, plan.run_dir, str(attempt.number)]


def nodes_asked(plan: "Plan", each: int = 1) -> str:
    """How many nodes a job asks for, or slots, where a node has so many: spares are more than the run needs."""
    fewest, most = plan.nodes_min * each, (plan.nodes_max + plan.spec.recovery.spares) * each
    return f"{fewest}-{most}" if plan.nodes_min < plan.nodes_max else str(most)


def warned_before_s(limit_s: float | None, wanted_s: float) -> float:
    """How long before its limit a run is told: as the spec wants it, but never in the first half of a short job."""
    return wanted_s if limit_s is None else max(_SOONEST_S, min(wanted_s, limit_s / 2))


class Phase(StrEnum):
    """Where a job is, as far as processes of ours go."""

    QUEUED = "queued"  # no process of its next start exists yet
    RUNNING = "running"  # it has its nodes, even where it is stopped on them
    ENDING = "ending"  # processes may still live; then it has ended, or is queued again
    ENDED = "ended"  # for good
    UNKNOWN = "unknown"


class QueuedJob(msgspec.Struct, frozen=True):
    """One job, or one element of an array, as the scheduler shows it or its accounts do."""

    id: str  # as the scheduler's programs take it
    phase: Phase
    word: str  # the scheduler's own for its state
    text: str = ""  # for people: why it waits, where it runs, who ended it
    hosts: str = ""
    tickets: frozenset[str] = frozenset()
    element: tuple[str, int] | None = None  # of an array: the array's id, and which of its runs, from 0
    starts_at: float | None = None  # the scheduler's estimate while it waits
    ends_at: float | None = None  # by its time limit while it runs
    ended_as: State | None = None  # what its end means where the job left no word of its own
    cause: Cause | None = None
    exit_code: int | None = None  # of its batch process, where its accounts have it
    suspended: bool = False  # it has its nodes, and all of it stands still there
    name: str = ""  # what its submitter called it, where the scheduler shows that with the rest

    def may_have(self, ticket: str) -> bool:
        """Whether it can be that ticket's job. With none on it it can: a site's plugins may rewrite that."""
        return not ticket or not self.tickets or ticket in self.tickets


class JobStart(msgspec.Struct, frozen=True):
    """What this process knows of its job by its environment."""

    job: str
    element: int | None  # which run of an array, from 0


class NodeWord(msgspec.Struct, frozen=True):
    """What the scheduler says of a node."""

    down: bool  # given up; a node that merely takes no new jobs is not
    text: str  # its state and the reason, for people
    booted_at: float | None = None
    drains: bool = False  # an administrator wants it free of jobs; those that it has may end there


class Fate(Enum):
    """What becomes of a job whose batch process was told to leave."""

    QUEUED_AGAIN = auto()  # the scheduler has put it back by itself
    PREEMPTED = auto()  # others get its nodes, and the scheduler would leave it at that
    TIMED_OUT = auto()
    CANCELLED = auto()  # none of these: a person has ended it
    RUNS = auto()  # nobody ends it
    UNKNOWN = auto()  # the scheduler does not say


class Scheduler(Protocol):
    """Which one it is."""

    kind: str  # as the registry of kinds has it
    called: str  # for people: Slurm

    def site(self) -> str:
        """The name of the cluster that answers here; "" where it has none. Several may share one home."""


class Submitting(Scheduler, Protocol):
    """How jobs go in."""

    def script(self, plan: "Plan", ticket: Ticket, where: Path, avoid: Sequence[str]) -> str:
        """The whole batch script. It runs `batch_command(kind, where)` alone. Nodes to avoid may yet be insisted on
        by the spec. `where`: the run's folder, or an array's; what the job writes before it has a log goes there."""

    def submit(self, script: Path, environ: Mapping[str, str], lock: int) -> str:
        """Hand it over once and give the job's id. The client holds the lock (a descriptor) as long as it lives.
        Raises NotStarted where the scheduler refuses."""

    def may_submit(self) -> bool:
        """Whether this host, on which a job may run, is one that jobs are taken from; a site that forbids it may as
        well say so when it gets the job."""
        return True

    def try_out(self, script: str) -> str:
        """What it says of this script, for people, without taking it."""

    def name_of(self, job: str, element: int) -> str:
        """What an element of the array is called, the first one being 0; where no runs share a job, nobody asks."""
        return f"{job}[{element}]"


class Following(Scheduler, Protocol):
    """How jobs are asked about and ended."""

    sees: str  # what a person types to see a job, whose id follows: squeue -j
    ends: str  # and to end it

    def jobs(self, ids: Sequence[str] = (), *, called: str = "", limit_s: float = LIMIT_S) -> list[QueuedJob]:
        """These jobs, those of the run that is called so, or all of this user: one question. Raises Unreachable rather
        than leave one out."""

    def accounts(self, ids: Sequence[str], since: float) -> list[QueuedJob]:
        """What is on record of jobs that are shown no more; empty where nothing is recorded. An id that was used
        before `since` (Unix time) is another job's."""

    def warn(self, job: str) -> None:
        """Have the batch process leave (SIGTERM), where the scheduler can send that to it and to nothing else."""

    def cancel(self, job: str) -> None:
        """End the job for good, whatever it is at."""

    def by_hand(self, job: str) -> tuple[str, str]:
        """What a person types to see the job, and to end it."""
        return f"{self.sees} {job}", f"{self.ends} {job}"


class Moving(Scheduler, Protocol):
    """How a job is started again. A scheduler that cannot says so, and the run goes on in a new job."""

    leaves_with: int | None  # with this exit code a job is put back; None: `requeue` ends the job's processes itself

    def fate(self: "Queue", job: str) -> Fate:
        """Why this job's batch process was told to leave. Asked in the job. By what is shown of it, unless a scheduler
        tells more."""
        return fate_by(next(iter(self.jobs([job])), None), self.hosts())

    def requeue(self, job: str) -> str:
        """Put this job back into the queue; gives why the scheduler refuses, or ""."""

    def start_again(self, plan: "Plan", job: str, avoid: Sequence[str], delay_s: float | None = None) -> None:
        """The job waits: have it start on other nodes than these, and on those that it was to avoid before, as far as
        that can be had. With a delay it is just being put back, and starts after that; this returns at once."""

    def warn_before_s(self, plan: "Plan") -> float:
        """How long before the time limit the run is to be told."""


class Waiting(Scheduler, Protocol):
    """How a job waits for a person, or for other jobs."""

    def release(self, job: str) -> str:
        """Let a job go that its user holds; gives why the scheduler refuses, or ""."""

    def follow(self, job: str, others: Sequence[str]) -> bool:  # noqa: ARG002 - of those that can
        """Have this job, which is about to be put back, wait there for the ends of others. False: that cannot be had,
        and it waits on its nodes."""
        return False


class InTheJob(Scheduler, Protocol):
    """What processes of the job find out where they are."""

    warnings: tuple[int, ...]  # signals by which the scheduler tells that it will take the nodes, besides SIGTERM

    def this_start(self) -> JobStart:
        """Which job this process is in, and which of an array's runs."""

    def this_host(self) -> str:
        """What the scheduler calls this machine."""

    def hosts(self) -> dict[str, str]:
        """The job's hosts in the scheduler's order, the batch process's own first, and the address by which the others
        reach each: what the scheduler itself uses, or `nodes.resolved` of its name."""

    def processes(self, plan: "Plan", attempt: AttemptDir) -> "list[AgentProcess]":
        """The processes to start: node 0's agent first (`agent_process`), then what runs `node_command` on each other
        node, such as one srun, or a qrsh for each."""

    def nodes(self, hosts: Sequence[str], *, limit_s: float = LIMIT_S) -> dict[str, NodeWord]:
        """What is known of these nodes, without those of which nothing is."""


class Queue(Submitting, Following, Moving, Waiting, InTheJob, Protocol):
    """A batch scheduler: what a kind fills in. Who needs a part of it takes that part."""


def fate_by(shown: QueuedJob | None, ours: Collection[str]) -> Fate:
    """What becomes of a job by what is shown of it, where nothing tells more. `ours`: the hosts that this start has."""
    if shown is None:
        return Fate.UNKNOWN
    if shown.phase is Phase.ENDING:
        return Fate.CANCELLED
    if shown.phase is Phase.QUEUED or shown.hosts.split(",")[0] not in ours:
        return Fate.QUEUED_AGAIN
    return Fate.TIMED_OUT if shown.ends_at and time.time() > shown.ends_at - _REACHED_S else Fate.RUNS
