"""A program on this machine as a `Channel`, the interface of a remote command: its stdin and stdout are pipes, and its
stderr is kept in a file.
"""

import contextlib
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any

LEAVE_S = 2.0  # for a program that is asked to exit, or whose connection has ended
_CHUNK = 1 << 18
_MOST_COMPLAINTS = 16 << 20


class ProgramChannel:
    """A program on this machine in a session of its own, so that a Ctrl-C at the terminal does not reach it."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        # A file, so that no full pipe stops it.
        self._complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as we
        try:
            self.process = subprocess.Popen(
                argv,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                bufsize=0,
                start_new_session=True,
            )
        except BaseException:
            self._complaints.close()
            raise
        self._stdin, self._stdout = _pipe(self.process.stdin), _pipe(self.process.stdout)
        os.set_blocking(self._stdin.fileno(), False)
        self._told = 0  # bytes of the complaints that were given out
        self._ended = False  # its stdout is kept open, so that a waiting reader notices the end

    @property
    def ready_fd(self) -> int:
        """Return a descriptor that is readable when `take` may have output to return."""
        return self._stdout.fileno()

    def give(self, data: bytes, wait_s: float) -> int:
        """Write data to the program's stdin and return how many bytes were accepted within `wait_s`; raise EOFError if
        stdin is closed.
        """
        if self._stdin.closed:
            raise EOFError
        try:
            return os.write(self._stdin.fileno(), data)
        except BlockingIOError:
            select.select([], [self._stdin.fileno()], [], wait_s)
            return 0
        except OSError:
            raise EOFError from None

    def end_input(self) -> None:
        """Close the program's stdin."""
        with contextlib.suppress(OSError):
            self._stdin.close()

    def take(self, wait_s: float) -> tuple[bytes, bytes] | None:
        """Return (new stdout, new stderr) after waiting up to `wait_s`, or None once both have ended."""
        if self._ended:
            return None
        ready, _, _ = select.select([self._stdout.fileno()], [], [], wait_s)
        data = os.read(self._stdout.fileno(), _CHUNK) if ready else b""
        if ready and not data:
            self._ended = True
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(LEAVE_S)
        return data, self._new_stderr()

    def code(self, wait_s: float) -> int | None:
        """Return the exit code, -1 after a signal, or None if the program has not ended within `wait_s`."""
        try:
            code = self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return None
        return -1 if code < 0 else code

    def close(self) -> None:
        """End the program and its children on this machine. A command that it runs on another machine ends, if at all,
        by itself.
        """
        _end(self.process)
        self.end_input()
        self._ended = True
        self._stdout.close()
        self._complaints.close()

    def _new_stderr(self) -> bytes:
        """Return new output on the program's stderr, at most the last 16 MiB of it.

        The file that receives it is emptied once it is larger, so that it does not fill the disk.
        """
        fd = self._complaints.fileno()
        end = os.fstat(fd).st_size
        start = max(self._told, end - _MOST_COMPLAINTS)
        new = os.pread(fd, max(0, end - start), start)
        self._told = start + len(new)
        if end > _MOST_COMPLAINTS:
            os.ftruncate(fd, 0)  # the writer continues at its old offset
        return new


def _end(process: "subprocess.Popen[Any]") -> None:
    """Send SIGTERM to the program and its children, then SIGKILL if the program has not ended within two seconds; wait
    two seconds more at most.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            return  # its number may be another's by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LEAVE_S)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    """Return the pipe, whose type in Popen allows None; raise ValueError if it is None."""
    if pipe is None:
        raise ValueError("expected a pipe")
    return pipe
