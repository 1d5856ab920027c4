"""The timeline of a run as the page draws it: what the records say, with a mark for each checkpoint and validation."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from launcher.apps.board.measured.reading import MeasuredRun
from launcher.errors import LaunchError
from launcher.run.layout import RunDir
from launcher.status.checkpoints import Checkpoint, checkpoints
from launcher.status.derive import RunStatus
from launcher.status.life import Life, LifeMark, read_life
from launcher.status.series import better
from launcher.status.text import plain

MeasuredPoint = tuple[int, float, float]  # step, time and value
_OF_A_VALIDATION = ("val_", "val/", "valid_", "valid/", "validation_", "validation/", "eval_", "eval/")
_MOST_VALIDATIONS = 200  # spread over all of the run: of a script that validates at every step they are but a wall
_MOST_VALUES = 3  # that a mark names


def board_life(status: RunStatus, measured: MeasuredRun, now: float) -> Life:
    """Return the run's timeline, up to its end or the Unix time `now`, with its checkpoints and validations, from files
    on this disk; no cluster is queried.
    """
    life = read_life(status, now)
    names = filter(is_of_a_validation, measured.names)
    points = {name: measured.points(name) for name in names}
    marks = [*life.marks, *_checkpoint_marks(_checkpoints_on_disk(status), status), *validations(points)]
    return msgspec.structs.replace(life, marks=tuple(sorted(marks, key=lambda mark: mark.at)))


def _checkpoints_on_disk(status: RunStatus) -> list[Checkpoint]:
    """Return the run's checkpoints on this disk: the newest first, then the best, then damaged ones. If one cannot be
    read, the list ends before it.
    """
    found = list[Checkpoint]()
    with contextlib.suppress(LaunchError, OSError):
        for one in checkpoints(RunDir(Path(status.run_dir))):
            found.append(one)
    return found


def _checkpoint_marks(found: Iterable[Checkpoint], status: RunStatus) -> Iterator[LifeMark]:
    """Yield a mark for each checkpoint whose time is known.

    Its kind is `best` for one selected by a monitored value, `safe` if it survives the loss of any one disk, else
    `checkpoint`.
    """
    for one in found:
        if one.saved_at is not None:
            safe = status.safe_checkpoint is not None and one.step <= status.safe_checkpoint
            kind = "best" if one.kind == "best" else "safe" if safe else "checkpoint"
            values = [f"{name} {value:.4g}" for name, value in one.info.items() if isinstance(value, float)]
            odd = [] if one.state == "ok" else [str(one.state)]
            words = plain(", ".join([*odd, *values[:_MOST_VALUES]]))
            yield LifeMark(one.saved_at, kind, words, one.attempt or 0, 0, step=one.step)


def validations(points: Mapping[str, Iterable[MeasuredPoint]]) -> Iterator[LifeMark]:
    """Yield a mark for each step at which a validation reported a value, if its time is known. `points` has the points
    of each metric by its name; a metric is of a validation if its name says so (`is_of_a_validation`), such as
    `val_loss`.

    If there are more than `_MOST_VALIDATIONS` such steps, as many of them are yielded, evenly spread. If a script
    repeats the last validation's value at every step, only the step with the new value counts.
    """
    found: dict[int, tuple[float, list[str]]] = {}
    for name in filter(is_of_a_validation, points):
        for step, moment, value in thinned(_without_repeats(points[name])):
            at, words = found.get(step, (0.0, []))
            found[step] = max(moment, at), [*words, f"{name} {value:.4g}"]
    steps = sorted(step for step, (at, _) in found.items() if at > 0)
    if len(steps) > _MOST_VALIDATIONS:
        last = len(steps) - 1
        steps = [steps[place * last // (_MOST_VALIDATIONS - 1)] for place in range(_MOST_VALIDATIONS)]
    for step in steps:
        at, words = found[step]
        yield LifeMark(at, "validation", plain(", ".join(words[:_MOST_VALUES])), 0, 0, step=step)


def thinned(points: Iterable[MeasuredPoint]) -> list[MeasuredPoint]:
    """Return at most a few hundred of the points, evenly spread and with the last one, in bounded memory."""
    kept, every, last = list[MeasuredPoint](), 1, None
    for place, point in enumerate(points):
        last = point
        if place % every == 0:
            kept.append(point)
            if len(kept) > 2 * _MOST_VALIDATIONS:
                kept, every = kept[::2], 2 * every
    return kept if last is None or kept[-1] == last else [*kept, last]


def _without_repeats(points: Iterable[MeasuredPoint]) -> Iterator[MeasuredPoint]:
    """Yield the points, without each that has the same value as the point before and the next step's number: it was
    reported again, not measured anew.
    """
    before: MeasuredPoint | None = None
    for point in points:
        if before is None or point[0] != before[0] + 1 or point[2] != before[2]:
            yield point
        before = point


def is_of_a_validation(name: str) -> bool:
    """Return whether `name` is that of a validation result that can be better or worse, such as `val_loss`: it begins
    with `val_`, `eval/` or the like, and has a word such as `loss` or `accuracy`, of which it is known whether small or
    large values are better.
    """
    return name.startswith(_OF_A_VALIDATION) and better(name) != 0
