"""Metrics on disk: JSON lines, which a restart continues, and TensorBoard's files.

Where each node has a disk of its own, an attempt has a file of its own: the first rank of the next one may be on
another node, and their files are brought together by their names.
"""

import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.errors import BadSettings
from trainer.loop.callbacks import Callback, Line, Values
from trainer.loop.progress import Training
from trainer.wire import Launched

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FILE = "metrics.jsonl"
_START = "start"  # a line that says from which step on a start goes on: what was written of later steps is void
_ATTEMPT = "attempt"  # of that start, where launch made it


class JsonLines(Callback):
    """Appends a line for each step that is logged and each validation. For the first rank."""

    def __init__(self, folder: Path, launched: Launched | None = None) -> None:
        self._folder, self._launched = folder, launched or Launched()
        self._fd: int | None = None

    def on_start(self, training: Training) -> None:
        attempt = self._launched.attempt
        self._folder.mkdir(parents=True, exist_ok=True)
        name = _of_attempt(attempt) if self._launched.disks_apart else FILE
        self._fd = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        end = os.lseek(self._fd, 0, os.SEEK_END)
        if end and os.pread(self._fd, 1, end - 1) != b"\n":
            self._append(b"\n")  # a kill came in the middle of a line
        of_launch = {_ATTEMPT: attempt} if attempt else {}
        self._write({_START: training.step, "world": training.world.size, **of_launch})

    def on_log(self, _training: Training, line: Line) -> None:
        self._write(line)

    def on_validation(self, training: Training, values: Values) -> None:
        self._write({"step": training.step, "epoch": training.epoch, **values})

    def on_end(self, _training: Training) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _write(self, line: Line) -> None:
        self._append(json.dumps(_plain(line), allow_nan=False).encode() + b"\n")

    def _append(self, data: bytes) -> None:
        if self._fd is None:
            return
        try:
            os.write(self._fd, data)
        except OSError as error:  # a full disk must not end a training that could still be saved elsewhere
            logging.getLogger("trainer").warning("metrics: no more are written: %s", error)
            os.close(self._fd)
            self._fd = None


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """One dict a step, in order, as the training went in the end.

    What a killed start had written of steps that were done again is left out, and a line cut short by a kill too.
    """
    steps: dict[int, dict[str, Any]] = {}
    for line in _lines(Path(folder)):
        if _START in line:
            steps = {step: known for step, known in steps.items() if step <= line[_START]}
        elif "step" in line:
            steps.setdefault(line["step"], {}).update(line)
    return [steps[step] for step in sorted(steps)]


def _lines(folder: Path) -> list[dict[str, Any]]:
    """Of all files, start by start in the order of their attempts."""
    apart = sorted(folder.glob(_of_attempt("*")))
    paths = apart if apart and not (folder / FILE).exists() else [folder / FILE, *apart]
    starts: list[list[dict[str, Any]]] = []
    for path in paths:
        starts.append([])
        for line in map(_parsed, path.read_text(encoding="utf-8").splitlines()):
            if _START in line:
                starts.append([])
            starts[-1].append(line)
    starts.sort(key=lambda lines: lines[0].get(_ATTEMPT, 0) if lines else 0)
    return [line for lines in starts for line in lines]


def _of_attempt(attempt: int | str) -> str:
    number = attempt if isinstance(attempt, str) else f"{attempt:04d}"
    return f"metrics.a{number}.jsonl"


def _parsed(text: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except ValueError:
        return {}
    return {key: _number(value) for key, value in line.items()} if isinstance(line, dict) else {}


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they are written as text."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> Any:
    return float(value) if value in ("nan", "inf", "-inf") else value


class TensorBoard(Callback):
    """Scalars for TensorBoard. For the first rank."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def on_start(self, training: Training) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # late: an optional package, and slow to import
        except ImportError as error:
            raise BadSettings(
                f"tensorboard: the package is missing: {error}\nhint: pip install 'launcher[tensorboard]'"
            ) from error
        # purge_step: the display drops what a killed start had written of later steps.
        self._writer = SummaryWriter(str(self._folder), purge_step=training.step + 1)

    def on_log(self, training: Training, line: Line) -> None:
        self._write(training.step, line)

    def on_validation(self, training: Training, values: Values) -> None:
        self._write(training.step, values)

    def on_end(self, _training: Training) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, step: int, line: Mapping[str, Any]) -> None:
        if self._writer is None:
            return
        for name, value in line.items():
            if isinstance(value, Mapping):
                for part, number in value.items():
                    self._writer.add_scalar(f"{name}/{part}", number, step)
            elif name != "step" and isinstance(value, (int, float)):
                self._writer.add_scalar(name, value, step)
