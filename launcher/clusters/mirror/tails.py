"""What is new in files that only grow: log by log, from where the other side's copy ends."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from launcher.errors import LaunchError
from launcher.rundir.durable import make_dir, write_all

_MOST = 8 << 20  # of one answer


class Tail(NamedTuple):
    """Bytes of a file, and where in it they belong."""

    name: str  # from the run's folder
    at: int
    content: bytes


def grown(root: Path, folders: Sequence[str], known: Mapping[str, int]) -> tuple[list[Tail], bool]:
    """The new ends of all files below these folders, as much as one answer may hold; and whether there is more."""
    found: list[Tail] = []
    left = _MOST
    for path in _files(root, folders):
        name = str(path.relative_to(root))
        at = known.get(name, 0)
        try:
            size = path.stat().st_size
            if size <= at and name in known:
                continue
            with path.open("rb") as file:
                file.seek(at)
                piece = file.read(left)
        except FileNotFoundError:
            continue
        found.append(Tail(name, at, piece))
        left -= len(piece)
        if left <= 0:
            return found, True
    return found, False


def put(root: Path, folders: Sequence[str], tail: Tail) -> None:
    """Add it to the copy here. Raises LaunchError for a name that is not below one of these folders."""
    steps = tail.name.split("/")
    if {"", ".", ".."} & set(steps) or steps[0] not in folders:
        raise LaunchError(f"{tail.name[:100]!r} is no file that was asked for")
    path = root.joinpath(*steps)
    make_dir(path.parent)
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.lseek(fd, tail.at, os.SEEK_SET)
        write_all(fd, tail.content)
    finally:
        os.close(fd)


def sizes(root: Path, folders: Sequence[str]) -> dict[str, int]:
    """How much of each file there is."""
    return {str(path.relative_to(root)): path.stat().st_size for path in _files(root, folders)}


def _files(root: Path, folders: Sequence[str]) -> list[Path]:
    found: list[Path] = []
    for folder in folders:
        if {"", ".", ".."} & set(folder.split("/")):
            raise LaunchError(f"{folder[:100]!r} is no folder of a run")
        place = root / folder
        found += sorted(path for path in place.rglob("*") if path.is_file() and not path.is_symlink())
    return found
