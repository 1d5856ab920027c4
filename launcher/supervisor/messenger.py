"""Start the process that sends the notifications of an attempt (`notify/`), without waiting for it."""

import contextlib
import os
import select
import subprocess
import sys
from pathlib import Path

from launcher.run.layout import AttemptDir, RunDir
from launcher.run.patience import say
from launcher.run.processes import TAG

LINGER_S = 600.0  # how long it keeps trying after the run has ended, if nothing waits for it
_LOG = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW


class Messenger:
    """The process that sends an attempt's notifications; it outlives the supervisor that starts it. There is none if
    the run has no recipients of notifications, or if it cannot be started.
    """

    def __init__(self, run: RunDir, attempt: AttemptDir, linger_s: float = LINGER_S) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        if run.notify.exists():
            try:
                self._child = _started(run.path, attempt, linger_s)
            except OSError as error:
                say(f"no notification of this attempt is sent: {error}")

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the pid of the notifying process, or () if there is none."""
        return (self._child.pid,) if self._child is not None else ()

    def close(self, wait_s: float = 0.0) -> None:
        """End the input of the notifying process after the last record, and wait up to `wait_s` for it to exit.

        It is not killed after that: it goes on sending what is due.
        """
        child = self._child
        if child is None or child.stdin is None:
            return
        child.stdin.close()
        with contextlib.suppress(OSError):  # it has ended, and was reaped
            handle = os.pidfd_open(child.pid)
            try:
                poll = select.poll()
                poll.register(handle)
                poll.poll(wait_s * 1000)
            finally:
                os.close(handle)
        child.returncode = 0  # a supervisor reaps all children


def _started(folder: Path, attempt: AttemptDir, linger_s: float) -> "subprocess.Popen[bytes]":
    """Start and return the notifying process of the run in `folder`, which sends for up to `linger_s` seconds after its
    stdin has ended.
    """
    log = os.open(attempt.messenger_log, _LOG, 0o600)
    try:
        return subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "launcher.programs",
                "notify",
                str(folder),
                str(attempt.number),
                f"{linger_s:g}",
            ],
            env={name: value for name, value in os.environ.items() if name != TAG},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)
