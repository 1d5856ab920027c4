"""The base class of a place where runs go, such as a cluster. A kind of place fills in five methods; all others have a
default, which raises NotSupported or does nothing, as its docstring says. An attempt is one allocation of a run there,
and its intent the record, written before anything is started, by which it is started exactly once.

No caller asks a kind for its name. One contract suite (tests/places/contract) runs over every kind.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from launcher.errors import NotSupported
from launcher.ids import RunId
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import ClusterAnswer

if TYPE_CHECKING:
    from launcher.health.doctor_request import DoctorRequest
    from launcher.health.findings import Finding
    from launcher.plan.facts import Machine, Misfit
    from launcher.plan.model import AwaitedRun, Plan
    from launcher.remote.connect import Line
    from launcher.remote.running import Running
    from launcher.run.code.listing import CodeList
    from launcher.spec.model import JobSpec
    from launcher.status.checkpoints import Checkpoint


@dataclass(frozen=True, slots=True)
class CancelReport:
    """The result of a cancel: `ended` has a line of text for each thing that was ended.

    `already` is True if nothing was left to end; `cut_off` has a line for each machine that does not answer, where
    processes may still run.
    """

    ended: tuple[str, ...]
    already: bool  # nothing was left to end
    cut_off: tuple[str, ...] = ()  # a line per machine that does not answer: what may still run there, and until when


@dataclass(frozen=True, slots=True)
class Preview:
    """The job script that a cluster would get, and the cluster's answer about it, without a submit."""

    script: str
    answer: str


@dataclass(frozen=True, slots=True)
class HostNow:
    """A host of a cluster at this moment.

    `state` is free (nothing uses it), taken (in part or whole), or unknown; GPUs are None if unknown; `runs` are on it,
    or `jobs` of this user if the cluster does not know runs; `text` is for people.
    """

    host: str
    state: str  # free; taken, in part or whole; or unknown: it cannot be asked, or takes no runs
    gpus: int | None = None
    free_gpus: int | None = None
    runs: tuple[str, ...] = ()  # runs that use it
    jobs: tuple[str, ...] = ()  # the user's jobs that use it, if the cluster does not know runs
    text: str = ""  # for people: which runs wait, what is wrong


@dataclass(frozen=True, slots=True)
class KeptRemote:
    """The files of runs that the machine `where` keeps: bytes of each run, and in `code` bytes of frozen code that no
    other run needs.

    Runs in `live` have processes, so that nothing of theirs may be deleted; `silent` says why the machine could not be
    asked.
    """

    where: str
    runs: dict[RunId, int]  # bytes of each run there; 0 if the machine does not answer
    code: int = 0  # bytes of frozen code there that no other run needs
    live: tuple[RunId, ...] = ()  # runs that have processes there: nothing of theirs is deleted
    silent: str = ""  # why the machine could not be asked


class PreparedStart(Protocol):
    """An attempt that was prepared before its records exist, and can be started as soon as its intent is on disk. The
    caller calls either `start` or `drop`.
    """

    def start(self, attempt: int) -> None:
        """Start the prepared attempt, which has the number `attempt` and whose intent is on disk; return at once."""

    def drop(self) -> None:
        """Undo the preparation, because no attempt will follow."""


class StartLater:
    """A PreparedStart without a preparation: `start` calls the place's own `start`, which does everything, and `drop`
    does nothing.
    """

    def __init__(self, place: "Place", plan: "Plan") -> None:
        self._place, self._plan = place, plan

    def start(self, attempt: int) -> None:
        """Start the attempt with the place's own `start`."""
        self._place.start(self._plan, attempt)

    def drop(self) -> None:
        """Do nothing, because nothing was prepared."""


