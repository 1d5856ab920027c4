"""The lease under which ranks run on a node: an agent renews it while the coordinator answers, and once it has expired
the watchdog, or else the supervisor, kills the ranks and then the agent.

    agent ── renews ──► Lease (memory of all three) ◄── looks ─┬─ watchdog: has run out ──────┐
                                                               └─ supervisor: 0.5 s later ────┴► SIGKILL to all below
                                                                                                 the agent, then to it

A separate process enforces the lease, because a frozen agent cannot. The watchdog is a fork of the agent, made before
anything else, in a session of its own; if one of the two dies, so does the other. The supervisor that started the agent
acts if the watchdog is frozen or killed as well. If the supervisor is, too, the zygote kills an agent that a signal has
stopped for three seconds, whose ranks die with it.
"""

import contextlib
import mmap
import os
import select
import signal
import sys
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from launcher.clock import WakingClock, boottime
from launcher.coordinator.history_copies import HistoryCopies
from launcher.plan.on_hosts import leader_may_be_replaced
from launcher.run.identity import process_id
from launcher.run.processes import descendants, die_with, end_all, is_stopped, name_this, signal_process

if TYPE_CHECKING:
    from launcher.plan.model import Plan
    from launcher.run.records import ProcessId

_LOOK_S = 0.5
_SOON_S = 0.05  # where it is asked: who woke it may wake those that it holds
FAREWELL_S = 2.0  # for an agent that is awake, and leaves by itself
LEASE, _NAME = "LAUNCH_LEASE", "launch-lease"
_DEAF_TO = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class AfterSuspend(Enum):
    """How to treat a lease that expired while watchdog, agent and ranks were suspended together.

    FORGIVEN: the suspended time does not count, as no other node can have replaced this one. ASKED: ranks stay stopped
    until the coordinator decides. COUNTS: the lease has expired.
    """

    FORGIVEN = auto()  # it does not count the suspended time: no other node can have replaced this one
    ASKED = auto()  # ranks stay stopped until the coordinator says whether another node has replaced this one
    COUNTS = auto()  # it has expired: other nodes may have replaced this one, even without the coordinator


class Lease:
    """The time by `boottime` until which ranks may run here, in memory that agent, watchdog and supervisor share."""

    def __init__(self, fd: int = -1) -> None:
        """Open the lease behind a descriptor of `shared_memory`, or with -1 make a lease that only forks of this
        process see.
        """
        self._shared = memoryview(mmap.mmap(fd, mmap.PAGESIZE)).cast("d")
        self.copies = HistoryCopies(self._shared[2:3])
        self.notify: Callable[[], None] = lambda: None  # sets the event of the supervisor that shares it
        if fd == -1:
            self.until = float("inf")

    @classmethod
    def taken_from(cls, environ: MutableMapping[str, str]) -> "Lease":
        """Open the lease that the supervisor of this agent passes in `environ`, and remove the variable from it; make a
        new lease if it passes none.
        """
        word = environ.pop(LEASE, "")
        fd = int(word) if word.isdecimal() else -1
        if not _is_lease(f"/proc/self/fd/{fd}"):  # a container passes variables on, and not descriptors
            return cls()
        os.set_inheritable(fd, False)  # and open: a supervisor that returns opens it there
        return cls(fd)

    @classmethod
    def of_agent(cls, pid: int) -> "Lease | None":
        """Open the lease of an agent that another supervisor has started, through the agent's descriptors in /proc.
        Return None if there is none, or this process has no permission to open it.
        """
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                if _is_lease(path := f"/proc/{pid}/fd/{number}"):
                    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                    try:
                        return cls(fd)
                    finally:
                        os.close(fd)
        return None

    @property
    def broken(self) -> bool:
        """Return whether the lease has expired and its ranks have been ended or are being ended."""
        return self._shared[1] != 0.0

    def break_off(self) -> None:
        """Record in the shared memory that the lease has expired and that its ranks are being ended, so that `broken`
        is True in all processes. The caller ends the ranks.
        """
        self._shared[1] = 1.0

    @property
    def standby(self) -> int:
        """Return the pid of the process that waits to become the node's next agent and is not killed when the lease
        expires, or 0 if there is none.
        """
        return int(self._shared[3])

    @standby.setter
    def standby(self, pid: int) -> None:
        """Record that the process with this pid waits to become the node's next agent."""
        self._shared[3] = pid

    @property
    def exit_code(self) -> int | None:
        """Return the exit code that the agent has set for its supervisor before it exits, or None if there is none."""
        return int(self._shared[4]) - 1 if self._shared[4] else None

    @exit_code.setter
    def exit_code(self, code: int) -> None:
        """Set the exit code with which the agent leaves, for a supervisor that is not the agent's parent."""
        self._shared[4] = code + 1

    @property
    def until(self) -> float:
        """Return the time by `boottime` at which the lease expires."""
        return self._shared[0]

    @until.setter
    def until(self, moment: float) -> None:
        """Set the time by `boottime` at which the lease expires."""
        self._shared[0] = moment


def shared_memory() -> tuple[int, dict[str, str]]:
    """Make a new lease, which does not expire until its agent has set a time for that, and return (its descriptor, the
    variable that passes the descriptor's number to the agent).
    """
    fd = os.memfd_create(_NAME)
    os.truncate(fd, mmap.PAGESIZE)
    Lease(fd).until = float("inf")
    return fd, {LEASE: str(fd)}


