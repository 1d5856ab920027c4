"""Print log lines, and a progress bar on a terminal, on rank 0."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

from trainer.loop.callbacks import Callback, Line, Values
from trainer.loop.progress import Training

_BAR_WIDTH = 30
_LEAST_S = 0.1  # between two looks of the bar


class Console(Callback):
    """A callback that prints lines to the stream `lines`, and a progress bar to `screen` if that is a terminal."""

    def __init__(
        self,
        lines: TextIO | None = None,
        screen: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # Not as defaults: sys.stdout may be replaced after this module is imported.
        self._lines = sys.stdout if lines is None else lines
        self._screen = sys.stderr if screen is None else screen
        self._live = self._screen.isatty()
        self._clock = clock
        self._next = 0.0
        self._loss = ""

    def say(self, text: str) -> None:
        """Print `text` as a line, after removing the progress bar, which the next step draws again below it."""
        self._clear()
        self._lines.write(text + "\n")
        self._lines.flush()

    def on_log(self, training: Training, line: Line) -> None:
        """Print the line of a logged step; on a terminal only remember its loss for the progress bar."""
        self._loss = f"  loss {line['loss']:.4g}"
        if not self._live:
            self.say(logged(line, training.total_steps))

    def on_validation(self, training: Training, values: Values) -> None:
        """Print a line with the validated values."""
        self.say(_at(training.step, training.total_steps) + _named(values))

    def on_test(self, training: Training, values: Values) -> None:
        """Print a line with the tested values."""
        self.on_validation(training, values)

    def on_step(self, training: Training) -> None:
        """Draw the progress bar again, a few times a second, if there is a terminal."""
        if self._live and self._clock() >= self._next:
            self._next = self._clock() + _LEAST_S
            self._screen.write(f"\r\x1b[K{bar(training.step, training.total_steps)}{self._loss}")
            self._screen.flush()

    def on_end(self, _training: Training) -> None:
        """Remove the progress bar from the terminal."""
        self._clear()

    def _clear(self) -> None:
        """Remove the progress bar from the terminal."""
        if self._live:
            self._screen.write("\r\x1b[K")
            self._screen.flush()


def logged(line: Line, total_steps: int | None) -> str:
    """Return `step 10/140  loss 2.381  lr 0.0099  1234 samples/s`, with the number of skipped steps if any.

    `total_steps` None, unknown, leaves out `/140`.
    """
    rate = line["samples_per_s"]
    shown = f"{rate:.3g}" if rate < 100 else f"{rate:.0f}"
    skipped = f"  skipped {line['skipped']}" if "skipped" in line else ""
    return f"{_at(line['step'], total_steps)}  loss {line['loss']:.4g}  lr {line['lr']:.3g}  {shown} samples/s{skipped}"


def bar(step: int, total_steps: int | None) -> str:
    """Return the progress bar as text, or `step 10` if the total is unknown."""
    if total_steps is None:
        return f"step {step}"
    full = _BAR_WIDTH * min(step, total_steps) // total_steps
    return f"[{'#' * full}{'.' * (_BAR_WIDTH - full)}] {step}/{total_steps}"


def _at(step: int, total_steps: int | None) -> str:
    """Return `step 10/140`, or `step 10` if the total is unknown."""
    return f"step {step}" if total_steps is None else f"step {step}/{total_steps}"


def _named(values: Values) -> str:
    """Return the values as text such as `  val_loss 0.312  accuracy 0.9`."""
    return "".join(f"  {name} {value:.4g}" for name, value in values.items())
