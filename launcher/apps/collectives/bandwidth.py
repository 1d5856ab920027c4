"""Bandwidths as nccl-tests defines them, and which pair of nodes is slow. Pure."""

import statistics
from collections.abc import Sequence

from msgspec.structs import replace

from launcher.apps.collectives.findings import NodePair

SLOW = 2.0  # times as slow as is usual among the pairs
_PAIRS = 3  # of fewer nobody can say which is the odd one


def algorithm_bandwidth(size_bytes: int, seconds: float) -> float:
    """Return bytes per second as the caller of the operation sees them."""
    return size_bytes / seconds if seconds > 0 else 0.0


def bus_factor(operation: str, ranks: int) -> float:
    """Return the factor that turns an operation's algorithm bandwidth into bus bandwidth, which does not depend on
    the number of ranks.
    """
    match operation:
        case "all-reduce":
            return 2 * (ranks - 1) / ranks
        case "all-gather" | "reduce-scatter" | "all-to-all" | "gather" | "scatter":
            return (ranks - 1) / ranks
        case _:
            return 1.0


def with_slow(pairs: Sequence[NodePair]) -> tuple[NodePair, ...]:
    """Return the pairs, with a reason on each that is much slower than the others by rate, plain connection or round
    trip.
    """
    if len(pairs) < _PAIRS:
        return tuple(pairs)
    usual = statistics.median(one.bytes_per_s for one in pairs)
    plain = statistics.median(one.plain_bytes_per_s for one in pairs)
    trip = statistics.median(one.round_trip_s for one in pairs)

    def said(one: NodePair) -> str:
        ratios = (
            ("as slow by send and recv", _ratio(usual, one.bytes_per_s)),
            ("as slow by a plain connection", _ratio(plain, one.plain_bytes_per_s) if one.plain_bytes_per_s else 0.0),
            ("the round trip", _ratio(one.round_trip_s, trip)),
        )
        return ", ".join(f"{ratio:.1f} times {what}" for what, ratio in ratios if ratio >= SLOW)

    return tuple(replace(one, slow=said(one)) for one in pairs)


def _ratio(one: float, other: float) -> float:
    return one / other if other > 0 else 0.0
