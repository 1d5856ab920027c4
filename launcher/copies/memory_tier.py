"""The folder in this node's memory (/dev/shm) where ranks keep their newest snapshot between saves to disk. It outlives
ranks and agents, and a later attempt that follows by itself takes it over. The parameter `memory` is the folder that
holds all these folders.

    /dev/shm/launch-<run>-<digest of its folder>-n00-a0001     one per run, node and attempt

A new generation finds the folder after the ranks have ended, and a new agent after its predecessor was killed. An
attempt that follows by itself takes the folder over by renaming it, so that an older attempt that may still live can no
longer write there. An attempt that a user started (with other arguments, or after a run on another machine) begins
without it.

An agent removes its folder when it ends; otherwise its supervisor does. If both were killed, the next agent of any run
of the user on this node does. A folder is left alone if its agent may be alive or may have a successor without a user's
action.
"""

import contextlib
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from launcher.run.attempts import newest
from launcher.run.durable import readable, write_record
from launcher.run.identity import alive, this_process
from launcher.run.layout import RunDir
from launcher.run.records import AttemptEnd, Handle, ProcessId

# A folder is made by mkdir, so never a stranger's, and one that is there is used only where it is ours.
MEMORY = Path("/dev/shm")  # noqa: S108 # nosec B108 - see above
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TAIL = re.compile(r"n([0-9]{2,})-a([0-9]{4,})(?:-[0-9a-f]{16})?")
_NAME = re.compile(rf"launch-.+-[0-9a-f]{{12}}-{_TAIL.pattern}")
_OWNER = "owner.json"


class Owner(msgspec.Struct, frozen=True):
    """The record in one of these folders: the run whose snapshots it has, and the agent that uses it now."""

    run_dir: str  # absolute
    agent: ProcessId


@dataclass(frozen=True, slots=True)
class Tier:
    """The memory folder of one node in one attempt."""

    path: Path
    node: int
    attempt: int


def open_tier(run_dir: Path, node: int, attempt: int, *, inherit: bool, memory: Path = MEMORY) -> Path:
    """Return the node's memory folder for the attempt, private to the user; folders of older attempts are removed.

    With `inherit` the attempt continues the one before, which was cut short, and takes over the folder of that one by
    renaming it. Raise OSError if no memory is available.
    """
    mine = None
    for tier in _tiers(run_dir, memory):
        if tier.node != node or tier.attempt > attempt:
            continue
        if mine is None and tier.attempt == attempt:
            mine = tier.path
        elif mine is None and inherit and tier.attempt == attempt - 1:
            mine = _take_over(tier.path, memory / _folder_name(run_dir, node, attempt, _nonce()))
        else:
            remove_folder(tier.path)
    mine = mine or _make(memory, run_dir, node, attempt)
    write_record(mine / _OWNER, Owner(str(run_dir), this_process()), fsync=False)
    return mine


def close_tier(run_dir: Path, attempt: int, node: int | None = None, memory: Path = MEMORY) -> None:
    """Remove the memory folders of this attempt and older ones, of one node or, for None, of all nodes on this machine.
    A newer attempt's folder stays.
    """
    for tier in _tiers(run_dir, memory):
        if tier.attempt <= attempt and node in (None, tier.node):
            remove_folder(tier.path)


def owned(memory: Path = MEMORY) -> Iterator[tuple[Owner, Tier]]:
    """Yield (owner, folder) for all memory folders of this user in which a record names the owner: the run, and the
    agent.
    """
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(memory)):
            found = _NAME.fullmatch(name)
            owner = readable(memory / name / _OWNER, Owner) if found and _make_private(memory / name) else None
            if found is not None and owner is not None and name.startswith(_prefix(Path(owner.run_dir))):
                yield owner, Tier(memory / name, int(found[1]), int(found[2]))


def remove_folder(path: Path) -> None:
    """Remove a memory folder as far as possible: another process may still use it, and the end of the run removes what
    remains.
    """
    shutil.rmtree(path, ignore_errors=True)


def _tiers(run_dir: Path, memory: Path) -> Iterator[Tier]:
    """Yield all memory folders of this run, the newest attempt first."""
    prefix = _prefix(run_dir)
    try:
        names = [name for name in os.listdir(memory) if name.startswith(prefix)]
    except FileNotFoundError:
        return
    found = [(name, tail) for name in names if (tail := _TAIL.fullmatch(name, len(prefix)))]
    for name, tail in sorted(found, key=lambda one: (-int(one[1][2]), one[0])):
        if _make_private(memory / name):
            yield Tier(memory / name, int(tail[1]), int(tail[2]))


def _prefix(run_dir: Path) -> str:
    """Return the beginning of the names of the run's memory folders, which contains a digest of its directory."""
    digest = hashlib.sha256(os.fsencode(run_dir)).hexdigest()[:12]
    return f"launch-{run_dir.name}-{digest}-"


def _nonce() -> str:
    """Return random letters that make a name unique."""
    return os.urandom(8).hex()


def _folder_name(run_dir: Path, node: int, attempt: int, nonce: str = "") -> str:
    """Return the name of a memory folder; `nonce` are random letters for a second folder of the same node and
    attempt.
    """
    return f"{_prefix(run_dir)}n{node:02d}-a{attempt:04d}" + (f"-{nonce}" if nonce else "")


def _make(memory: Path, run_dir: Path, node: int, attempt: int) -> Path:
    """Create the memory folder of this node and attempt, and return its path. If a folder with its name exists, random
    letters are added to the name.
    """
    path = memory / _folder_name(run_dir, node, attempt)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        path = memory / _folder_name(run_dir, node, attempt, _nonce())
        path.mkdir(mode=0o700)
    path.chmod(0o700)  # whatever the umask
    return path


def _take_over(path: Path, new: Path) -> Path | None:
    """Rename `path`, an older attempt's folder, to `new`, its name for the new attempt, and return `new`. Return None
    if the older attempt's agent has just removed the folder.
    """
    try:
        os.rename(path, new)
    except FileNotFoundError:
        return None
    return new


def _make_private(path: Path) -> bool:
    """Make an existing folder of this user private (mode 0700) and return True. Return False, and change nothing, if
    `path` is a link, no folder, or another user's.
    """
    try:
        fd = os.open(path, _FOLDER)
    except OSError:
        return False  # a link, a file, or a stranger's folder
    try:
        if os.fstat(fd).st_uid != os.getuid():
            return False
        if stat.S_IMODE(os.fstat(fd).st_mode) != 0o700:
            os.fchmod(fd, 0o700)
        return True
    finally:
        os.close(fd)


def sweep(memory: Path = MEMORY) -> list[Path]:
    """Remove memory folders whose agent is dead and whose run has ended, was deleted or has lost its supervisor, so
    that no later attempt starts by itself; return their paths.
    """
    found = [tier.path for owner, tier in owned(memory) if _is_abandoned(owner)]
    for path in found:
        remove_folder(path)
    return found


def _is_abandoned(owner: Owner) -> bool:
    """Return whether the folder's agent is dead and no later agent of its run can start unless a user resumes the
    run.
    """
    run = RunDir(Path(owner.run_dir))
    if alive(owner.agent) is not False:
        return False
    try:
        last = newest(run) if run.path.exists() else None
    except OSError:  # another run's folder cannot be read: undecidable, and no concern of this run
        return False
    if last is None:
        return run.path.parent.is_dir()  # it was removed; else a disk may only be away
    end, handle = readable(last.end, AttemptEnd), readable(last.handle, Handle)
    supervisor = handle.supervisor if handle is not None else None
    return (end is not None and end.state.ended) or (supervisor is not None and alive(supervisor) is False)
