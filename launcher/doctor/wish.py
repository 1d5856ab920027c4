"""What a person wants to have looked at, whatever kind of cluster it is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DoctorWish:
    """One check-up."""

    runs_root: Path
    python: str  # the interpreter that would run ranks
    trial: bool = False  # have nodes, or all hosts, try it out
    nodes: int | None = None  # of so many
    within_s: float = 60.0  # so long it waits for them
    chosen: Mapping[str, str] = field(default_factory=dict)  # what a job asks for: partition, account, qos, interface