class Place(ABC):
    """A kind of place where runs go.

    One object may be used for several methods of one command, and each method may be called alone on a new object.
    `most_files_at_once` is how many files of code a submit copies itself (None: any number); if a run has more, its
    supervisor copies all of them.
    """

    kind: str  # its name in the registry of kinds, such as slurm
    doctor = ""  # module with its checks (a Doctor), imported only for `launch doctor`; "": it has none
    remote = False  # runs have their folders on other machines; those on this one hold copies
    checks_first = False  # it is not asked while this machine finds problems in the spec
    takes_roles = False  # a run may consist of several programs
    supports_reach = False  # `reach` can start a program beside the ranks of a node
    supports_tunnel = False  # `line_to` gives a connection to a node that can carry others
    lists_checkpoints = False  # `checkpoints` lists checkpoints on the machines of the run
    most_in_order = 1  # how many runs of one submit the place can start in order, as `max_parallel` needs; 1: it cannot
    most_files_at_once: int | None = None  # code files that a submit copies itself; None: any number

    # -- to be filled in

    @abstractmethod
    def machine(self, spec: "JobSpec") -> "Machine":
        """Return what the plan needs to know of the place: the cores and GPUs that one node offers to this job, and for
        example whether nodes share a disk.
        """

    @abstractmethod
    def preview(self, plan: "Plan") -> Preview | None:
        """Return the job script that `start` would submit, with the cluster's answer to a trial submit, or None if runs
        start there without a script.
        """

    @abstractmethod
    def start(self, plan: "Plan", attempt: int) -> None:
        """Start attempt number `attempt` of the run in `plan.run_dir`, and return at once. The attempt's intent is on
        disk. A call must not start it again if an earlier one, by this or another process, has started it.
        """

    @abstractmethod
    def look(self, attempts: Sequence[tuple[RunDir, AttemptDir]]) -> list[ClusterAnswer | None]:
        """Return the cluster's answer about each attempt, or None for one of which it knows no more than the run's
        folder and the processes on this machine show.

        Nothing is started, ended or changed.
        """

    @abstractmethod
    def cancel(self, run: RunDir, attempt: AttemptDir, plan: "Plan | None") -> CancelReport:
        """End the attempt for good: ask its processes first, then kill them.

        Return the report once no process of the attempt is left. Any of its records may be damaged or missing; `plan`
        is None if it cannot be read.
        """

    # -- before a start

    def prepare(self, plan: "Plan") -> PreparedStart:
        """Prepare the next attempt of the run in `plan.run_dir` and return the object that starts it.

        Neither the folder nor the code need exist yet. By default nothing is prepared, and the object only calls
        `start`.
        """
        return StartLater(self, plan)

    def check_first(self, code: "CodeList") -> None:
        """Raise BadInput if this code cannot go to the place, before anything is written or started there; by default
        any code can.
        """

    def queue_problems(self, spec: "JobSpec", awaited: "Sequence[AwaitedRun]") -> "list[Misfit]":
        """Return a problem for each `queue` option, and each run to wait for, that the place does not support; by
        default it supports none.
        """
        from launcher.plan.queueing import not_taken  # late: our own kinds have more

        return not_taken(spec.queue, (), self.kind)

    def most_together(self) -> int:
        """Return how many runs with equal demands can be submitted as one job; by default one."""
        return 1

    def runs_folder(self, spec: "JobSpec") -> str:
        """Return the folder that, on every machine of the place, contains the folders of runs. Raise NotSupported by
        default: only places whose `remote` is True, where runs have their folders on other machines, have one.
        """
        raise self.not_supported("a folder of runs on other machines")

    def warm_up(self, plan: "Plan", folder: Path) -> bool:
        """Start a process that imports in advance what the runs that this process submits, such as a sweep's trials,
        have in common, and return at once; `folder` has their `code/`, and `plan` is that of one of them.

        Return False while the imports are under way; call it again to see whether they are done. A run that is started
        before that only starts more slowly. Return True once they are done, or if nothing is imported, as by default.
        """
        return True

    def expect(self, run_dir: Path) -> None:
        """Start processes in advance for the next run, whose folder will be `run_dir`; by default start none."""

    # -- runs that are there

    def mend(self, attempts: Sequence[tuple[RunDir, AttemptDir]]) -> None:
        """Complete what killed processes left undone in these attempts, as far as the kind of place needs it: hand over
        an attempt whose submitter was killed, end a job that was submitted twice, continue or end a lost run.

        By default nothing is done.
        """

    def finish_lost(self, run: RunDir, attempt: AttemptDir) -> None:
        """Write the end of a lost attempt (all its processes were killed) whose ranks had finished, or that was asked
        to end; start nothing.

        By default no end is written, and a user has to resume the run.
        """

    def release(self, run: RunDir, attempt: AttemptDir) -> None:
        """Let a run start that was submitted to be held; do nothing if it is not held. By default raise
        NotSupported.
        """
        raise self.not_supported("holding a run")

    def include_nodes(self, run: RunDir, hosts: Collection[str]) -> None:
        """Let the run's jobs use nodes again that they exclude: the named hosts, or all if none is named. By default no
        job excludes nodes.
        """

    def cancel_without(self, run: RunDir, attempt: AttemptDir, gone: Collection[str]) -> CancelReport:
        """End the attempt although the hosts in `gone`, which a user has given up, do not answer; return the report. By
        default raise NotSupported.
        """
        raise self.not_supported("giving up hosts", "hint: only a pool needs it; cancel without --gone")

    def discover(self, ref: str) -> Path | None:
        """Create a folder on this machine for a run that the user submitted from another machine; `ref` is its id or a
        unique beginning of it.

        Return the folder, or None if there is no such run, as by default.
        """
        return None

    def reach(self, run: RunDir, attempt: AttemptDir, node: int) -> "Running":
        """Start the program that serves one request about a node's ranks (`launcher.programs visit`) on the node's
        machine, and return the connection to it; raise Unreachable or Refused, or by default NotSupported.
        """
        raise self.not_supported("a program beside the ranks of a run")

    def line_to(self, run: RunDir, node: int) -> "Line":
        """Return an SSH connection to the machine of the node, which can start commands and carry tunnels; raise
        Unreachable or Refused, or by default NotSupported.
        """
        raise self.not_supported("a connection to a node that could carry others")

    def hosts_now(self, spec: "JobSpec") -> list[HostNow]:
        """Return each host that a job with this spec could get, free or not, with its present state, GPUs and runs.

        Return an empty list, the default, if the place cannot list hosts. Raise LaunchError if the cluster cannot be
        asked.
        """
        return []

    # -- files, where `remote`: by default they are all in the run's folder

    def bring_logs(self, run: RunDir) -> None:
        """Copy the logs and metrics that ranks have written so far on other machines into the run's folder on this one;
        by default nothing is copied.
        """

    def fetch(self, run: RunDir, checkpoint: str) -> list[str]:
        """Copy logs, metrics and a checkpoint (`newest`, `none`, or a step) from other machines to this one; return a
        line of text about each. By default nothing is copied.
        """
        return []

    def bring_newest(self, run: RunDir) -> None:
        """Copy the newest checkpoint and the logs to this machine, because the run is to continue somewhere else; by
        default nothing is copied.
        """

    def bring_outputs(self, run: RunDir, draft: Path, frozen: Collection[str]) -> list[Path]:
        """Copy the files that ranks on other machines wrote into their folder of code, to folders below `draft`; return
        the folder of each machine that had any.

        `frozen` are the names of the code's own files, which are not copied. The default copies nothing and returns an
        empty list.
        """
        return []

    def tidy(self, runs: Sequence[RunDir], *, remove: bool) -> list[KeptRemote]:
        """Return which files each other machine keeps for the runs, by default none; with `remove`, delete these files
        as well, except those of a run that has not ended or has processes there.
        """
        return []

    def checkpoints(self, run: RunDir, *, verify: bool) -> "list[Checkpoint]":
        """Return the checkpoints of a run whose newest attempt is on other machines, damaged ones included.

        The `state` of each tells whether it is complete; with `verify` those machines compare every byte with the
        checksums in the manifest, else names and sizes only. By default raise NotSupported.
        """
        raise self.not_supported("a list of checkpoints on other machines")

    def not_supported(self, what: str, *hints: str) -> NotSupported:
        """Return the error that this kind of place does not support `what`, with hints."""
        return NotSupported(f"{what}: not supported on {self.kind}", *(hints or ("hint: another cluster may: --on",)))


class Doctor(Protocol):
    """The interface of a module with the checks of `launch doctor` for one kind of cluster: its function `check_up`."""

    def check_up(self, request: "DoctorRequest", tell: "Callable[[str], None]") -> "Iterator[Finding]":
        """Yield findings as they are made; `tell` is called with a line of text before each check that takes long.

        Raise BadInput for options that cannot be used.
        """
