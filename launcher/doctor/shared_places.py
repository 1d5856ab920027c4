"""Folders that a cluster's nodes have to see as this machine does."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.doctor.findings import Finding, ok, warning
from launcher.doctor.wish import DoctorWish
from launcher.doctor.words import all_of
from launcher.rundir.file_systems import FileSystem, Reach, file_system_of

_SYSTEM = Path("/usr")  # every machine has its own


@dataclass(frozen=True, slots=True)
class SharedPlace:
    """A folder that nodes need to see."""

    path: str
    file_system: FileSystem


def shared_findings(wish: DoctorWish, trial: str, seen_on: Sequence[str], *, tried: bool) -> Iterable[Finding]:
    """Where runs and programs are. `trial`: the command that has nodes look; `tried`: whether any have;
    `seen_on`: those on which all of it was found."""
    runs_root, programs = [_place(wish.runs_root)], [_place(path) for path in _programs(Path(wish.python))]
    yield place_finding("runs root", runs_root, trial, seen_on, tried=tried)
    yield place_finding("programs", programs, trial, seen_on, tried=tried)


def _place(path: Path) -> SharedPlace:
    return SharedPlace(str(path), file_system_of(path))


def _programs(rank_python: Path) -> list[Path]:
    """Where the launcher, this Python and the Python of ranks are."""
    apart: list[Path] = []
    code = Path(__file__).resolve().parents[2]
    for path in (code, Path(sys.prefix), Path(sys.base_prefix), rank_python.parent.parent):
        if path != _SYSTEM and not any(path.is_relative_to(other) for other in apart):
            apart.append(path)
    return apart


def place_finding(
    about: str, places: Sequence[SharedPlace], trial: str, seen_on: Sequence[str] = (), *, tried: bool = False
) -> Finding:
    text = all_of([f"{place.path} ({place.file_system.kind})" for place in places])
    if seen_on:
        return ok(about, f"{text}: seen on {all_of(seen_on)}")
    reaches = {place.file_system.reach for place in places}
    if reaches == {Reach.NETWORK}:
        return ok(about, text)
    doubtful = [place for place in places if place.file_system.reach is not Reach.NETWORK]
    text = all_of([f"{place.path} ({place.file_system.kind})" for place in doubtful])
    them = "it" if len(doubtful) == 1 else "them"
    why = f"this machine's own, nodes may not see {them}" if Reach.THIS_MACHINE in reaches else f"may nodes see {them}?"
    hint = "see what the trial says of it" if tried else f"`{trial}` has a node look"
    return warning(about, f"{text}: {why}", hint)
