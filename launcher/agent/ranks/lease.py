"""The lease under which ranks run on a node, and the process that ends them when it has run out.

    agent ── renews ──► Lease (memory of both) ◄── looks ── guard ── has run out ──► SIGKILL to all below the agent,
                                                                                     and to the agent if it stays

An agent that is frozen cannot end its ranks, so somebody else does. The guard is a fork of the agent, made before all
else, in a session of its own; the two die together.
"""

import mmap
import os
import select
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

from launcher.agent.processes import descendants, die_with, end_all
from launcher.clock import WakingClock, boottime

_LOOK_S = 0.5
_FAREWELL_S = 2.0  # for an agent that is awake, and leaves by itself
_DEAF_TO = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class Lease:
    """Until when ranks may run here, by `boottime`: one number, which processes that are forked later see too."""

    def __init__(self) -> None:
        self._shared = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("d")
        self.until = float("inf")

    @property
    def until(self) -> float:
        return self._shared[0]

    @until.setter
    def until(self, moment: float) -> None:
        self._shared[0] = moment


class LeaseWatch:
    """How much of a lease is left, to whoever looks at it often.

    `forgiving`: what the one that looks has slept through does not count, because nobody can have taken the place of
    this agent meanwhile.
    """

    def __init__(self, *, forgiving: bool, clock: Callable[[], float] = boottime) -> None:
        self._forgiving, self._clock = forgiving, clock
        self._waking = WakingClock(clock)
        self._until, self._slept_before_s = 0.0, 0.0

    def left_s(self, until: float) -> float:
        slept_s = self._waking.slept_s
        self._waking.now()
        if until != self._until:
            self._until, self._slept_before_s = until, slept_s
        forgiven_s = self._waking.slept_s - self._slept_before_s if self._forgiving else 0.0
        return until + forgiven_s - self._clock()


@dataclass(frozen=True, slots=True)
class Guard:
    """Of this process and all below it."""

    lease: Lease
    pid: int
    forgiving: bool


def post_guard(*, forgiving: bool) -> Guard:
    """Start the process that ends what is below this one when the lease has run out."""
    agent, lease = os.getpid(), Lease()
    pid = os.fork()
    if pid:
        return Guard(lease, pid, forgiving)
    try:
        for number in _DEAF_TO:
            signal.signal(number, signal.SIG_IGN)  # batch systems send them to every process of a job
        die_with(agent)
        os.setsid()
        _keep_watch(lease, agent, LeaseWatch(forgiving=forgiving))
    except Exception:  # noqa: BLE001 - whatever it is, the agent's log is to say why it has no guard
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def _keep_watch(lease: Lease, agent: int, watch: LeaseWatch) -> None:
    handle = os.pidfd_open(agent)
    while True:
        while (left_s := watch.left_s(lease.until)) > 0:
            select.select([handle], [], [], min(left_s, _LOOK_S))
        end_all(lambda: descendants(agent, keep=(os.getpid(),)))
        gone, _, _ = select.select([handle], [], [], _FAREWELL_S)
        if not gone and watch.left_s(lease.until) <= 0:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
