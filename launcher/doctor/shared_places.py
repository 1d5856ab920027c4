"""Folders that a cluster's nodes have to see as this machine does."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from launcher.doctor.findings import Finding, ok, warning
from launcher.doctor.wish import DoctorWish
from launcher.doctor.words import all_of
from launcher.rundir.file_systems import FileSystem, Reach, file_system_of

_SYSTEM = Path("/usr")  # every machine has its own


def shared_findings(wish: DoctorWish, trial: str, seen_on: Sequence[str], *, tried: bool) -> Iterable[Finding]:
    """Where runs and programs are. `trial`: the command that has nodes look; `tried`: whether any have;
    `seen_on`: those on which all of it was found."""
    for about, paths in (("runs root", [wish.runs_root]), ("programs", _programs(Path(wish.python)))):
        places = {str(path): file_system_of(path) for path in paths}
        yield place_finding(about, places, trial, seen_on, tried=tried)


def _programs(rank_python: Path) -> list[Path]:
    """Where the launcher, this Python and the Python of ranks are."""
    apart: list[Path] = []
    code = Path(__file__).resolve().parents[2]
    for path in (code, Path(sys.prefix), Path(sys.base_prefix), rank_python.parent.parent):
        if path != _SYSTEM and not any(path.is_relative_to(other) for other in apart):
            apart.append(path)
    return apart


def place_finding(
    about: str, places: Mapping[str, FileSystem], trial: str, seen_on: Sequence[str] = (), *, tried: bool = False
) -> Finding:
    text = all_of([f"{path} ({there.kind})" for path, there in places.items()])
    if seen_on:
        return ok(about, f"{text}: seen on {all_of(seen_on)}")
    reaches = {there.reach for there in places.values()}
    if reaches == {Reach.NETWORK}:
        return ok(about, text)
    doubtful = [f"{path} ({there.kind})" for path, there in places.items() if there.reach is not Reach.NETWORK]
    them = "it" if len(doubtful) == 1 else "them"
    why = f"this machine's own, nodes may not see {them}" if Reach.THIS_MACHINE in reaches else f"may nodes see {them}?"
    hint = "see what the trial says of it" if tried else f"`{trial}` has a node look"
    return warning(about, f"{all_of(doubtful)}: {why}", hint)
