"""Run a command beside a rank for a visitor: a `launch` command elsewhere that looks into a rank, such as `launch
exec`.
"""

import contextlib
import fcntl
import os
import pty
import pwd
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from typing import assert_never

from launcher.node.inside.visit_messages import (
    PIECE_BYTES,
    CommandEnded,
    FromVisitor,
    Given,
    InputEnds,
    Output,
    Resized,
    Signalled,
    Window,
)
from launcher.node.inside.visitor import VisitorConnection
from launcher.run.processes import descendants, die_with, end_all

_MOST_WAITING = 1 << 20  # bytes for a command that does not read
_LEAVE_S = 5.0
_NOT_FOUND, _NOT_RUN = 127, 126
_NO_SHELLS = ("nologin", "false", "true", "sync")


def users_shell() -> str:
    """Return the user's login shell, or `sh` if it has none that exists."""
    try:
        shell = pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        shell = ""
    return shell if os.access(shell, os.X_OK) and os.path.basename(shell) not in _NO_SHELLS else "/bin/sh"


def run_for_visitor(
    visitor: VisitorConnection,
    argv: Sequence[bytes | str],
    environment: Mapping[str, str],
    folder: str,
    window: Window | None,
) -> None:
    """Run the command line `argv` for the visitor, with the variables `environment` and in `folder`, until it ends, and
    send its exit code; end it if the visitor disconnects. A `window` gives it a terminal of that size, None gives it
    pipes. If it cannot be started, send the reason instead.
    """
    try:
        command = RankCommandProcess(argv, environment, folder, window)
    except OSError as error:
        text = f"launch: cannot run {os.fsdecode(argv[0])}: {(error.strerror or str(error)).lower()}\n"
        visitor.send(Output(text.encode(errors="replace"), err=True))
        missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
        visitor.send(CommandEnded(_NOT_FOUND if missing else _NOT_RUN))
        return
    try:
        code = command.serve(visitor)
    except (EOFError, BrokenPipeError):
        return  # the visitor has left
    finally:
        command.end()
    visitor.send(CommandEnded(code))


