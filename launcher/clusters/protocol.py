"""What a place where runs go is to the rest of the house: five verbs, and small capabilities that only some kinds have.

A kind is a class that implements Cluster, and those of the other protocols that fit it; nobody asks it for its name.
One contract suite (tests/clusters/contract) runs over every kind.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from launcher.ids import RunId
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import ClusterWord

if TYPE_CHECKING:
    from launcher.doctor.findings import Finding
    from launcher.doctor.wish import DoctorWish
    from launcher.hostlink.connect import Line
    from launcher.hostlink.running import Running
    from launcher.plan.facts import Machine, Misfit
    from launcher.plan.model import AwaitedRun, Plan
    from launcher.rundir.code.listing import CodeList
    from launcher.spec.model import JobSpec
    from launcher.status.checkpoints import Checkpoint


@dataclass(frozen=True, slots=True)
class CancelReport:
    """What a cancel did: a line per thing that was ended."""

    ended: tuple[str, ...]
    already: bool  # nothing was left to end
    cut_off: tuple[str, ...] = ()  # a line per machine that nobody can ask, and what may still live there until when


@dataclass(frozen=True, slots=True)
class Preview:
    """What a cluster would be handed, and what it says of it without being handed anything."""

    script: str
    answer: str


@dataclass(frozen=True, slots=True)
class HostNow:
    """A machine of a cluster as it is now; None: that is not known."""

    host: str
    state: str  # free, taken, or unknown where it cannot be asked or takes no runs
    gpus: int | None = None
    free_gpus: int | None = None
    runs: tuple[str, ...] = ()  # that have some of it
    jobs: tuple[str, ...] = ()  # of the user that have some of it, where the cluster knows no runs
    text: str = ""  # for people: who waits, what is wrong


class Engagement(Protocol):
    """Everything that can be done for an attempt before its intent is on disk."""

    def go(self, attempt: int) -> None:
        """The intent is on disk: carry the attempt out. Returns at once."""

    def abandon(self) -> None:
        """There will be no attempt."""


class Cluster(Protocol):
    """A place where runs go. An object may be used for one command only, and each verb alone on a fresh one."""

    kind: str

    def machine(self, spec: "JobSpec") -> "Machine":
        """What one node offers to this job, and what the plan has to know of the cluster."""

    def preview(self, plan: "Plan") -> Preview | None:
        """What `go` would hand over; None where that is no text."""

    def engage(self, plan: "Plan") -> Engagement:
        """Prepare to start an attempt of the run that will be, or is, in `plan.run_dir`; its code may come later."""

    def look(self, attempts: Sequence[tuple[RunDir, AttemptDir]]) -> list[ClusterWord | None]:
        """What the cluster says of each; None where it knows no more than the run's folder and processes do.

        Starts, ends and decides nothing.
        """

    def cancel(self, run: RunDir, attempt: AttemptDir, plan: "Plan | None") -> CancelReport:
        """End the attempt for good: first by asking, then surely; returns when nothing of it is left.

        Any of its records may be damaged, or gone; no plan: it cannot be read.
        """


@runtime_checkable
class ChecksFirst(Protocol):
    """Kinds on another machine, which is asked nothing while something is wrong that can be seen here."""

    def check_first(self, code: "CodeList") -> None:
        """Raises BadInput for code that cannot go there."""


@runtime_checkable
class Mends(Protocol):
    """Kinds where a submitter that was killed may have left something half done."""

    def mend(self, attempts: Sequence[tuple[RunDir, AttemptDir]]) -> None:
        """Hand over what was not, end what was handed over twice, write a last word where nobody else will."""


@runtime_checkable
class SubmitsTogether(Protocol):
    """Kinds that take several runs as one job."""

    def most_together(self) -> int:
        """How many runs with equal demands may be handed over as one."""


@runtime_checkable
class HasQueue(Protocol):
    """Kinds that can have a run wait as its spec says."""

    def queue_problems(self, spec: "JobSpec", awaited: "Sequence[AwaitedRun]") -> "list[Misfit]":
        """What of its `queue` options cannot be had there, nor of following these runs."""


@runtime_checkable
class KeepsRunsElsewhere(Protocol):
    """Kinds whose runs have, where they are, another folder than here."""

    def runs_folder(self, spec: "JobSpec") -> str:
        """Which their folders lie in, by their ids, on every machine that sees one."""


@runtime_checkable
class WarmsUp(Protocol):
    """Kinds that can make ready for runs of which one process submits many, and have them share what they import."""

    def warm_up(self, plan: "Plan", folder: Path) -> bool:
        """Have it imported for all runs like this which this process submits from now on, or find that it cannot be.

        False as long as it is worth while to wait for that. `folder`: with `code/` as these runs have it.
        """

    def expect(self, run_dir: Path) -> None:
        """The next run that this process submits will have this folder: what can be started before is started now."""


@runtime_checkable
class KeepsOrder(Protocol):
    """Kinds that know of runs which are submitted together, without taking them as one job."""

    most_in_order: int


@runtime_checkable
class Releases(Protocol):
    """Kinds that hold a run until a person lets it go."""

    def release(self, run: RunDir, attempt: AttemptDir) -> None:
        """Let it go, whether it was held or not."""


@runtime_checkable
class CopiesCode(Protocol):
    """Kinds that have a run's code copied from the store before its ranks start, where the submit left that to them."""

    most_files_at_once: int  # of code that a submit still copies itself


