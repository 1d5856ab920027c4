"""Follow a run: print its merged log as it grows, on a terminal with a status line below, until the run has ended."""

import sys
import time
from collections.abc import Sequence
from typing import TextIO

from launcher.api import Run
from launcher.cli import figures
from launcher.cli.looking.log_lines import Prefix, with_restarts
from launcher.cli.looking.page import failure_lines, headline, not_finite
from launcher.cli.terminal import cut, is_terminal, safe, size
from launcher.errors import Exit
from launcher.run.layout import RunDir
from launcher.status.derive import RunStatus, exit_code_of, state_text
from launcher.status.log_choice import LogChoice
from launcher.status.logs import POLL_S, LogReader
from launcher.status.restarts import RestartReader

_BARS = 4


def follow(run: Run, choice: LogChoice | None = None) -> int:
    """Print the run's log until it has ended, then how it ended; return the run's exit code.

    `choice` selects lines of the log (None: all). Ctrl-C ends only the following, with the exit code INTERRUPTED; the
    run continues.
    """
    footer = Footer(sys.stderr)
    try:
        status = _show(run, choice or LogChoice(), footer)
    except KeyboardInterrupt:
        footer.clear()
        ways = f"Come back: launch logs {run.id} -f; end it: launch cancel {run.id}"
        print(f"stopped following; {run.id} goes on. {ways}", file=sys.stderr)
        return Exit.INTERRUPTED
    finally:
        footer.clear()
    print("\n".join(last_words(status, choice or LogChoice())), file=sys.stderr)
    return exit_code_of(status)


def follow_all(runs: Sequence[Run]) -> int:
    """Follow the runs one after the other; return the exit code of the first one that failed, else OK. Ctrl-C ends
    this, with the exit code INTERRUPTED.
    """
    codes = list[int]()
    for run in runs:
        print(f"--- {run.id}", file=sys.stderr)
        codes.append(follow(run))
        if codes[-1] == Exit.INTERRUPTED:
            return codes[-1]
    return next((code for code in codes if code != Exit.OK), Exit.OK)


def _show(run: Run, choice: LogChoice, footer: "Footer") -> RunStatus:
    """Print the log, with the status lines below it, until the run has ended; return its status."""
    reader, restarts = LogReader(RunDir(run.path), choice=choice), RestartReader(RunDir(run.path), late=choice.is_late)
    prefix, lost = Prefix(sys.stdout), run.replacement()
    while True:
        status = lost.poll(run.renew())  # before the log is read, so that the last read misses nothing
        restarts.read()
        for text in with_restarts(reader.read(final=status.state.ended), restarts, prefix):
            footer.clear()
            sys.stdout.write(text + "\n")
        sys.stdout.flush()
        if status.state.ended:
            return status
        footer.show([*_bars(reader.moving()), status_line(status)], alarm=bool(status.not_finite))
        time.sleep(POLL_S)


def _bars(moving: dict[int, str]) -> list[str]:
    """Return the lines with the progress bars of the first four ranks, and a line that counts the others; `moving` has
    the bar of each rank by its number.
    """
    shown = [f"{rank} │ {safe(text)}" for rank, text in list(moving.items())[:_BARS]]
    return shown + ([f"and {len(moving) - _BARS} more"] if len(moving) > _BARS else [])


def status_line(status: RunStatus) -> str:
    """Return the status line: the run's id and state, then what is known of its step, rate, time left, first metrics,
    restarts and message.
    """
    words = [safe(status.run), state_text(status)]
    if status.step is not None:
        words.append(f"step {figures.steps(status.step, status.total_steps)}")
    if status.rate is not None:
        words.append(figures.rate(status.rate))
    if status.eta_s is not None:
        words.append(f"{figures.duration(status.eta_s)} to go")
    words += [f"{safe(name)} {value:.4g}" for name, value in list(status.metrics.items())[:2]]
    words += not_finite(status)[:2]
    if status.restarts.total:
        words.append(figures.count(status.restarts.total, "restart"))
    if status.message:
        words.append(safe(status.message))
    return " · ".join(words)


def last_words(status: RunStatus, choice: LogChoice) -> list[str]:
    """Return the lines on how the run ended and why.

    The end of the failed rank's log is left out if `choice` selects the whole log, as it was printed already.
    """
    failed = status.failure is not None and exit_code_of(status) != Exit.OK
    lines = [headline(status)]
    if failed and status.failure is not None:
        shown = choice == LogChoice() and bool(status.failure.log)
        lines = [*failure_lines(status.failure, status.run_dir, tail=not shown), *lines]
        lines += [f"gave up: {safe(status.message)}"] if status.message else []
    return [*lines, *([f"next: {safe(status.next)}"] if status.next else [])]


class Footer:
    """Lines that stay below all other output on a terminal. On any other stream they are not shown."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = is_terminal(stream)
        self._shown: list[str] = []

    def show(self, lines: list[str], *, alarm: bool = False) -> None:
        """Draw the lines at the bottom of the terminal, the last one inverted; in red with `alarm`."""
        if not self._live:
            return
        width = size(self._stream)[0] - 1
        *above, last = [cut(line, width) for line in lines]
        shown = [*above, f"\x1b[{'7;31' if alarm else '7'}m{last}\x1b[0m"]
        if shown != self._shown:
            self.clear()
            self._stream.write("\r\x1b[K" + "\n".join(shown))
            self._stream.flush()
            self._shown = shown

    def clear(self) -> None:
        """Remove the lines that `show` has drawn."""
        if self._shown:
            up = f"\x1b[{len(self._shown) - 1}A" if len(self._shown) > 1 else ""
            self._stream.write(f"\r{up}\x1b[J" if up else "\r\x1b[K")
            self._stream.flush()
            self._shown = []
