"""Format a report on collectives as rows of text, as nccl-tests prints them. Pure."""

from collections.abc import Iterator

from launcher.apps.collectives.findings import CollectivesReport
from launcher.spec.amounts import rate

HEADS = ("operation", "ranks", "size", "median", "range", "algbw", "busbw", "memory copy", "wrong")
PAIR_HEADS = ("nodes", "send/recv", "round trip", "plain connection", "")


def heading(report: CollectivesReport) -> str:
    """Return a line that says which backend, device, ranks and nodes took part."""
    return f"{report.backend} on {report.device}, {report.ranks} ranks on {report.nodes} of {report.cluster}'s nodes"


def rows_of(report: CollectivesReport) -> Iterator[tuple[str, ...]]:
    """Yield a table row for each operation and size, with the columns of HEADS."""
    copies = {one.size_bytes: one.bytes_per_s for one in report.copies}
    for one in report.lines:
        none = not one.size_bytes
        near = min(copies, key=lambda known: abs(known - one.size_bytes), default=0)
        yield (
            one.operation,
            str(one.ranks),
            "-" if none else size(one.size_bytes),
            duration(one.usual_s),
            f"{duration(one.fastest_s)} .. {duration(one.slowest_s)}",
            "-" if none else rate(one.algorithm_bytes_per_s),
            "-" if none else rate(one.bus_bytes_per_s),
            "-" if none or not near else rate(copies[near]),
            str(one.wrong),
        )


def pair_rows(report: CollectivesReport) -> Iterator[tuple[str, ...]]:
    """Yield a table row for each pair of nodes, with the columns of PAIR_HEADS: the nodes, rate and round trip through
    torch, rate over a plain connection, and a note if the pair is slow.
    """
    for one in report.pairs:
        plain = rate(one.plain_bytes_per_s) if one.plain_bytes_per_s else "none"
        slow = f"slow: {one.slow}" if one.slow else ""
        yield (f"{one.one} and {one.other}", rate(one.bytes_per_s), duration(one.round_trip_s), plain, slow)


def problems(report: CollectivesReport) -> Iterator[str]:
    """Yield a line for each problem for which the command exits with an error, such as wrong results."""
    for one in report.lines:
        if one.wrong:
            on = f"{one.operation} of {size(one.size_bytes)} on {one.ranks} ranks"
            yield f"{on}: {one.wrong} numbers are not what they must be"
    if report.failed:
        yield report.failed


def notes(report: CollectivesReport) -> Iterator[str]:
    """Yield a sentence for each operation that the backend does not support, and for each slow pair of nodes."""
    for one in report.lacking:
        yield f"{report.backend} has no {one.operation} on {one.ranks} ranks: {one.why}"
    for pair in report.pairs:
        if pair.slow:
            yield f"nodes {pair.one} and {pair.other} are a slow pair: {pair.slow}"


def duration(seconds: float) -> str:
    """Return a time as text with three digits, in µs below a millisecond, in ms below a second, else in s: `12 µs`."""
    for most, unit, factor in ((1e-3, "µs", 1e6), (1.0, "ms", 1e3)):
        if seconds < most:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def size(count: float) -> str:
    """Return a number of bytes as text, such as `64 KB`; as in nccl-tests, a KB is 1024 bytes."""
    for unit in ("B", "KB", "MB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GB"
