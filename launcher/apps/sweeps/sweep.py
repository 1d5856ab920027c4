"""A sweep from Python, and all that `launch sweep` stands on. A sweep is many runs of one spec, called trials, that
differ in some options. A point has a value for each of these. An override, such as `run.args.lr=0.1`, sets one option
of the spec, as `--set` does.

import launcher

sweep = launcher.sweep("jobs/resnet_sweep.yaml")
print(sweep.wait().state, sweep.best().params)
"""

import importlib.util
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from launcher.api import WAIT_STEP_S, Spec, as_files
from launcher.apps.sweeps.folder import (
    Point,
    SweepDir,
    SweepOrder,
    SweepRecord,
    SweepState,
    TrialNote,
    Wanted,
    conductor_lives,
    find_sweep,
    known_sweeps,
    record_of,
    register_sweep,
)
from launcher.apps.sweeps.points import grid, override_of, points_in, space_of, values_of
from launcher.apps.sweeps.trial_runs import NO_SWEEP
from launcher.errors import BadInput, Refused
from launcher.ids import RunId, new_run_id
from launcher.run import drafts, registry
from launcher.run.code.freezing import freeze
from launcher.run.durable import make_dir, readable, sync_dir, sync_trees, write_bytes, write_record
from launcher.run.layout import STORE, SWEEPS
from launcher.run.locks import locked
from launcher.spec.kinds.space import PlainWord
from launcher.spec.model import Dimension, SweepOptions
from launcher.spec.read import written_at
from launcher.spec.sweep_fields import SEARCHES
from launcher.states import LOCAL
from launcher.submission.opening import counted
from launcher.submission.requests import Request, check_on_cluster, read_request, taken
from launcher.supervisor.standby import StandbySupervisor

_CONDUCTOR = "launcher.apps.sweeps.conductor:Conductor"
_OF_FILES = ("SLURM_CONF", "LAUNCH_CLUSTERS", "LAUNCH_SSH_CONFIG")
_MOST_TRIED = 64  # of the values of an option, before anything exists


def begin(file: Path, *, on: str, overrides: tuple[str, ...], root: Path | None = None) -> SweepDir:
    """Create the folder of a sweep on the cluster `on`, and return it; raise BadInput, and create nothing, if the sweep
    cannot work.

    The project, whose code the trials run, is the folder `root`, by default the project that contains `file`.
    """
    _need_optuna()
    spec = read_request(file, on=on, overrides=overrides, root=root)
    if spec.spec.sweep is None:
        raise BadInput(f"{file}: has no sweep", "hint: launch submit starts it as one run; `launch help many-runs`")
    options, points = _settled(spec.spec.sweep, spec, file, overrides)
    wish = _tried(spec, file, options, points, overrides)
    runs = registry.runs_root(Path(wish.project.path), create=True)
    folder = runs / SWEEPS
    make_dir(folder)
    drafts.remove_orphans(folder)
    sweep = SweepDir(folder / _free_id(wish.spec.name, runs))
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**31)
    record = SweepRecord(
        sweep.id,
        wish.project.path,
        on,
        overrides,
        options,
        seed,
        wish.project.own_folders,
        points,
        time.time(),
        {name: os.path.abspath(os.environ[name]) for name in _OF_FILES if os.environ.get(name)},
    )
    _write(sweep, file, record, wish, len(points) if points is not None else 0)
    return sweep


def _need_optuna() -> None:
    """Raise BadInput if Optuna is not installed."""
    if importlib.util.find_spec("optuna") is None:
        from trainer.extras import install_hint  # late: after a failure alone

        raise BadInput("sweeps need Optuna, which is not installed", install_hint("sweep"))


def _settled(
    options: SweepOptions, spec: Request, file: Path, overrides: tuple[str, ...]
) -> tuple[SweepOptions, tuple[Point, ...] | None]:
    """Return (the options of the sweep, all points of a grid or a file; None if Optuna chooses the points).

    In the options' space, each dimension has the choices for one option, and a dimension with `when` applies only if
    another option has a certain value. If the spec or an override fixes that other option, `when` is removed, or the
    whole dimension if the value differs. Raise BadInput for a `when` on an option that is set nowhere.
    """
    if options.search not in SEARCHES:
        points = points_in(Path(spec.project.path) / options.search)[: options.trials]
        return msgspec.structs.replace(options, space=space_of(points)), tuple(points)
    space = _without_fixed(options.space, file, overrides)
    if options.search != "grid":
        return msgspec.structs.replace(options, space=space), None
    return msgspec.structs.replace(options, space=space), tuple(grid(space)[: options.trials])