class RankCommandProcess:
    """A command in a session of its own, which the kernel ends if this process dies."""

    def __init__(
        self, argv: Sequence[bytes | str], environment: Mapping[str, str], folder: str, window: Window | None
    ) -> None:
        """Start a command; with `window` it gets a terminal of that size, else pipes."""
        self._terminal = window is not None
        ours, theirs = _pipes() if window is None else _terminal(window)
        self._in, self._out, self._err = ours
        me = os.getpid()
        try:
            self._process = subprocess.Popen(
                argv,
                env=environment,
                cwd=folder,
                stdin=theirs[0],
                stdout=theirs[1],
                stderr=theirs[2],
                start_new_session=True,
                preexec_fn=lambda: _bind_to_parent(me, terminal=self._terminal),  # noqa: PLW1509 - there is one thread
            )
        except BaseException:
            self._close()
            raise
        finally:
            for fd in {*theirs}:
                os.close(fd)
        self._ended = os.pidfd_open(self._process.pid)
        self._sources = {self._out: False, self._err: True} if window is None else {self._out: False}
        self._waiting = bytearray()
        self._input_ends = False
        os.set_blocking(self._in, False)

    def serve(self, visitor: VisitorConnection) -> int:
        """Relay input and output until the command has ended, and return its exit code; raise EOFError if the visitor
        disconnects.
        """
        while True:
            for word in visitor.receive() if visitor.has_more else ():
                self._obey(word)
            heard = [visitor.source] if len(self._waiting) < _MOST_WAITING else []
            wants = [self._in] if self._waiting else []
            ready, takes, _ = select.select([*heard, *self._sources, self._ended], wants, [])
            if takes:
                self._write_input()
            self._pass_on(visitor, [fd for fd in ready if fd in self._sources])
            if visitor.source in ready:
                for word in visitor.receive():
                    self._obey(word)
            if self._ended in ready:
                self._pass_on_remaining(visitor)
                code = self._process.wait()
                return code if code >= 0 else 128 - code

    def end(self) -> None:
        """End the command and everything that it has started, in any session: send it SIGHUP, SIGKILL if it still runs
        after five seconds, and then end all that is left.
        """
        for number in (signal.SIGHUP, signal.SIGKILL):
            if self._process.returncode is not None:
                break
            self._signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVE_S)
        end_all(lambda: descendants(os.getpid()))
        os.close(self._ended)
        self._close()

    def _obey(self, message: FromVisitor) -> None:
        """Apply one message of the visitor to the command: input, its end, a new window size, or a signal."""
        match message:
            case Given(data=data):
                self._waiting += data
                self._write_input()
            case InputEnds():
                self._input_ends = True
                self._write_input()
            case Resized(window=window):
                if self._terminal:
                    resize(self._in, window)
            case Signalled(number=number):
                self._signal(number)
            case _:
                assert_never(message)

    def _write_input(self) -> None:
        """Write received input to the command, as much as its stdin takes without blocking; the rest waits for the next
        call.

        After the last input its stdin is closed, unless it is a terminal.
        """
        try:
            while self._waiting:
                del self._waiting[: os.write(self._in, self._waiting)]
        except BlockingIOError:
            return
        except OSError:  # it reads no more
            self._waiting.clear()
            self._input_ends = True
        if self._input_ends and not self._terminal and self._in >= 0:
            os.close(self._in)
            self._in = -1

    def _pass_on(self, visitor: VisitorConnection, ready: Sequence[int]) -> None:
        """Send output from the descriptors in `ready` to the visitor, and stop reading those that have ended."""
        for fd in ready:
            try:
                data = os.read(fd, PIECE_BYTES)
            except OSError:  # the other end of a terminal closes so
                data = b""
            if data:
                visitor.send(Output(data, self._sources[fd]))
            else:
                del self._sources[fd]

    def _pass_on_remaining(self, visitor: VisitorConnection) -> None:
        """Send the visitor the output that is still in the pipes after the command's end, without waiting for their
        close: a child of the command may hold them open.
        """
        while self._sources and (ready := select.select([*self._sources], [], [], 0)[0]):
            self._pass_on(visitor, ready)

    def _signal(self, number: int) -> None:
        """Send a signal to the command's process group, if it still exists."""
        with contextlib.suppress(ProcessLookupError):  # it was not waited for: the number is its own yet
            os.killpg(self._process.pid, number)

    def _close(self) -> None:
        """Close the descriptors of the command's input and output."""
        for fd in {self._in, self._out, self._err} - {-1}:
            os.close(fd)


_Three = tuple[int, int, int]  # stdin, stdout, stderr


def _pipes() -> tuple[_Three, _Three]:
    """Open pipes for stdin, stdout and stderr; return (this process's three ends, the command's three ends)."""
    (their_in, our_in), (our_out, their_out), (our_err, their_err) = os.pipe(), os.pipe(), os.pipe()
    return (our_in, our_out, our_err), (their_in, their_out, their_err)


def _terminal(window: Window) -> tuple[_Three, _Three]:
    """Open a pseudo-terminal of the size of `window`; return (this process's end three times, the command's end three
    times), once for each of stdin, stdout and stderr.
    """
    ours, theirs = pty.openpty()
    resize(ours, window)
    return (ours, ours, ours), (theirs, theirs, theirs)


def resize(terminal: int, window: Window) -> None:
    """Set the size of the terminal behind the descriptor `terminal`."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", window.rows, window.columns, 0, 0))


def _bind_to_parent(parent: int, *, terminal: bool) -> None:
    """Have the kernel kill this process when `parent` dies, and with `terminal` make stdin its controlling terminal.

    It is called in the new process, before that becomes the command.
    """
    die_with(parent)
    if terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
