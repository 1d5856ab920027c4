"""A zygote that is shared by all runs which one process submits on this machine: it imports torch once, and each run
gets a copy of it by fork.

    conductor ── SharedZygote ── zygote.py lend ── fork ─► supervisor of a run, by exec
                                                             └─ fork ─► its agent, by exec, when the supervisor says so
                                                                          └─ fork ─► the agent's zygote

A process keeps its children over an exec, so that every process has its usual parent: a supervisor none, an agent its
supervisor, a zygote its agent, with which it dies. If there is no shared zygote, or it has imported other modules than
the run needs, the run's agent starts a zygote of its own.
"""

import contextlib
import json
import os
import select
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from launcher.node import ZYGOTE
from launcher.node.environment import cleaned, node_environment
from launcher.node.standing_by import send_arguments
from launcher.plan.model import Plan
from launcher.run.patience import say
from launcher.run.processes import TAG
from launcher.supervisor.standby import StandbySupervisor
from launcher.wire.interfaces import interface_of

_ROOM, _ROOM_BYTES = "LAUNCH_TAG_ROOM", 4200  # for the longest path, where the kernel shows it
_SUPERVISOR = "launcher.places.local.local_supervisor:LocalSupervisor"
_IMPORT_S = 120.0  # then runs start without it
_ANSWER_S = 10.0  # for what takes milliseconds
_MOST = 3  # are started, one after another, by one process
_LOG = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW


class SharedZygote:
    """A zygote process shared by several runs, and the connection to it."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        """Start the zygote in the folder, which has a copy of the run's code, and have it import what runs like this
        one need.
        """
        environment = _environment(plan, folder)
        self._socket, theirs = socket.socketpair()
        log = os.open(folder / "zygote.log", _LOG, 0o600)
        try:
            self._child = subprocess.Popen(
                [plan.entry.python, str(ZYGOTE), "lend", str(theirs.fileno()), str(os.getpid())],
                env=environment,
                cwd=folder / plan.workdir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            os.close(log)
            theirs.close()
        self._overdue_at = time.monotonic() + _IMPORT_S
        self._unread = b""
        self.ready = self.gone = False
        self._say({"op": "preload", "modules": list(plan.entry.preload)})

    def look(self) -> None:
        """Read the zygote's messages and set `ready` once its imports are done, or `gone` once it has ended. End it if
        its imports take longer than their time limit.
        """
        if self._child.poll() is not None:
            self.close()
        while not (self.ready or self.gone) and self._receive_kind(0.0) is not None:
            pass
        if not self.ready and time.monotonic() > self._overdue_at:
            say(f"the shared zygote has not imported all within {_IMPORT_S:g} s: runs start without it")
            self.close()

    def start_supervisor(
        self, argv: Sequence[str], env: Mapping[str, str], run_dir: Path, stderr: int, fds: Sequence[int]
    ) -> bool:
        """Start the supervisor of the run in `run_dir` as a fork of the zygote, with the command line `argv` and the
        variables `env`. Its errors go to the descriptor `stderr`, and it gets the descriptors `fds` under the same
        numbers. Return False if the zygote did not start it.
        """
        null = os.open(os.devnull, os.O_RDWR)
        words = {"argv": list(argv), "env": dict(env), "run_dir": str(run_dir), "fds": [0, 1, 2, *fds]}
        try:
            self._say({"op": "supervisor", **words}, [null, null, stderr, *fds])
        finally:
            os.close(null)
        answer = self._receive_kind(_ANSWER_S)
        if answer is None:
            self.close()
            return False
        if answer != "forked":
            say(f"the shared zygote starts no supervisor: {answer}")
        return answer == "forked"

    def close(self) -> None:
        """End the zygote; copies of it that runs use live on."""
        self.gone, self.ready = True, False
        self._child.kill()
        self._child.wait()
        self._socket.close()

    def _say(self, words: Mapping[str, object], fds: Sequence[int] = ()) -> None:
        """Send the zygote the message `words` together with the descriptors `fds`; do nothing if it has ended."""
        with contextlib.suppress(OSError):  # it has ended, which its stream shows too
            send_arguments(self._socket, words, fds)

    def _receive_kind(self, within_s: float) -> str | None:
        """Return the kind of the zygote's next message, such as `ready` or `forked`, or the reason as text if the
        message refuses a request. Return None if no message comes within `within_s`, or if the zygote has ended.
        """
        deadline = time.monotonic() + within_s
        while b"\n" not in self._unread:
            if self.gone or not select.select([self._socket], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                self.close()
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        word = json.loads(line)
        self.ready = self.ready or word["op"] == "ready"
        return str(word.get("reason", word["op"]))


def _environment(plan: Plan, folder: Path) -> dict[str, str]:
    """Return the environment in which the zygote starts, which has what is common to the agents of its runs.

    Paths that lie in the run's folder for an agent lie in `folder` here, which contains the code of these runs.
    """
    node, shared = plan.nodes[0], msgspec.structs.replace(plan, run_dir=str(folder))
    interface = interface_of(node.address) if node.address else None
    environment = node_environment(cleaned(os.environ), shared, node, 1, {}, None, interface)
    return {TAG: str(folder), _ROOM: "-" * _ROOM_BYTES, **{k: v for k, v in environment.items() if k != TAG}}


@dataclass(slots=True)
class _Lending:
    """The objects that this process shares among its runs: the zygote and, in `expected`, a supervisor that was
    started before its run existed, with the folder that the run will have.
    """

    zygote: SharedZygote | None = None
    expected: tuple[Path, StandbySupervisor] | None = None
    started: int = 0  # zygotes that were started, as each one that ends is replaced
    hopeless: bool = False  # none is started any more: too many have ended, or one could not be started


_lending = _Lending()


def warm_up(plan: Plan, folder: Path) -> bool:
    """Start a zygote that this run and later ones of this process share, unless there is one; it makes the imports that
    `plan` names, and `folder` has the runs' `code/`. Return False while its imports are under way; return True once
    they are done, or if no zygote is used.

    None is used for a run that is a command, names no imports or has a setup of its own, nor once a zygote could not be
    started or three have been used up.
    """
    entry = plan.entry
    if _lending.hopeless or not entry.preload or plan.setup is not None or entry.kind == "command":
        return True
    if _lending.zygote is None or _lending.zygote.gone:
        if _lending.started == _MOST:
            _lending.hopeless = True
            return True
        _lending.started += 1
        try:
            _lending.zygote = SharedZygote(plan, folder)
        except OSError as error:
            say(f"there is no shared zygote: {error}")
            _lending.hopeless = True
            return True
    _lending.zygote.look()
    return _lending.zygote.ready


def expect(run_dir: Path) -> None:
    """Start a supervisor and an agent in advance for the next run, whose folder will be `run_dir`. If the next run has
    another folder, they are ended, and new ones are started for it.
    """
    if _lending.expected is None or _lending.expected[0] != run_dir:
        _lending.expected = run_dir, supervisor_of(run_dir)


def supervisor_of(run_dir: Path) -> StandbySupervisor:
    """Return a process that can become the supervisor of the run in `run_dir`: the one that `expect` started in advance
    if it was started for this folder, else a new one. One that `expect` started for another folder is closed.
    """
    before, _lending.expected = _lending.expected, None
    if before is not None and before[0] == run_dir:
        return before[1]
    if before is not None:
        before[1].close()
    zygote = _lending.zygote
    start = zygote.start_supervisor if zygote is not None and zygote.ready else None
    return StandbySupervisor(_SUPERVISOR, run_dir, start=start)
