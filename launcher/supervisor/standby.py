"""Start a supervisor before it is needed: it boots, reports that it is up, and begins when it receives a message.

Two pipes connect it with its starter: on one it writes a line once it is up, from the other it reads the message.
Afterwards it is no child of the starter, and outlives it.
"""

import contextlib
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from launcher.errors import LaunchError
from launcher.node.environment import cleaned
from launcher.run.processes import TAG, forbid_core_dumps
from launcher.run.umask import make_files_private

_LAST_LINES = 10
BOOT_S = 30.0
_SETTINGS = ("LAUNCH_CLUSTERS", "LAUNCH_RUNS", "LAUNCH_SSH_CONFIG")  # by which one that waits looks at other runs


def supervisor_command(strategy: str, run_dir: Path, *words: str) -> list[str]:
    """Return the command line of a supervisor of the run in `run_dir`.

    `strategy` names, as MODULE:CLASS, the part of the supervisor that differs by the kind of cluster (a subclass of
    Strategy), and `words` are its arguments.
    """
    return [sys.executable, "-P", "-m", "launcher.supervisor", strategy, str(run_dir), *words]


class StandbySupervisor:
    """A supervisor, as seen by its starter; to create this object starts the process. It runs the strategy class
    `strategy`, written MODULE:CLASS, with the arguments `words`, for the run in `run_dir`.

    `keep` are descriptors that it inherits. `start` is a function that starts it, for instance by a fork of a process
    with all imports done; without one, or if that returns False, it is started as a child process.
    """

    def __init__(
        self,
        strategy: str,  # MODULE:CLASS
        run_dir: Path,
        words: Sequence[str] = (),
        keep: Sequence[int] = (),
        start: "SupervisorStarter | None" = None,
    ) -> None:
        up_read, up_write = os.pipe()
        go_read, self._go = os.pipe()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as we
        argv = [*supervisor_command(strategy, run_dir, *words), str(up_write), str(go_read)]
        env, fds = {**cleaned(os.environ), **_settings(os.environ), TAG: str(run_dir)}, (up_write, go_read, *keep)
        self._child: subprocess.Popen[bytes] | None = None
        try:
            if start is None or not start(argv, env, run_dir, self._said.fileno(), fds):
                self._child = subprocess.Popen(
                    argv,
                    env=env,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._said,
                    pass_fds=fds,
                    start_new_session=True,
                )
        finally:
            os.close(up_write)
            os.close(go_read)
        self._up = os.fdopen(up_read, "rb")

    def report(self, limit_s: float | None = None) -> bytes:
        """Wait for the line by which the supervisor reports that it is up, and return it.

        Raise LaunchError with the supervisor's output if it has exited or has not reported within `limit_s`; with None
        there is no limit.
        """
        ready, _, _ = select.select([self._up], [], [], limit_s)
        line = self._up.readline() if ready else b""
        if self._child is not None:
            if not line:
                self._child.kill()
            self._child.wait()
        if not line:
            self._said.seek(0)
            complaint = self._said.read().decode(errors="replace").strip().splitlines()
            self.close()
            raise LaunchError("the supervisor of the run did not start", *complaint[-_LAST_LINES:])
        return line

    def send(self, word: bytes) -> None:
        """Write `word`, the message at which the supervisor begins, to its pipe; do not wait until it is read there.

        The strategy in the supervisor reads it from `go`, the argument of its method `supervise`.
        """
        os.write(self._go, word)

    def start(self, attempt: int) -> None:
        """Wait until the supervisor is up, have it run attempt number `attempt`, and close the pipes; raise LaunchError
        if it does not come up.
        """
        self.report(BOOT_S)
        self.send(f"{attempt}\n".encode())
        self.close()

    def drop(self) -> None:
        """Have the supervisor exit without running anything, because the submit has failed."""
        self.close()

    def close(self) -> None:
        """Close the pipes to the supervisor. A supervisor that was not sent its message to begin then exits, unless the
        records on disk say that it is to begin.

        If it was started as a child, wait for that child, which exits once the supervisor has detached itself.
        """
        os.close(self._go)
        self._up.close()
        self._said.close()
        if self._child is not None:
            self._child.wait()


def _settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return those of the variables in `environ` that say where the user keeps runs, clusters and SSH configuration,
    such as LAUNCH_RUNS.
    """
    return {name: environ[name] for name in _SETTINGS if name in environ}


class SupervisorStarter(Protocol):
    """A function that starts a supervisor by the command `argv` for the run in `run_dir`, with the variables `env`. The
    supervisor inherits the descriptors `fds`, and its errors go to the descriptor `stderr`. The function returns False
    if it could not start it, and the caller then starts a child process.
    """

    def __call__(
        self, argv: Sequence[str], env: Mapping[str, str], run_dir: Path, stderr: int, fds: Sequence[int]
    ) -> bool:
        """Start the command as `subprocess` would, detached; return False if it was not started."""


def detach(*, already: bool = False) -> None:
    """Make the files that this process writes readable only by its user, forbid core dumps, and detach it from its
    starter: the parent of a fork exits, and only the child returns. With `already` it was started detached, and nothing
    is forked.
    """
    make_files_private()
    forbid_core_dumps()
    if not already and os.fork():
        os._exit(0)


def report(up_fd: int, line: bytes) -> None:
    """Write `line`, which says that this process is up, to `up_fd` and close it; a starter that has died meanwhile is
    ignored.
    """
    with contextlib.suppress(BrokenPipeError), os.fdopen(up_fd, "wb") as up:
        up.write(line)
