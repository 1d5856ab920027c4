"""Create a sweep's folder from a spec: after all checks it is written as a draft and renamed once."""

import importlib.util
import os
import random
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from launcher.apps.sweeps.folder import Point, SweepDir, SweepRecord, SweepState, Wanted, known_sweeps, register_sweep
from launcher.apps.sweeps.points import grid, override_of, points_in, space_of, values_of
from launcher.apps.sweeps.trial_runs import NO_SWEEP
from launcher.errors import BadInput
from launcher.ids import RunId, new_run_id
from launcher.run import drafts, registry
from launcher.run.code.freezing import freeze
from launcher.run.durable import make_dir, sync_dir, sync_trees, write_bytes, write_record
from launcher.run.layout import STORE, SWEEPS
from launcher.spec.kinds.space import PlainWord
from launcher.spec.model import Dimension, SweepOptions
from launcher.spec.read import written_at
from launcher.spec.sweep_fields import SEARCHES
from launcher.submission.opening import counted
from launcher.submission.requests import Request, able, looked_at_first, taken

_OF_FILES = ("SLURM_CONF", "LAUNCH_CLUSTERS", "LAUNCH_SSH_CONFIG")
_MOST_TRIED = 64  # of the values of an option, before anything exists


def begin(file: Path, *, on: str, overrides: tuple[str, ...], root: Path | None = None) -> SweepDir:
    """Create a sweep and return its folder. Raise BadInput if it cannot work, and then nothing is created."""
    _need_optuna()
    spec = looked_at_first(file, on=on, overrides=overrides, root=root)
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
    """Return the options without conditions on fixed values, and all points if they are known beforehand."""
    if options.search not in SEARCHES:
        points = points_in(Path(spec.project.path) / options.search)[: options.trials]
        return msgspec.structs.replace(options, space=space_of(points)), tuple(points)
    space = _without_fixed(options.space, file, overrides)
    if options.search != "grid":
        return msgspec.structs.replace(options, space=space), None
    return msgspec.structs.replace(options, space=space), tuple(grid(space)[: options.trials])


def _without_fixed(space: Mapping[str, Dimension], file: Path, overrides: tuple[str, ...]) -> dict[str, Dimension]:
    """Return the options without conditions on values that the spec fixes."""
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
    """Return the request of a first trial; every value of an option has been checked by the spec's reader."""
    first = dict(points[0]) if points else {}
    root = Path(spec.project.path)
    for key, one in options.space.items():
        ends = values_of(one) if one.values else (one.low, one.high)
        values = [int(end) for end in ends] if one.whole else [*ends]
        if points is None and one.when is None:
            first[key] = values[0]
        for value in values[:_MOST_TRIED]:
            looked_at_first(file, on=spec.on, overrides=(*overrides, NO_SWEEP, override_of(key, value)), root=root)
    words = (override_of(key, value) for key, value in first.items())
    return able(looked_at_first(file, on=spec.on, overrides=(*overrides, NO_SWEEP, *words), root=root))


def _free_id(name: str, runs: Path) -> RunId:
    """Return an id that no sweep and no run has."""
    known = {one.id for one in known_sweeps()}
    return new_run_id(name, lambda one: one in known or taken(runs)(one) or (runs / SWEEPS / one).exists())


def _write(sweep: SweepDir, file: Path, record: SweepRecord, wish: Request, points: int) -> None:
    """Write the sweep's folder whole and durable under a draft name, then rename it."""
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
