"""Following a run: its merged log as it grows, a live status line under it on a terminal, its own exit code."""

import sys
import time
from typing import TextIO

from launcher.api import Run
from launcher.cli import figures
from launcher.cli.log_lines import Prefix
from launcher.cli.page import failure_lines, headline
from launcher.cli.run_table import state_text
from launcher.cli.terminal import cut, is_terminal, safe, size
from launcher.errors import Exit
from launcher.rundir.layout import RunDir
from launcher.status.derive import RunStatus, exit_code_of
from launcher.status.logs import LogReader

_POLL_S = 0.1


def follow(run: Run, ranks: list[int] | None = None) -> int:
    """Show everything until the run has ended; gives the run's own exit code."""
    footer = Footer(sys.stderr)
    try:
        status = _show(run, ranks, footer)
    except KeyboardInterrupt:
        footer.clear()
        print(f"stopped following; {run.id} goes on. Come back: launch logs {run.id} -f", file=sys.stderr)
        return Exit.INTERRUPTED
    finally:
        footer.clear()
    print("\n".join(_last_words(status)), file=sys.stderr)
    return exit_code_of(status)


def _show(run: Run, ranks: list[int] | None, footer: "Footer") -> RunStatus:
    reader = LogReader(RunDir(run.path), ranks)
    prefix = Prefix(sys.stdout)
    while True:
        status = run.renew()  # before the log is read, so that the last read misses nothing
        for line in reader.read(final=status.state.ended):
            footer.clear()
            sys.stdout.write(prefix.whole(line) + "\n")
        sys.stdout.flush()
        if status.state.ended:
            return status
        footer.show(status_line(status))
        time.sleep(_POLL_S)


def status_line(status: RunStatus) -> str:
    """step/total, rate, what is left, restarts, state; for the bottom of a terminal."""
    words = [safe(status.run), state_text(status)]
    if status.step is not None:
        words.append(f"step {figures.steps(status.step, status.total_steps)}")
    if status.rate is not None:
        words.append(figures.rate(status.rate))
    if status.eta_s is not None:
        words.append(f"{figures.duration(status.eta_s)} to go")
    words += [f"{safe(name)} {value:.4g}" for name, value in list(status.metrics.items())[:2]]
    if status.restarts.total:
        words.append(figures.count(status.restarts.total, "restart"))
    if status.message:
        words.append(safe(status.message))
    return " · ".join(words)


def _last_words(status: RunStatus) -> list[str]:
    failed = status.failure is not None and exit_code_of(status) != Exit.OK
    lines = [
        *(failure_lines(status.failure, status.run_dir) if failed and status.failure is not None else []),
        headline(status),
    ]
    return [*lines, *([f"next: {safe(status.next)}"] if status.next else [])]


class Footer:
    """One line that stays under everything else; nothing where the stream is no terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = is_terminal(stream)
        self._shown = ""

    def show(self, text: str) -> None:
        if not self._live:
            return
        fitting = cut(text, size(self._stream)[0] - 1)
        if fitting != self._shown:
            self._stream.write(f"\r\x1b[K\x1b[7m{fitting}\x1b[0m")
            self._stream.flush()
            self._shown = fitting

    def clear(self) -> None:
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = ""
