"""Copy growing files from another machine: only what follows the bytes that this machine has. A file's name is its path
relative to `root`, the run's folder.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from launcher.errors import LaunchError
from launcher.remote.rpc.wire import Size
from launcher.run.durable import make_dir, write_all

_MOST_ANSWERS = 4096  # of eight mebibytes or of a few thousand files each
_FILE = re.compile(r"[a-z]+(/(?!\.{1,2}(/|\Z))[^/\x00-\x1f\x7f]{1,200}){1,6}")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on how much is transferred: bytes and files in one answer, after which the rest is asked for again; bytes
    in all answers together, and files that are new here, beyond which `bring` raises LaunchError.
    """

    answer_bytes: int = 8 << 20
    answer_files: int = 5000
    at_once_bytes: int = 16 << 30  # in all answers together
    new_files: int = 100_000


LIMITS = Limits()


class Tail(NamedTuple):
    """A piece of a file, named relative to the run's folder, with the offset at which it belongs."""

    name: Annotated[str, msgspec.Meta(max_length=4096)]  # relative to the run's folder
    at: Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
    content: bytes

    @property
    def is_plainly_named(self) -> bool:
        """Return whether the name is safe to write to: a path of two to seven parts below the run's folder, the first
        one of lower-case letters, and none `.`, `..` or with a control character.
        """
        return _FILE.fullmatch(self.name) is not None


# What is there, but for so many bytes of each file by name; and whether there is more.
Ask = Callable[[dict[str, int]], tuple[Iterable[Tail], bool]]


class Part(msgspec.Struct, frozen=True):
    """A piece of a file that is sent: the file's name, the offset `at` of the piece in the file, and its size. The
    bytes of all pieces follow the list of parts, in the same order.
    """

    name: str
    at: Size
    size: Size


def parts_of(found: Iterable[Tail]) -> tuple[Part, ...]:
    """Return (name, offset, size) of each piece of a file in `found`: the list that is sent before their contents."""
    return tuple(Part(one.name, one.at, len(one.content)) for one in found)


def grown(
    root: Path, folders: Sequence[str], known: Mapping[str, int], limits: Limits = LIMITS
) -> tuple[list[Tail], bool]:
    """Return (new pieces of the files below these folders of `root`, whether to ask again). A piece is what a file has
    beyond the bytes that the receiver has already, whose number is in `known` by the file's name.

    The receiver has to ask again if the pieces have reached one of the limits of an answer.
    """
    return grown_of(root, _files(root, folders), known, limits)


def grown_of(
    root: Path, files: Iterable[Path], known: Mapping[str, int], limits: Limits = LIMITS
) -> tuple[list[Tail], bool]:
    """Return (pieces of these files below `root`, whether to ask again): a piece is what a file has beyond the bytes
    that the receiver has of it, and the number of these is in `known`, by the file's name.

    To ask again is necessary if the pieces have reached one of the limits of an answer.
    """
    found: list[Tail] = []
    left = limits.answer_bytes
    for path in files:
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
        if left <= 0 or len(found) == limits.answer_files:
            return found, True
    return found, False


def parted(parts: Iterable[Part], content: bytes) -> Iterator[Tail]:
    """Yield the piece of a file that each of `parts` names, cut from `content`, which has the bytes of all in order;
    raise ValueError if their sizes do not add up to it.
    """
    start = 0
    for part in parts:
        yield Tail(part.name, part.at, content[start : start + part.size])
        start += part.size
    if start != len(content):
        raise ValueError(f"{len(content)} bytes for files of {start}")


def put(root: Path, folders: Sequence[str], tail: Tail) -> None:
    """Write a piece at its offset into the copy of its file below `root`, which is created if it is missing. Raise
    LaunchError if its name is not below one of the folders, or if it cannot be written here.
    """
    steps = tail.name.split("/")
    if {"", ".", ".."} & set(steps) or not any(f"{tail.name}/".startswith(f"{folder}/") for folder in folders):
        raise LaunchError(f"{tail.name[:100]!r} is no file that was asked for")
    path = root.joinpath(*steps)
    try:
        make_dir(path.parent)
        fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except (ValueError, OSError) as error:  # too long, with a NUL, a folder of that name
        raise LaunchError(f"{tail.name[:100]!r} cannot be written here: {error}") from error
    try:
        os.lseek(fd, tail.at, os.SEEK_SET)
        write_all(fd, tail.content)
    finally:
        os.close(fd)


def bring(
    root: Path, folders: Sequence[str], known: Mapping[str, int], ask: Ask, who: str, limits: Limits = LIMITS
) -> None:
    """Copy to below `root` what the machine `who` has below the folders and this machine lacks: new files, and the ends
    of files that have grown. It is requested by repeated calls of `ask`.

    `known` is the number of bytes of each file, by name, that are here. `ask` takes these and returns (pieces, whether
    there is more). Raise LaunchError for bytes that were not requested, and if there is more than `limits` allows;
    pieces that came before are kept.
    """
    mine, left = dict(known), limits.at_once_bytes
    for _ in range(_MOST_ANSWERS):
        found, more = ask(mine)
        brought = False
        for tail in found:
            if tail.at != mine.get(tail.name, 0):
                raise LaunchError(f"{who}: {tail.name[:100]!r} from byte {tail.at} on was not asked for")
            if tail.name not in mine and len(mine) - len(known) >= limits.new_files:
                raise LaunchError(f"{who}: has more than {limits.new_files} files that are not here")
            try:
                put(root, folders, tail)
            except LaunchError as error:
                raise LaunchError(f"{who}: {error}") from error
            brought = brought or bool(tail.content) or tail.name not in mine
            mine[tail.name] = tail.at + len(tail.content)
            left -= len(tail.content)
        if left <= 0:
            break
        if not more or not brought:
            return
    raise LaunchError(f"{who}: has more than is brought at once")


def sizes(root: Path, folders: Sequence[str]) -> dict[str, int]:
    """Return the size of each file below the folders by its name."""
    return {str(path.relative_to(root)): path.stat().st_size for path in _files(root, folders)}


def _files(root: Path, folders: Sequence[str]) -> list[Path]:
    """Return the paths, with `root`, of the regular files at any depth below these folders, given relative to it.

    Files whose names are not valid Unicode are left out. Raise LaunchError for a folder outside the run.
    """
    found: list[Path] = []
    for folder in folders:
        if {"", ".", ".."} & set(folder.split("/")):
            raise LaunchError(f"{folder[:100]!r} is no folder of a run")
        place = root / folder
        found += sorted(path for path in place.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in found if is_text(str(path.relative_to(root)))]


def is_text(name: str) -> bool:
    """Return whether the file name is valid Unicode; others cannot be sent."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
