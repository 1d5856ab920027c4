"""The clock that measures leases, and how long a lease and the time between heartbeats are. An agent is the launcher's
process on a node; it renews its lease (`lease_s` seconds) with the coordinator by heartbeats. When the lease runs out,
a watchdog ends the ranks of its node.
"""

import time
from collections.abc import Callable

STEP_S = 2.0
HEARTBEAT_S, HEARTBEATS = 1.0, 4  # the longest time to the next one, and how many there are in a lease at least
_HEARTBEATS_OF_MANY = 3  # of thousands of nodes: one may be 9 s late under the usual lease
_MOST_A_SECOND = 1000  # heartbeats of all nodes together: they take the coordinator a tenth of a core
ENDING_S = 1.0  # that a guard has to end the ranks of a node, before others take their places


def boottime() -> float:
    """Return the seconds since this machine was started, including time in which it was suspended, because other
    machines count that time.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def lease_of_ranks(lease_s: float) -> float:
    """Return for how many seconds ranks may run on a node that receives no answers from the coordinator.

    They are ended in the last second of the lease, so that other nodes can take over right after it. If the lease is
    shorter than five seconds, a fifth of it is reserved instead, so that enough heartbeats remain to renew it.
    """
    return lease_s - min(ENDING_S, lease_s / 5)


def node_lost_after_s(lease_s: float) -> float:
    """Return after how many seconds of silence the coordinator counts a node as lost and gives its ranks to others: the
    lease of the ranks, and the second that a watchdog needs to end them.
    """
    return lease_of_ranks(lease_s) + ENDING_S


def heartbeat_every_s(lease_s: float, nodes: int) -> float:
    """Return the longest time in seconds between two heartbeats of one node, given the lease of its ranks and the
    number of nodes.
    """
    return max(min(HEARTBEAT_S, lease_s / HEARTBEATS), heartbeat_turn_s(lease_s, nodes))


def heartbeat_turn_s(lease_s: float, nodes: int) -> float:
    """Return the shortest time in seconds between two heartbeats of one node, given the lease of its ranks.

    It grows with the number of nodes, up to a third of the lease, so that the coordinator gets at most 1,000 heartbeats
    a second even if ranks report at every step.
    """
    return min(nodes / _MOST_A_SECOND, lease_s / _HEARTBEATS_OF_MANY)


class WakingClock:
    """A clock that stops while its own process is suspended or starved, or its machine is. Timeouts for other machines
    are measured with it, because in that time their messages could not be received. It must be read often: time beyond
    two seconds (STEP_S) between two reads counts as suspended.
    """

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._looked_at = clock()
        self.slept_s = 0.0  # in all

    def now(self) -> float:
        """Return the clock's seconds: those since boot, without suspended periods."""
        at = self._clock()
        self.slept_s += max(0.0, at - self._looked_at - STEP_S)
        self._looked_at = at
        return at - self.slept_s