def _is_lease(fd: str) -> bool:
    """Return whether the descriptor, a link in /proc, is that of a lease made by `shared_memory`."""
    try:
        return os.readlink(fd).startswith(f"/memfd:{_NAME}")
    except OSError:
        return False


def after_suspend(plan: "Plan", index: int) -> AfterSuspend:
    """Return how node `index` treats a lease that expired while its agent, watchdog and ranks were all suspended.

    It is expired (COUNTS) if other hosts may have elected another leader meanwhile. Else the suspended time is forgiven
    on node 0, where the coordinator is, and other nodes ask the coordinator.
    """
    if leader_may_be_replaced(plan):
        return AfterSuspend.COUNTS  # nor does a FORGIVEN coordinator decide alone then
    return AfterSuspend.FORGIVEN if index == 0 else AfterSuspend.ASKED


class LeaseWatch:
    """A calculator of the time that is left of one lease. How long this process was suspended is found by the gap
    between two calls of `left_s`: time beyond two seconds counts as suspended, so the caller has to call more often
    than that.
    """

    def __init__(self, slept: AfterSuspend, clock: Callable[[], float] = boottime) -> None:
        self._slept, self._clock = slept, clock
        self._waking = WakingClock(clock)
        self._until, self._slept_before_s = 0.0, 0.0

    def left_s(self, until: float) -> float:
        """Return the seconds until the lease expires, negative if it has. `until` is the time of its end, as the last
        renewal set it, by `boottime`, a clock that runs on while the node is suspended.

        The lease lasts longer by the time for which the node was suspended since that renewal, unless the node's rule
        (`AfterSuspend`) is COUNTS.
        """
        slept_s = self._waking.slept_s
        self._waking.now()
        if until != self._until and until > self._clock():  # a renewal from before the suspension does not count
            self._slept_before_s = slept_s
        self._until = until
        forgiven_s = 0.0 if self._slept is AfterSuspend.COUNTS else self._waking.slept_s - self._slept_before_s
        return until + forgiven_s - self._clock()

    def needs_ruling(self, until: float) -> bool:
        """Return whether the lease, which expires at the time `until` by `boottime`, has done so only because of
        suspended time that may or may not count, which the coordinator has to decide.
        """
        return self._slept is AfterSuspend.ASKED and until <= self._clock()


class Held:
    """The processes that `hold` has stopped with SIGSTOP, until `let_go` continues them."""

    def __init__(self) -> None:
        self._held: dict[ProcessId, None] = {}

    def hold(self, pids: Iterable[int]) -> None:
        """Stop the processes in `pids`; leave alone any that are stopped already."""
        moving = (process_id(pid) for pid in pids if not is_stopped(pid))
        self._held |= {one: None for one in moving if one is not None and signal_process(one, signal.SIGSTOP)}

    def let_go(self) -> None:
        """Continue all processes that `hold` stopped."""
        while self._held:
            signal_process(self._held.popitem()[0], signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class Watchdog:
    """A handle on the process that ends this process and all below it once the lease has expired. `slept` says how it
    treats time spent suspended.
    """

    lease: Lease
    pid: int
    slept: AfterSuspend  # how it treats time spent suspended


def start_watchdog(slept: AfterSuspend, clock: Callable[[], float] = boottime, lease: Lease | None = None) -> Watchdog:
    """Fork the watchdog from this process, the agent, and return a handle on it. Once the lease has expired by `clock`,
    it ends all other processes below this one, except the zygote's standby, and then this one.

    Without `lease`, a new lease is made. `slept` says how time spent suspended is treated. The zygote is the process
    that forks ranks, and its standby is a fork of it that can replace it.
    """
    agent, lease = os.getpid(), lease or Lease()
    pid = os.fork()
    if pid:
        return Watchdog(lease, pid, slept)
    try:
        name_this("launch-watchdog")
        for number in _DEAF_TO:
            signal.signal(number, signal.SIG_IGN)  # batch systems send them to every process of a job
        die_with(agent)
        os.setsid()
        _keep_watch(lease, agent, LeaseWatch(slept, clock))
    except Exception:  # noqa: BLE001 - whatever it is, the agent's log is to say why it has no watchdog
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def _keep_watch(lease: Lease, agent: int, watch: LeaseWatch) -> None:
    """Run the watchdog: once the lease expires by the time that `watch` counts, end all processes below the process
    `agent` except the zygote's standby, and then that process.

    While it is undecided whether a suspension of the machine counts, those processes are stopped (SIGSTOP).
    """
    handle, held, me = os.pidfd_open(agent), Held(), (os.getpid(),)
    while True:
        while (left_s := watch.left_s(lease.until)) > 0:
            if needs_ruling := watch.needs_ruling(lease.until):
                held.hold(descendants(agent, keep=me))
            else:
                held.let_go()
            select.select([handle], [], [], min(left_s, _SOON_S if needs_ruling else _LOOK_S))
        lease.break_off()
        end_all(lambda: descendants(agent, keep=(*me, lease.standby)))
        gone, _, _ = select.select([handle], [], [], FAREWELL_S)
        if not gone and watch.left_s(lease.until) <= 0:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
