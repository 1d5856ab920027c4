"""Write metrics as JSON lines (read by trainer.metrics_files), for TensorBoard, and to launch."""

import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.errors import BadSettings
from trainer.extras import install_hint
from trainer.loop.callbacks import Callback, Line, Values
from trainer.loop.progress import Training
from trainer.loop.settings import Settings
from trainer.metrics_files import ATTEMPT, FILE, START, of_attempt
from trainer.wire import Launched, Wire

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def metrics_folder(settings: Settings) -> Path:
    """Return the folder for metrics: the setting `out`, else `metrics` in the run's folder or, without launch, here."""
    if settings.out is not None:
        return Path(settings.out)
    run_dir = Launched.from_environment().run_dir
    return (run_dir or Path()) / "metrics"


def numbers_of(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield names and values of all numbers in a line except `step`; nested ones are named like `seconds/data`."""
    for name, value in line.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}/{part}", number) for part, number in numbers_of(value))
        elif name != "step" and isinstance(value, (int, float)):
            yield name, value


class JsonLines(Callback):
    """A callback that appends metrics to a file of JSON lines on rank 0.

    There is a line for the start of the training, each logged step, each validation, each test and the summary of a
    trace.
    """

    def __init__(self, folder: Path, launched: Launched | None = None) -> None:
        self._folder, self._launched = folder, launched or Launched()
        self._fd: int | None = None

    def on_start(self, training: Training) -> None:
        """Open the file and append a line with the step from which the training begins or resumes.

        Lines of later steps that are already in the file stay there, but its readers then ignore them.
        """
        attempt = self._launched.attempt
        self._open()
        of_launch = {ATTEMPT: attempt} if attempt else {}
        self._write({START: training.step, "world": training.world.size, **of_launch})

    def on_log(self, _training: Training, line: Line) -> None:
        """Append the line of a logged step, with NaN and infinity as text."""
        self._write(line)

    def on_validation(self, training: Training, values: Values) -> None:
        """Append a line with the validated values."""
        self._write({"step": training.step, "epoch": training.epoch, **values})

    def on_test(self, training: Training, values: Values) -> None:
        """Open the file, append a line with the tested values, and close it."""
        self._open()  # and no line of a start: it makes nothing void
        self._write({"step": training.step, **values})
        self.on_end(training)

    def on_trace(self, training: Training, found: Mapping[str, float]) -> None:
        """Append a line with the summary of a profiler trace: `found` has the times and counts by name."""
        self._write({"step": training.step, "traced": dict(found)})

    def on_end(self, _training: Training) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> None:
        """Open the file to append; if its last line was cut short by a kill, end that line first."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = of_attempt(self._launched.attempt) if self._launched.disks_apart else FILE
        self._fd = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        end = os.lseek(self._fd, 0, os.SEEK_END)
        if end and os.pread(self._fd, 1, end - 1) != b"\n":
            self._append(b"\n")  # a kill came in the middle of a line

    def _write(self, line: Line) -> None:
        """Append a line of metrics."""
        self._append(json.dumps(_plain(line), allow_nan=False).encode() + b"\n")

    def _append(self, data: bytes) -> None:
        """Append bytes to the file; after an error, log it and write no more."""
        if self._fd is None:
            return
        try:
            os.write(self._fd, data)
        except OSError as error:  # a full disk must not end a training that could still be saved elsewhere
            logging.getLogger("trainer").warning("metrics: no more are written: %s", error)
            os.close(self._fd)
            self._fd = None


def _plain(value: Any) -> Any:
    """Return `value` with NaN and infinity as text, as JSON lacks them; in a mapping each value is treated so."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


class TensorBoard(Callback):
    """A callback that writes the numbers of logged steps, validations and tests for TensorBoard, on rank 0.

    A training that continues from a checkpoint repeats the steps after it; TensorBoard then hides the earlier numbers
    of these steps.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def on_start(self, training: Training) -> None:
        """Open an event file that hides the events of steps after the one that the training starts from.

        Raises BadSettings if the package is missing.
        """
        # The display drops what a killed start had written of later steps.
        self._open(training.step + 1)

    def _open(self, purge_step: int | None) -> None:
        """Open an event file; TensorBoard then hides older events from `purge_step` on (None: it hides none).

        Raises BadSettings if the package is missing.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter  # late: an optional package, and slow to import
        except ImportError as error:
            raise BadSettings(f"tensorboard: the package is missing: {error}\n{install_hint('tensorboard')}") from error
        self._writer = SummaryWriter(str(self._folder), purge_step=purge_step)

    def on_log(self, training: Training, line: Line) -> None:
        """Write the numbers of a logged step's line."""
        self._write(training.step, line)

    def on_validation(self, training: Training, values: Values) -> None:
        """Write the validation's values, by their names, as scalars of the training's present step."""
        self._write(training.step, values)

    def on_test(self, training: Training, values: Values) -> None:
        """Open an event file, write the tested values, and close it.

        Raises BadSettings if the package is missing.
        """
        self._open(None)
        self._write(training.step, values)
        self.on_end(training)

    def on_end(self, _training: Training) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, step: int, line: Mapping[str, Any]) -> None:
        """Write each number in `line`, a dict of metrics of step `step`, as a scalar; leave other values out."""
        if self._writer is not None:
            for name, value in numbers_of(line):
                self._writer.add_scalar(name, value, step)


_SAID = ("loss", "lr", "samples_per_s", "mfu", "skipped")


class Reports(Callback):
    """A callback that sends loss, learning rate, speed and validation values to launch."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def on_log(self, training: Training, line: Line) -> None:
        """Send the step's loss, learning rate and speed, and the slow rank if `line` has one.

        That is the rank which all others wait for; it is sent with the seconds of its own work in a step and the median
        of these over the ranks.
        """
        words = {name: line[name] for name in _SAID if name in line}
        self._wire.report_step(training.step, training.total_steps, **words)
        if "slow_rank" in line:
            own = line["own_seconds"]
            self._wire.report(slow_rank=line["slow_rank"], slow_s=own["most"], usual_s=own["median"])

    def on_validation(self, _training: Training, values: Values) -> None:
        """Send the validation's values by their names, in a report without a step."""
        self._wire.report(**values)

    def on_test(self, training: Training, values: Values) -> None:
        """Send the tested values, and close the connection to launch."""
        self.on_validation(training, values)
        self.on_end(training)

    def on_end(self, _training: Training) -> None:
        """Close the connection to launch."""
        self._wire.close()
