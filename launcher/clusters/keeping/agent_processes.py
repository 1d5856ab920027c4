"""Processes that carry out an attempt: started, watched, brought back when they die. The first one leads."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.agent.environment import job_environment
from launcher.agent.processes import TAG, become_subreaper, descendants, end_all, orphans
from launcher.clusters.keeping.wakeup import Wakeup
from launcher.errors import Exit
from launcher.plan.model import Plan
from launcher.rundir.durable import make_dir
from launcher.rundir.layout import AttemptDir

_LOG = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
_RETURN_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)


@dataclass(slots=True)
class AgentProcess:
    """One process that is to be there: how it is started, and who holds the post now."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    keep: Sequence[int] = ()  # descriptors that it is given: they hold what the run may use
    pid: int | None = None
    deaths: int = 0
    last: int | None = None  # how its last holder ended: a wait status
    returns_at: float | None = None


def agent_process(
    plan: Plan, attempt: AttemptDir, node: int, *, keep: Sequence[int] = (), gpus: Sequence[str] | None = None
) -> AgentProcess:
    """The agent of a node on this machine. `gpus`: all that it may use; None: the plan says, or nobody keeps count."""
    argv = (sys.executable, "-P", "-m", "launcher.agent", plan.run_dir, str(attempt.number), str(node))
    environment = {**job_environment(os.environ), TAG: plan.run_dir}
    if gpus is not None:
        environment |= {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # as we count them
    return AgentProcess(argv, environment, attempt.agent_log(node), keep)


class AgentProcesses:
    """All posts of this machine. Whatever they leave behind is ours to end: we are the parent of orphans."""

    def __init__(
        self, posts: Sequence[AgentProcess], bell: Wakeup, *, leads: bool = True, return_s: Sequence[float] = _RETURN_S
    ) -> None:
        become_subreaper()
        self._posts = posts
        self._leads = leads  # the first post's end is the end of all; else it is manned again like the others
        self._bell = bell
        self._return_s = return_s  # how long a post stays empty after its first, second, ... death

    def start(self) -> None:
        for post in self._posts:
            self._man(post)

    def watch(self, until: float | None, *, bring_back: bool = True) -> int | None:
        """Wait for the bell or that moment, deal with the dead; gives the leader's wait status once it is one of them.

        Who left because all is done, or because a newer attempt took over, is not brought back.
        """
        moments = [post.returns_at for post in self._posts if post.returns_at is not None] if bring_back else []
        moments += [] if until is None else [until]
        self._bell.sleep(min(moments) - time.monotonic() if moments else None)
        for pid, status in _reaped():
            if self._leads and pid == self._posts[0].pid:
                self._posts[0].pid = None
                return status
            self._lost(pid, status)
        now = time.monotonic()
        for post in self._posts if bring_back else ():
            if post.returns_at is not None and now >= post.returns_at:
                self._man(post)
        return None

    def all_gone(self, for_good: bool) -> bool:
        """Nobody is there any more, and, unless that is wanted now, nobody is to come back."""
        return all(post.pid is None and (for_good or post.returns_at is None) for post in self._posts)

    def signal_first(self) -> None:
        leader = self._posts[0].pid
        if leader is not None:
            os.kill(leader, signal.SIGTERM)  # our own child, not reaped yet: the pid cannot be another's

    def wait_for_others(self, timeout_s: float) -> None:
        """The others were told to leave: give them a moment to tidy up."""
        waiting = {post.pid for post in self._posts[1:] if post.pid is not None}
        deadline = time.monotonic() + timeout_s
        while waiting and time.monotonic() < deadline:
            self._bell.sleep(deadline - time.monotonic())
            waiting -= {pid for pid, _ in _reaped()}

    def end(self) -> None:
        """Nothing below this process is left."""
        end_all(lambda: descendants(os.getpid()))
        _reaped()

    def _man(self, post: AgentProcess) -> None:
        make_dir(post.log.parent)
        log = os.open(post.log, _LOG, 0o600)
        try:
            child = subprocess.Popen(
                post.argv,
                env=post.environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=tuple(post.keep),
                start_new_session=True,
            )
        finally:
            os.close(log)
        child.returncode = 0  # reaped by pid, like the orphans
        post.pid, post.returns_at = child.pid, None

    def _lost(self, pid: int, status: int) -> None:
        """End what it left; the post is manned again after a while, like a node that rebooted."""
        post = next((post for post in self._posts if post.pid == pid), None)
        if post is None:
            return  # an orphan that we inherited
        post.pid, post.last = None, status
        end_all(lambda: orphans(os.getpid(), {other.pid for other in self._posts if other.pid is not None}))
        if comes_back(status):
            post.returns_at = time.monotonic() + self._return_s[min(post.deaths, len(self._return_s) - 1)]
            post.deaths += 1


def comes_back(status: int) -> bool:
    """Whether who ended so should be started again."""
    return os.WIFSIGNALED(status) or os.WEXITSTATUS(status) not in (Exit.OK, Exit.FENCED)


def _reaped() -> list[tuple[int, int]]:
    dead: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return dead
        if pid == 0:
            return dead
        dead.append((pid, status))
