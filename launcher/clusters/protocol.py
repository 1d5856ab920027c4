"""What a cluster is to the rest: five verbs. One contract suite runs over every implementation."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from launcher.plan.facts import Machine
from launcher.plan.model import Plan
from launcher.rundir.layout import AttemptDir, RunDir


@dataclass(frozen=True, slots=True)
class CancelReport:
    """What a cancel did: a line per thing that was ended."""

    ended: tuple[str, ...]
    already: bool  # nothing was left to end


class Engagement(Protocol):
    """Everything that can be done for an attempt before its intent is on disk."""

    def go(self, attempt: int) -> None:
        """The intent is on disk: carry the attempt out. Returns at once."""

    def abandon(self) -> None:
        """There will be no attempt."""


class Cluster(Protocol):
    """A place where runs go."""

    kind: str

    def machine(self) -> Machine:
        """What one node offers."""

    def engage(self, run_dir: Path) -> Engagement:
        """Prepare to start an attempt of the run that will be, or is, in this folder."""

    def alive(self, attempt: AttemptDir) -> bool | None:
        """Whether the attempt is carried out now; None where that cannot be known."""

    def cancel(self, run: RunDir, attempt: AttemptDir, plan: Plan) -> CancelReport:
        """End the attempt for good: first by asking, then surely; returns when nothing of it is left."""