def _without_fixed(space: Mapping[str, Dimension], file: Path, overrides: tuple[str, ...]) -> dict[str, Dimension]:
    """Return the space to search without conditions (`when`) on options that are not in it: these have one value in all
    trials, by the spec in `file` or an override.

    If that value fulfils the condition, the option stays and loses the condition; else the option is left out. Raise
    BadInput for a condition on an option that is set nowhere.
    """
    found: dict[str, Dimension] = {}
    text = file.read_text()
    for key, dimension in space.items():
        if dimension.when is None or dimension.when[0] in space:
            found[key] = dimension
            continue
        there = written_at(text, overrides, dimension.when[0])
        if there is None:
            hint = f"hint: write {dimension.when[0]} into the spec, or into the space above {key}"
            raise BadInput(f"{file}: sweep.space.{key}: nothing is written at {dimension.when[0]}", hint)
        if PlainWord().convert(there) == dimension.when[1]:
            found[key] = msgspec.structs.replace(dimension, when=None)
    return found


def _tried(
    spec: Request, file: Path, options: SweepOptions, points: tuple[Point, ...] | None, overrides: tuple[str, ...]
) -> Request:
    """Return the checked request of a first trial: with the first of `points`, or, if they are None because Optuna
    chooses them, with the first value of each option whose choices depend on no other option.

    Before, the spec is read with the values that each option may have, one at a time: the two ends of a range, or the
    first `_MOST_TRIED` values of a list. Raise BadInput if the spec is invalid with one of them.
    """
    first = dict(points[0]) if points else {}
    root = Path(spec.project.path)
    for key, one in options.space.items():
        ends = values_of(one) if one.values else (one.low, one.high)
        values = [int(end) for end in ends] if one.whole else [*ends]
        if points is None and one.when is None:
            first[key] = values[0]
        for value in values[:_MOST_TRIED]:
            read_request(file, on=spec.on, overrides=(*overrides, NO_SWEEP, override_of(key, value)), root=root)
    words = (override_of(key, value) for key, value in first.items())
    return check_on_cluster(read_request(file, on=spec.on, overrides=(*overrides, NO_SWEEP, *words), root=root))


def _free_id(name: str, runs: Path) -> RunId:
    """Return a new id that begins with the job's `name` and that no sweep and no run has."""
    known = {one.id for one in known_sweeps()}
    return new_run_id(name, lambda one: one in known or taken(runs)(one) or (runs / SWEEPS / one).exists())


