"""Copy the logs and metrics that ranks write on other machines into the run's folder on this machine. An attempt is one
batch job, or one start on a pool's hosts.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from launcher.copies.mirror import tails
from launcher.errors import LaunchError
from launcher.run.attempts import attempts
from launcher.run.durable import read_record, write_bytes
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import AttemptEnd
from launcher.status.facts import role_dirs

FOLDERS = ("logs", "metrics")
ALL = 1 << 62  # more than there is of any file

Theirs = Callable[[AttemptDir], bool]  # whether an attempt's ranks write there; those of the others write here
Bring = Callable[[Sequence[AttemptDir]], Mapping[str, LaunchError]]  # from where these were; who could not be asked

_asked: set[Path] = set()  # who follows what a run writes here does not wait for the machines that it left every time


def bring_logs(run: RunDir, theirs: Theirs, bring: Bring) -> None:
    """Copy what is new of the remote attempts' logs and metrics by one call of `bring`, which takes these attempts and
    returns its errors by machine; they are not raised here.

    Once the run has ended, or has continued here, and all was copied without an error, write a file into each of these
    attempts, so that later calls do nothing. If the run has continued here, each process tries this only once, even if
    it fails. `theirs` tells whether an attempt's ranks wrote on other machines.
    """
    every = attempts(run)
    there = [attempt for attempt in every if theirs(attempt)]
    if not there or there[-1].fetched.exists():
        return
    moved_on = there[-1] != every[-1]
    if moved_on:
        if run.path in _asked:
            return
        _asked.add(run.path)
    end = read_record(every[-1].end, AttemptEnd)  # looked at first: what was written before it is then fetched
    troubles = bring([attempt for attempt in there if not attempt.fetched.exists()])
    if (moved_on or (end is not None and end.state.ended)) and not troubles:
        for attempt in there:
            write_bytes(attempt.fetched, b"")


def known(run: RunDir, theirs: Theirs) -> dict[str, int]:
    """Return how many bytes of each file of logs and metrics this machine has, by its path in the run's folder; these
    bytes are not fetched again.

    A file that ranks on this machine write counts as known completely, because a remote file may have the same name.
    `theirs` tells whether an attempt's ranks wrote on other machines.
    """
    every = attempts(run)
    there = [attempt for attempt in every if theirs(attempt)]
    ours = tuple(f"logs/a{attempt.number:04d}." for attempt in every if attempt not in there)
    marks = tuple(f".a{attempt.number:04d}." for attempt in there)

    def is_ours(name: str) -> bool:
        """Return whether ranks on this machine write the file."""
        if name.startswith(f"{run.roles.name}/"):
            return every[-1] not in there
        if name.startswith("metrics/"):
            return every[-1] not in there and not any(mark in name for mark in marks)
        return name.startswith(ours)

    sizes = tails.sizes(run.path, folders_of(run))
    return {name: ALL if is_ours(name) else size for name, size in sizes.items()}


def size(run: RunDir) -> int:
    """Return the size in bytes of all logs and metrics in the run's folder on this machine, those of its other roles
    included.
    """
    return sum(tails.sizes(run.path, folders_of(run)).values())


def folders_of(run: RunDir) -> tuple[str, ...]:
    """Return the folders with logs and metrics as paths relative to the run's folder: its own, and those of its side
    roles, the programs that run beside its main one.
    """
    roles = [f"{run.roles.name}/{path.name}/{folder}" for path in role_dirs(run) for folder in FOLDERS]
    return (*FOLDERS, *roles)
