"""Take slots (GPUs or CPU slots) of a machine for a run, or a position in the queue for them, where no scheduler does
it. A slot is an abstract unix socket, whose name only one process can bind; the kernel frees it when that process
exits.

No file and no daemon is needed, and all users in the same network namespace see the slots; a container with a network
of its own counts as another machine.
"""

import errno
import os
import pwd
import random
import socket
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

from launcher.errors import LaunchError
from launcher.supervisor.slots.table import (
    CPU,
    GPU,
    Demand,
    Occupancy,
    SlotHolder,
    SlotWaiter,
    alone_name,
    held_name,
    lock_name,
    occupancy,
    waits_name,
)

__all__ = ["Demand", "Occupancy", "SlotHolder", "SlotWaiter", "Slots", "occupancy"]

_MOST_NAMED = 3
_LATE_S = 60.0  # all hosts of a run are told to begin within that time
_KEEPS_S = 20.0, 40.0  # how long slots are held for a run that cannot begin, against an untrusted waiter


class Slots:
    """The slots of one run on one host: either all of them are taken or none is."""

    def __init__(
        self,
        run: str,
        stamp: int,
        demand: Demand,
        gpus: Sequence[str],
        cpus: int,
        *,
        host: str | None = None,
        priority: int = 0,
    ) -> None:
        self._host = host or os.uname().nodename
        if demand.gpus > len(gpus):
            has = f"there are {len(gpus)}" if gpus else "there is none"
            raise LaunchError(f"{self._host}: the run wants {demand.gpus} GPUs on each host, and {has} to use")
        self._wanted = demand.gpus or min(demand.cpus, cpus)
        wanted = Demand(demand.gpus, 0) if demand.gpus else Demand(0, self._wanted)
        self._waiter = SlotWaiter(stamp, _user(), run, wanted, priority)
        self._gpus, self._cpus = tuple(gpus), cpus
        self._queued: socket.socket | None = None
        self._held: tuple[socket.socket, ...] = ()
        self._taken: tuple[str, ...] = ()
        self._came_at: float | None = None
        self._lets_go_at = 0.0
        self._earlier: set[SlotWaiter] = set()  # who waited here before us, or came soon after

    @property
    def fds(self) -> tuple[int, ...]:
        """Return the descriptors that hold the slots; the slots stay held while any process has them open."""
        return tuple(one.fileno() for one in self._held)

    def enqueue(self) -> None:
        """Take a position in the queue, announced by a socket until this process exits or `release` is called; raise
        LaunchError if another process waits for the same run.
        """
        if self._queued is None and not self._held:
            self._queued = _bind(waits_name(self._waiter))
            if self._queued is None:
                raise LaunchError(f"{self._host}: run {self._waiter.run} waits here already, in another process")
            if self._came_at is None:
                self._came_at = time.monotonic()
            self._before(occupancy())

    def try_take(self) -> tuple[str, ...] | None:
        """Take the slots and return the numbers of the GPUs taken, or () for CPU slots, without waiting.

        Return None if other runs are served first, or too little is free. Raise LaunchError if the kernel refuses a
        socket.
        """
        if self._held:
            return self._taken
        if self._before(occupancy()):
            return None
        # Alone between looking and taking. Who is first may change meanwhile; what is free only grows.
        one_at_a_time = _bind(f"launch/taking/{self._waiter.kind}")
        if one_at_a_time is None:
            return None
        with one_at_a_time:
            return self._take(occupancy())

    def release(self) -> None:
        """Give up the slots, or the position in the queue."""
        for one in (*self._held, *([self._queued] if self._queued else [])):
            one.close()
        self._held, self._queued, self._taken = (), None, ()

    def contested(self) -> bool:
        """Return whether a run that goes before this one waits for its slots, so that this run should release them.

        Each waiting run announces its own time of submission, which may be false. So a run counts as earlier only if it
        was seen waiting in the first minute after this run had joined the queue. A run of the same user with a higher
        priority goes before this one at any time. Once this run has held its slots for a random time of 20 to 40
        seconds, every run that claims to be earlier counts: it may hold slots on another host, and without this the two
        runs would wait for each other for ever.
        """
        seen = occupancy()
        if self._before(seen):
            return True
        return time.monotonic() > self._lets_go_at and bool(seen.before(self._waiter))

    def ahead(self) -> str:
        """Return a text for users about what this run waits for: which runs hold slots, and how many are ahead."""
        seen = occupancy()
        noun, there = ("GPUs", len(self._gpus)) if self._waiter.kind == GPU else ("CPU slots", self._cpus)
        counts: Counter[tuple[str, str]] = Counter()
        for holder in self._in_the_way(seen):
            counts[holder.run, holder.user] += int(holder.number) if holder.kind == CPU else 1
        parts = [_holding_text(run, user, count, alone=run in seen.alone) for (run, user), count in counts.items()]
        if len(parts) > _MOST_NAMED:
            parts[_MOST_NAMED:] = [f"{len(parts) - _MOST_NAMED} more runs have some"]
        if before := self._before(seen):
            parts.append("1 run is ahead" if before == 1 else f"{before} runs are ahead")
        return f"waits for {self._wanted} of {there} {noun} on {self._host}: {'; '.join(parts) or 'it is next'}"

    def _before(self, seen: Occupancy) -> int:
        """Return how many of the waiters in `seen` are served before this run: those that came earlier, and the same
        user's of higher priority.

        Waiters announce their own time of arrival, which may be false. So a claim to have come earlier counts only if
        it was seen within the first minute after this run came; a higher priority counts at any time.
        """
        mine, ahead = self._waiter, seen.before(self._waiter)
        if self._came_at is None or time.monotonic() < self._came_at + _LATE_S:
            self._earlier |= ahead
        by_priority = {one for one in ahead if one.user == mine.user and one.priority > mine.priority}
        return len(by_priority | {one for one in ahead if one.turn > mine.turn} | (ahead & self._earlier))

    def _in_the_way(self, seen: Occupancy) -> list[SlotHolder]:
        """Return the holders of slots that this run could use if they were free: slots of its kind (GPU or CPU) and,
        for GPUs, those that it may use. `seen` says who holds slots of this machine now.
        """
        kind = self._waiter.kind
        return [holder for holder in seen.taken(kind) if kind == CPU or holder.number in self._gpus]

    def _take(self, seen: Occupancy) -> tuple[str, ...] | None:
        """Take the slots; return the GPUs taken, or () for CPU slots. Return None, with nothing taken, if too little is
        free in `seen`, or if another process holds one of them after all. Raise LaunchError if the kernel refuses a
        socket.
        """
        held = [holder.number for holder in self._in_the_way(seen)]
        if self._waiter.kind == GPU:
            chosen = tuple(gpu for gpu in self._gpus if gpu not in held)[: self._wanted]
            names = [name for gpu in chosen for name in (lock_name(gpu), self._held_name(gpu))]
            enough = len(chosen) == self._wanted
        else:
            chosen, names = (), [self._held_name(str(self._wanted))]
            enough = sum(map(int, held)) + self._wanted <= self._cpus
        if not enough:
            return None
        with ExitStack() as undone:
            bound = []
            for name in names:
                if (one := _bind(name)) is None:
                    return None  # it is being let go of, by an earlier process of this run for example
                bound.append(undone.enter_context(one))
            undone.pop_all()
        self.release()  # in the queue
        self._held, self._taken = tuple(bound), chosen
        self._lets_go_at = time.monotonic() + random.uniform(*_KEEPS_S)  # noqa: S311 - no secret
        return chosen

    def _held_name(self, number: str) -> str:
        """Return the socket name by which this run announces that it holds the slot `number`."""
        return held_name(self._waiter.kind, number, self._waiter.user, self._waiter.run)


