"""A command of `launch` on the login node: its output goes over the connection, and its end is never left open."""

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import termios

from launcher.remote.wire import EXIT_CODE, STDERR, STDOUT, Command, Incoming, Terminal, frame
from launcher.rundir.durable import write_all

_CHUNK = 1 << 16
# How it is told that nobody listens any more. A Ctrl-C that comes while Python starts may be lost.
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
_STOP_S = 3.0
_LET_FINISH = (("cancel",),)  # half a cancel helps nobody


def carry_out(command: Command, incoming: Incoming, connection: int) -> int:
    """Run it; it gets a Ctrl-C where nobody listens any more. Gives its exit code."""
    ended, mark = os.pipe()  # the child has the only other end
    sources, out, err = _streams(command.terminal)
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "launcher.cli.main", *command.argv],
        env={**os.environ, **(command.terminal.environment if command.terminal is not None else {})},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        pass_fds=(mark,),
    )
    for fd in {mark, out, err}:
        os.close(fd)
    patient = command.argv[:1] in _LET_FINISH
    try:
        _relay(child, sources, ended, None if patient else incoming, connection)
        code = _code(child.wait())
        write_all(connection, frame(EXIT_CODE, str(code).encode()))
    except (BrokenPipeError, ConnectionResetError):
        code = _code(child.wait() if patient else _stopped(child))
    return code


def _streams(terminal: Terminal | None) -> tuple[dict[int, int], int, int]:
    """Where its output is read and on which channel that goes, and what the command is given as stdout and stderr."""
    sources: dict[int, int] = {}
    given = -1
    if terminal is not None and (terminal.out or terminal.err):
        ours, given = pty.openpty()
        attributes = termios.tcgetattr(given)
        attributes[1] &= ~termios.OPOST  # the terminal at the other end does that
        termios.tcsetattr(given, termios.TCSANOW, attributes)
        termios.tcsetwinsize(given, (terminal.rows, terminal.columns))
        sources[ours] = STDOUT if terminal.out else STDERR
    ends = []
    for channel, shown in ((STDOUT, terminal and terminal.out), (STDERR, terminal and terminal.err)):
        if shown:
            ends.append(given)
        else:
            ours, end = os.pipe()
            sources[ours] = channel
            ends.append(end)
    return sources, ends[0], ends[1]


def _relay(
    child: "subprocess.Popen[bytes]", sources: dict[int, int], ended: int, incoming: Incoming | None, connection: int
) -> None:
    """Copy what it writes until it has ended; when the other side hangs up (`incoming` is at its end) it is told."""
    stops = iter(_STOPS)
    stopping = False
    while sources:
        listening = [] if incoming is None else [incoming.fileno()]
        ready, _, _ = select.select([*sources, ended, *listening], [], [], _STOP_S if stopping else None)
        if set(listening) & set(ready):
            incoming, stopping = None, True
            child.send_signal(next(stops))
        elif not ready:
            child.send_signal(next(stops, signal.SIGKILL))
        written = [fd for fd in ready if fd in sources]
        for fd in written:
            if data := _read(fd):
                write_all(connection, frame(sources[fd], data))
            else:
                del sources[fd]
        if ended in ready and not written:
            return  # whoever else has its stdout, such as a process that it left behind, is not waited for


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, _CHUNK)
    except OSError:  # a terminal whose other end has closed
        return b""


def _stopped(child: "subprocess.Popen[bytes]") -> int:
    for number in _STOPS:
        child.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(_STOP_S)
    return child.wait()


def _code(code: int) -> int:
    return code if code >= 0 else 128 - code
