"""What a cluster is to the rest: five verbs. One contract suite runs over every implementation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import ClusterWord

if TYPE_CHECKING:
    from launcher.plan.facts import Machine
    from launcher.plan.model import Plan
    from launcher.spec.model import JobSpec


@dataclass(frozen=True, slots=True)
class CancelReport:
    """What a cancel did: a line per thing that was ended."""

    ended: tuple[str, ...]
    already: bool  # nothing was left to end


@dataclass(frozen=True, slots=True)
class Preview:
    """What a cluster would be handed, and what it says of it without being handed anything."""

    script: str
    answer: str


class Engagement(Protocol):
    """Everything that can be done for an attempt before its intent is on disk."""

    def go(self, attempt: int) -> None:
        """The intent is on disk: carry the attempt out. Returns at once."""

    def abandon(self) -> None:
        """There will be no attempt."""


class Cluster(Protocol):
    """A place where runs go."""

    kind: str
    most_together: int  # how many runs with the same demands may be handed over as one job

    def machine(self, spec: "JobSpec") -> "Machine":
        """What one node offers to this job."""

    def preview(self, plan: "Plan") -> Preview | None:
        """What `go` would hand over; None where that is no text."""

    def engage(self, run_dir: Path) -> Engagement:
        """Prepare to start an attempt of the run that will be, or is, in this folder."""

    def look(self, attempts: Sequence[tuple[RunDir, AttemptDir]]) -> list[ClusterWord | None]:
        """What the cluster says of each; None where it knows no more than the run's folder and processes do."""

    def cancel(self, run: RunDir, attempt: AttemptDir, plan: "Plan") -> CancelReport:
        """End the attempt for good: first by asking, then surely; returns when nothing of it is left."""
