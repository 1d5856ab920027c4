"""The life of a run as a page draws it: what happened, and beside it the checkpoints that there are and validations."""

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from launcher.board.measured.reading import MeasuredRun
from launcher.errors import LaunchError
from launcher.rundir.layout import RunDir
from launcher.status.checkpoints import Checkpoint, checkpoints
from launcher.status.derive import RunStatus
from launcher.status.life import Life, LifeMark, read_life
from launcher.status.text import plain

MeasuredPoint = tuple[int, float, float]  # step, time and value
_OF_A_VALIDATION = ("val_", "val/", "valid_", "valid/", "validation_", "validation/", "eval_", "eval/")
_MOST_VALIDATIONS = 200  # the newest: of a script that validates at every step they are no marks but a wall
_MOST_VALUES = 3  # that a mark names


def board_life(status: RunStatus, measured: MeasuredRun, now: float) -> Life:
    """Nobody is asked: it is of what lies on this disk."""
    life = read_life(status, now)
    names = filter(is_of_a_validation, measured.names)
    newest = {name: deque(measured.points(name), _MOST_VALIDATIONS) for name in names}
    marks = [*life.marks, *_saved(_here(status), status), *validations(newest)]
    return msgspec.structs.replace(life, marks=tuple(sorted(marks, key=lambda mark: mark.at)))


def _here(status: RunStatus) -> list[Checkpoint]:
    found = list[Checkpoint]()
    with contextlib.suppress(LaunchError, OSError):
        for one in checkpoints(RunDir(Path(status.run_dir))):
            found.append(one)
    return found


def _saved(found: Iterable[Checkpoint], status: RunStatus) -> Iterator[LifeMark]:
    """`checkpoint`; `best` where a monitored value keeps it; `safe` where it survives the loss of any one disk."""
    for one in found:
        if one.saved_at is not None:
            safe = status.safe_checkpoint is not None and one.step <= status.safe_checkpoint
            kind = "best" if one.kind == "best" else "safe" if safe else "checkpoint"
            told = [f"{name} {value:.4g}" for name, value in one.info.items() if isinstance(value, float)]
            odd = [] if one.state == "ok" else [str(one.state)]
            words = plain(", ".join([*odd, *told[:_MOST_VALUES]]))
            yield LifeMark(one.saved_at, kind, words, one.attempt or 0, 0, step=one.step)


def validations(points: Mapping[str, Iterable[MeasuredPoint]]) -> Iterator[LifeMark]:
    """The steps at which something was measured that is called after a validation, as far as their time is known."""
    at, words = dict[int, float](), dict[int, list[str]]()
    for name in filter(is_of_a_validation, points):
        for step, moment, value in points[name]:
            at[step] = max(moment, at.get(step, 0.0))
            words.setdefault(step, []).append(f"{name} {value:.4g}")
    for step in sorted(at)[-_MOST_VALIDATIONS:]:
        if at[step] > 0:
            yield LifeMark(at[step], "validation", plain(", ".join(words[step][:_MOST_VALUES])), 0, 0, step=step)


def is_of_a_validation(name: str) -> bool:
    return name.startswith(_OF_A_VALIDATION)
