"""Connect this terminal with a command on another node: keys, window size and signals are sent, output is received."""

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from types import FrameType
from typing import Self

from launcher.cli.terminal import size
from launcher.node.inside.visit import Visit
from launcher.node.inside.visit_messages import (
    PIECE_BYTES,
    CommandEnded,
    Given,
    InputEnds,
    Output,
    Question,
    Resized,
    Signalled,
    Window,
)
from launcher.run.durable import write_all


def window_here() -> Window | None:
    """Return the size of this terminal, or None unless both stdin and stdout are a terminal."""
    if not (os.isatty(0) and os.isatty(1)):
        return None
    columns, rows = size(sys.stdout)
    return Window(rows, columns, os.environ.get("TERM", ""))


def converse(visit: Visit, question: Question, window: Window | None) -> int:
    """Run the remote command that `question` describes, over the connection `visit`, with the input and output of this
    process; return its exit code.

    `window` is this terminal's size; with None, stdin and stdout are passed on unchanged.
    """
    visit.ask(question)
    sys.stdout.flush()
    with _Alarms() as alarms, _raw(window):
        return _Session(visit, alarms, terminal=window is not None).run()


class _Session:
    """The exchange of input, output and signals between this terminal and one remote command."""

    def __init__(self, visit: Visit, alarms: "_Alarms", *, terminal: bool) -> None:
        self._visit, self._alarms, self._terminal = visit, alarms, terminal
        self._listens = True  # to our stdin

    def run(self) -> int:
        """Pass input, signals and output on until the remote command ends; return its exit code."""
        while True:
            sources = [self._visit.ready_fd, self._alarms.fd, *([0] if self._listens else [])]
            ready = select.select(sources, [], [])[0]
            if self._alarms.fd in ready:
                self._send_signals()
            if 0 in ready:
                self._read()
            for word in self._visit.received():
                match word:
                    case Output(data=data, err=err):
                        write_all(2 if err else 1, data)
                    case CommandEnded(code=code):
                        return code

    def _send_signals(self) -> None:
        """Send the remote command each signal that this process has received; instead of SIGWINCH, send the terminal's
        new size.
        """
        for number in self._alarms.rung():
            if number != signal.SIGWINCH:
                self._visit.send(Signalled(number))
            elif self._terminal and (window := window_here()) is not None:
                self._visit.send(Resized(window))

    def _read(self) -> None:
        """Read what was typed and send it to the remote command, or tell it that the input has ended."""
        try:
            data = os.read(0, PIECE_BYTES)
        except OSError:  # the terminal is gone
            data = b""
        self._visit.send(Given(data) if data else InputEnds())
        self._listens = bool(data)


class _Alarms:
    """The signals (interrupt, quit, new window size) that this process catches for the remote command, as long as the
    context lasts. The file descriptor `fd` becomes readable when one arrives, and `rung` returns which.
    """

    _NUMBERS = (signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH)

    def __enter__(self) -> Self:
        self.fd, self._ring = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._fd_before = signal.set_wakeup_fd(self._ring, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, _ignore) for number in self._NUMBERS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        os.close(self.fd)
        os.close(self._ring)

    def rung(self) -> list[int]:
        """Return the numbers of the signals that have arrived since the last call, an empty list if there are none."""
        with contextlib.suppress(BlockingIOError):
            return [number for number in os.read(self.fd, 512) if number in self._NUMBERS]
        return []


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. The signal is reported through the wakeup file descriptor."""


@contextlib.contextmanager
def _raw(window: Window | None) -> Iterator[None]:
    """Put the terminal into raw mode during the body, so that every key, Ctrl-C included, is sent to the remote
    command.

    `window` is the terminal's size. Do nothing if it is None, as the remote command then has no terminal but pipes.
    """
    if window is None:
        yield
        return
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # what was typed already is for the command
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