class Alone:
    """An announcement on this machine that the run `run`, which holds slots here, receives nothing from the host that
    leads it; so the run may be over without this host's having received that.

    Other runs that wait for these slots show the announcement to their users. It is made by `set`, and withdrawn by
    `clear` or when the process exits.
    """

    def __init__(self, run: str) -> None:
        self._name = alone_name(_user(), run)
        self._mark: socket.socket | None = None

    def set(self) -> None:
        """Announce to other runs that wait on this machine that this run receives nothing from the host that leads it.
        Raise LaunchError if the kernel refuses the socket.
        """
        self._mark = self._mark or _bind(self._name)

    def clear(self) -> None:
        """Withdraw what `set` announced."""
        if self._mark is not None:
            self._mark.close()
            self._mark = None


def _holding_text(run: str, user: str, count: int, *, alone: bool) -> str:
    """Return the text that the run of this user holds `count` slots, or, if `run` is "" because the holder is unknown,
    that `count` are taken.

    `alone` says that this host receives nothing from the host that leads the run; the text then adds that the run has
    lost its leader and asks the other hosts.
    """
    if not run:
        return f"{count} taken"
    return f"{run} ({user}) has {count}" + (", which has lost its leader and asks the other hosts" if alone else "")


def _bind(name: str) -> socket.socket | None:
    """Return a socket bound to `name`, or None if the name is taken; raise LaunchError on any other error."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(f"\0{name}")
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise LaunchError(f"the slots of this machine cannot be taken: {error.strerror}: {name}") from error
    return bound


def _user() -> str:
    """Return the user's name, or the numeric user id if it has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
