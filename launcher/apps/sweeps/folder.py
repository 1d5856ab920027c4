"""The folder of a sweep: its file names, its records, and how to find it by its id."""

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from launcher.errors import BadInput, NoSuchRun
from launcher.ids import LAST, RunId, is_run_id, parse_run_id
from launcher.run.durable import read_record, readable
from launcher.run.identity import alive
from launcher.run.layout import NamedFile
from launcher.run.records import ProcessId
from launcher.run.registry import register, state_folder
from launcher.spec.model import SweepOptions, Word

_SWEEPS = "sweeps"  # the name of the user's list of them
_TRIAL = re.compile(r"(.+)-t[0-9]{4,}")
Point = dict[str, Word]  # the value of each option that a trial has


@dataclass(frozen=True, slots=True)
class SweepDir:
    """The paths in a sweep's folder, `.sweeps/ID/` in the folder of runs, beside the runs of its trials."""

    path: Path

    record = NamedFile("sweep.json")
    spec = NamedFile("spec.yaml")  # as it was when the sweep started
    code = NamedFile("code")  # which every trial runs
    journal = NamedFile("journal.log")  # of Optuna
    wanted = NamedFile("wanted.json")  # how many trials the user wants
    order = NamedFile("order.json")  # the user's last order: to stop the sweep, or to resume what was stopped
    state = NamedFile("state.json")  # as the conductor last wrote it
    lock = NamedFile(".lock")  # held by the process that conducts the sweep
    conductor = NamedFile("conductor.json")  # the process that conducts the sweep
    log = NamedFile("conductor.log")  # of that process

    @property
    def id(self) -> RunId:
        """The id of the sweep."""
        return parse_run_id(self.path.name)

    @property
    def runs(self) -> Path:
        """The folder with the runs of the sweep's trials."""
        return self.path.parent.parent


class SweepRecord(msgspec.Struct, frozen=True):
    """The settings of a sweep, which are fixed when it starts: `points` are all points of a grid or a file (None:
    Optuna chooses), and `variables` are environment variables by which the user's files are found.
    """

    id: RunId
    project: str  # the folder whose code was frozen
    on: str  # the cluster
    overrides: tuple[str, ...]  # values of --set, for every trial
    options: SweepOptions
    seed: int
    own_folders: tuple[str, ...]  # from which the project's own packages are imported
    points: tuple[Point, ...] | None  # all points of a grid or a file; None: Optuna chooses
    began_at: float  # Unix time
    variables: dict[str, str] = {}  # environment variables with paths to the user's files, made absolute


class Wanted(msgspec.Struct, frozen=True):
    """How many trials the sweep is to have in all, those that have ended included; the user may add some later."""

    trials: int


class SweepOrder(msgspec.Struct, frozen=True):
    """The user's last order: to stop the sweep, or to resume what was stopped."""

    stop: bool  # False: resume what was stopped


class TrialNote(msgspec.Struct, frozen=True):
    """A trial as it is shown to the user. `state` is running, paused (it may continue), complete, pruned (stopped
    early) or failed, and `params` are the chosen options.
    """

    number: int
    state: str  # running, paused (it may continue), complete, pruned, failed
    run: str  # the id of its run
    params: Point
    value: float | None = None  # of the metric; None: it has none
    step: int | None = None  # the newest one with a reported value
    why: str = ""  # the reason why it failed, or ""


class SweepState(msgspec.Struct, frozen=True):
    """The state of a sweep as its conductor last wrote it: running, stopped, succeeded or failed, and its trials."""

    state: str  # running, stopped, succeeded, failed
    message: str  # why it is in its state
    trials: tuple[TrialNote, ...]
    updated_at: float  # Unix time


def conductor_lives(sweep: SweepDir) -> bool | None:
    """Return whether the process that conducts the sweep is alive; None if it is on another machine, where that cannot
    be checked.
    """
    process = readable(sweep.conductor, ProcessId)
    return process is not None and alive(process)


def record_of(sweep: SweepDir) -> SweepRecord:
    """Return the sweep's record; raise NoSuchRun if there is none, and Damaged if it cannot be decoded."""
    record = read_record(sweep.record, SweepRecord)
    if record is None:
        raise NoSuchRun(f"{sweep.path}: no sweep is there")
    return record


def register_sweep(sweep: SweepDir) -> None:
    """Register the sweep's id with its folder, by which the user's commands find it; raise FileExistsError if the id is
    taken.
    """
    register(sweep.id, sweep.path, among=_SWEEPS)


def known_sweeps() -> list[SweepDir]:
    """Return all sweeps of this user whose record can be read, the newest last."""
    try:
        names = [name for name in os.listdir(_links()) if is_run_id(name)]
    except FileNotFoundError:
        return []
    found = [SweepDir(Path(os.readlink(_links() / name))) for name in names]
    began = {one.path: record.began_at for one in found if (record := readable(one.record, SweepRecord)) is not None}
    return sorted((one for one in found if one.path in began), key=lambda one: began[one.path])


def sweep_of_trial(run: str, path: Path) -> str | None:
    """Return the id of the sweep to which the run of a trial belongs, or None if it is not the run of a trial.

    It is one if its id `run` is a sweep's id with `-t` and a number of four digits or more, and its folder `path` is in
    the folder for the runs of that sweep. A sweep that this user's list of sweeps lacks is not found.
    """
    if (found := _TRIAL.fullmatch(run)) is None or not is_run_id(found[1]):
        return None
    with contextlib.suppress(OSError):
        if SweepDir(Path(os.readlink(_links() / found[1]))).runs == path.parent:
            return found[1]
    return None


def find_sweep(ref: str) -> SweepDir:
    """Return the sweep with this id or unique beginning of an id, or the newest for `last`.

    Raise NoSuchRun if there is none, and BadInput if several ids begin so.
    """
    known = known_sweeps()
    if not known:
        raise NoSuchRun("there is no sweep yet", "hint: launch sweep FILE")
    if ref == LAST:
        return known[-1]
    found = [one for one in known if one.id == ref] or [one for one in known if ref and one.id.startswith(ref)]
    if len(found) == 1:
        return found[0]
    hint = f"hint: there is {', '.join(one.id for one in known[-8:])}"
    if found:
        raise BadInput(f"{ref}: expected the id of one sweep, got the beginning of {len(found)}", hint)
    raise NoSuchRun(f"{ref[:100]!r}: no such sweep", hint)


def _links() -> Path:
    """Return the folder in which sweeps are registered."""
    return state_folder() / _SWEEPS