@runtime_checkable
class KeepsFilesElsewhere(Protocol):
    """Kinds whose runs write on other machines: the run's folder here holds what was brought."""

    def bring_logs(self, run: RunDir) -> None:
        """Have what ranks have written so far in the run's folder here."""

    def fetch(self, run: RunDir, checkpoint: str) -> list[str]:
        """Have logs, metrics and a checkpoint (`newest`, `none`, a step) here; a line for each thing that came."""

    def bring_newest(self, run: RunDir) -> None:
        """Have the newest checkpoint and the logs here: the run is to go on somewhere else."""

    def bring_outputs(self, run: RunDir, draft: Path, frozen: Collection[str]) -> list[Path]:
        """Have what ranks have written beside their code, the frozen files, below this folder; one for each machine."""


@dataclass(frozen=True, slots=True)
class KeptThere:
    """What another machine keeps of runs; or why it could not be asked."""

    where: str
    runs: dict[RunId, int]  # bytes of each, as far as it is there; of who is silent: 0, for nobody knows
    code: int = 0  # bytes of frozen code that no other run there needs
    live: tuple[RunId, ...] = ()  # of which processes are there: nothing of these goes
    silent: str = ""


@runtime_checkable
class TidiesElsewhere(Protocol):
    """Kinds whose runs leave files on other machines, and which can take them away there."""

    def tidy(self, runs: Sequence[RunDir], *, remove: bool) -> list[KeptThere]:
        """What each machine keeps of these; `remove`: it is taken away there, but for what lives, and that was it."""


@runtime_checkable
class ListsCheckpoints(Protocol):
    """Kinds that can say which checkpoints there are where the run is."""

    def checkpoints(self, run: RunDir, *, verify: bool) -> "list[Checkpoint]":
        """Those of a run whose newest attempt is there; with `verify` every byte is read there and compared."""


@runtime_checkable
class Forgives(Protocol):
    """Kinds whose live runs must hear that lost nodes may be used again."""

    def forgive(self, run: RunDir, hosts: Collection[str]) -> None:
        """Let whoever carries the run out know; no hosts: all of them."""


@runtime_checkable
class GivesUpHosts(Protocol):
    """Kinds where a person's word that a host is gone for good is needed to go on."""

    def cancel_without(self, run: RunDir, attempt: AttemptDir, gone: Collection[str]) -> CancelReport:
        """End the attempt without the word of these hosts, if they are silent."""


@runtime_checkable
class Discovers(Protocol):
    """Kinds that can find a run which another machine of the user submitted."""

    def discover(self, ref: str) -> Path | None:
        """The folder made here for the run of this id, or of the only one that begins so."""


@runtime_checkable
class Reaches(Protocol):
    """Kinds where a program can be started on a node of a run that is under way, beside its ranks."""

    def reach(self, run: RunDir, attempt: AttemptDir, node: int) -> "Running":
        """Start `launcher.clusters.inside.there` for this node, on it. Raises Unreachable, and Refused."""


@runtime_checkable
class Tunnels(Protocol):
    """Kinds whose nodes are reached over a connection that can carry others."""

    def line_to(self, run: RunDir, node: int) -> "Line":
        """Return the connection to the machine that this node is. Raises Unreachable, and Refused."""


@runtime_checkable
class ShowsHosts(Protocol):
    """Kinds that can say what of their machines is free, and who has the others."""

    def hosts_now(self, spec: "JobSpec") -> list[HostNow]:
        """Each machine that a job with these options could get. Raises LaunchError where nobody answers."""


@runtime_checkable
class HasDoctor(Protocol):
    """Kinds that can be looked at for what is in the way of runs."""

    doctor: str  # the module that does it, a Doctor: nobody else pays for it


class Doctor(Protocol):
    """What a module has that looks at a kind of cluster."""

    def check_up(self, wish: "DoctorWish", tell: "Callable[[str], None]") -> "Iterator[Finding]":
        """Findings as they are made; `tell` hears what takes long. Raises BadInput of options that are of no use."""