def _write(sweep: SweepDir, file: Path, record: SweepRecord, wish: Request, points: int) -> None:
    """Write the sweep's folder, with its `record`, the spec `file` and the code of `wish`, under a temporary name, then
    rename it, so that it exists completely or not at all.

    `points` is how many points a grid or a file has (0: Optuna chooses).
    """
    folder = sweep.path.parent
    draft = SweepDir(drafts.new_draft(folder))
    try:
        make_dir(draft.path)
        freeze(wish.code, folder.parent / STORE, draft.code, fsync=False, watch=counted)
        write_bytes(draft.spec, file.read_bytes(), fsync=False)
        write_record(draft.record, record, fsync=False)
        write_record(draft.wanted, Wanted(points or record.options.trials or 0), fsync=False)
        write_record(draft.state, SweepState("running", "it begins", (), record.began_at), fsync=False)
        sync_trees(folder, [draft.path])
        register_sweep(sweep)
        os.rename(draft.path, sweep.path)
        sync_dir(folder)
    except BaseException:
        drafts.remove(draft.path)
        raise


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep: many runs of one spec, called trials, that differ in some options."""

    id: RunId
    path: Path  # its folder

    @classmethod
    def get(cls, ref: str) -> "Sweep":
        """Return the sweep with this id or unique beginning of an id, or the newest for `last`.

        Raise NoSuchRun if there is none, and BadInput if several ids begin so.
        """
        found = find_sweep(ref)
        return cls(found.id, found.path)

    def status(self) -> SweepState:
        """Return the sweep's trials and its state: running, stopped, succeeded, failed, or lost, if it has not ended
        but no process conducts it. It is lost without trials if its record of these cannot be read.
        """
        lives = conductor_lives(self._folder)  # before its last word is read, which may be its end
        said = readable(self._folder.state, SweepState)
        if said is None:
            return SweepState("lost", f"it has no readable state: {self._folder.state}", (), 0.0)
        if said.state == "running" and lives is False:
            why = f"its conductor is gone: launch sweep resume {self.id} goes on, and nothing is lost"
            return msgspec.structs.replace(said, state="lost", message=why)
        return said

    def best(self) -> TrialNote | None:
        """Return the complete trial with the best value, the least or the largest as the sweep's `mode` says; the
        earlier one of equals. Return None if no trial is complete.
        """
        sign = 1 if record_of(self._folder).options.mode == "max" else -1
        complete = [one for one in self.status().trials if one.state == "complete" and one.value is not None]
        return max(complete, key=lambda one: (sign * (one.value or 0.0), -one.number), default=None)

    def importances(self) -> dict[str, float]:
        """Return the share of the differences between results that each option explains, by the option's name; the
        shares add up to 1.

        The result is empty if there are too few trials.
        """
        from launcher.apps.sweeps.pictures import importances  # late: Optuna takes a second

        return importances(self._folder)

    def plot(self, out: str | Path, kinds: Sequence[str] = ()) -> list[str]:
        """Write pictures of the sweep into the file `out`: a page with all of them (.html), or a single one (.png, .svg
        or .pdf); return a line of text for each picture that could not be drawn.

        Kinds are history, parallel, slice and importance (default: all). Raise BadInput for any other kind, for several
        in a file for one, or if nothing can be drawn, for instance because too few trials are complete.
        """
        from launcher.apps.sweeps.pictures import KINDS, draw  # late: Optuna takes a second

        return draw(self._folder, Path(out), kinds or KINDS)

    def trials_wanted(self) -> int:
        """Return the number of trials that the sweep is to have in all: those that have ended, and those that the user
        added later, included.
        """
        wanted = readable(self._folder.wanted, Wanted)
        return wanted.trials if wanted is not None else 0

    def stop(self) -> SweepState:
        """Have all trials that still run save and stop; wait without a time limit until they have, and return the
        sweep's state.

        `resume` continues them from their checkpoints. Raise Refused if the sweep has ended or was stopped before.
        """
        if self.status().state in ("succeeded", "failed", "stopped"):
            raise Refused(f"{self.id} is {self.status().state}: there is nothing to stop")
        write_record(self._folder.order, SweepOrder(stop=True))
        self._conduct()
        return self.wait()

    def resume(self) -> None:
        """Resume a sweep that was stopped, or whose conducting process has died; raise Refused for any other.

        This starts a background process on this machine, which submits the remaining trials, and returns once it is up.
        """
        state = self.status()
        if state.state not in ("stopped", "lost"):
            hint = f"hint: launch sweep add {self.id} --trials 20" if state.state == "succeeded" else ""
            raise Refused(f"{self.id} is {state.state}: there is nothing to resume", *filter(None, [hint]))
        if state.state == "stopped":
            write_record(self._folder.order, SweepOrder(stop=False))
        self._conduct()

    def add(self, trials: int) -> int:
        """Add `trials` more trials, and return the new total; a sweep that has succeeded continues with them.

        Raise BadInput if `trials` is less than 1, or if a grid or a file has not so many points.
        """
        if trials < 1:
            raise BadInput(f"--trials: expected a number above 0, got {trials}")
        points = record_of(self._folder).points
        with locked(self.path / ".wanted-lock", wait=True):
            wanted = self.trials_wanted() + trials
            if points is not None and wanted > len(points):
                raise BadInput(f"{self.id}: there are {len(points)} points, and no more")
            write_record(self._folder.wanted, Wanted(wanted))
        if self.status().state in ("succeeded", "lost"):
            self._conduct()
        return wanted

    def extend(self, best: int, overrides: Sequence[str]) -> list[str]:
        """Train the runs of the `best` best trials further, from their checkpoints, with the changes in `overrides`,
        such as more steps; return the runs' ids, the best first.

        Each of these runs is resumed as one more trial with the options of its first one; trials that have not started
        yet come after these. Raise BadInput or Refused, without queueing anything, if that is impossible, as when
        fewer trials are complete.
        """
        from launcher.apps.sweeps.extending import queue_extensions  # late: Optuna takes a second

        with locked(self.path / ".wanted-lock", wait=True):
            runs = queue_extensions(self._folder, self.status(), best, overrides)
            write_record(self._folder.wanted, Wanted(self.trials_wanted() + best))
        if self.status().state in ("succeeded", "lost"):
            self._conduct()
        return runs

    def wait(self, timeout_s: float | None = None) -> SweepState:
        """Wait until the sweep is no longer running, and return its state; raise TimeoutError if that takes longer than
        `timeout_s` seconds (None: no limit).
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (status := self.status()).state == "running":
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{self.id} is still running after {timeout_s:g} s")
            time.sleep(WAIT_STEP_S)
        return status

    def _conduct(self) -> None:
        """Make sure that a background process on this machine conducts the sweep: submits its trials and follows them.
        It will read all that was written into the sweep's folder before this call.

        Do nothing if such a process is at work. Otherwise start one, and return once it is up; the state of a sweep
        that had ended or was stopped becomes `running` again.
        """
        sweep = self._folder
        if conductor_lives(sweep) and self.status().state == "running":
            return
        said = readable(sweep.state, SweepState)
        if said is not None and said.state != "running":
            with locked(sweep.lock, wait=True):  # of one that has said its last word, and is about to leave
                write_record(sweep.state, msgspec.structs.replace(said, state="running", message="it goes on"))
        supervisor = StandbySupervisor(_CONDUCTOR, sweep.path)
        supervisor.report()
        supervisor.close()

    @property
    def _folder(self) -> SweepDir:
        """Return the folder of the sweep."""
        return SweepDir(self.path)


def sweep(spec: Spec, *, on: str = LOCAL, overrides: Sequence[str] = ()) -> Sweep:
    """Start a sweep on the cluster `on`, and return once its background process on this machine, which submits the
    trials and follows them, has started.

    The spec is a path, or its content as for submit(). Raise BadInput if the sweep cannot work.
    """
    with as_files([spec]) as ([file], roots):
        folder = begin(file, on=on, overrides=tuple(overrides), root=roots.get(file))
    found = Sweep(folder.id, folder.path)
    found._conduct()  # noqa: SLF001 - of our own class
    return found
