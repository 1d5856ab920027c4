"""Parse the lines that the first rank wrote into a report.

A rank's output is decoded as data of declared types.
"""

import statistics
from collections.abc import Iterable

import msgspec

from launcher.apps.collectives.bandwidth import algorithm_bandwidth, bus_factor, with_slow
from launcher.apps.collectives.findings import CollectiveLine, CollectivesReport, Lacking, MemoryCopy, NodePair
from launcher.errors import LaunchError

MARK = "collectives "
_MOST_LINES = 20_000


class PlaceMessage(msgspec.Struct, frozen=True, tag_field="what", tag="place"):
    """The backend, the device, and how many ranks and nodes take part."""

    backend: str
    device: str
    ranks: int
    nodes: int


class CopyMessage(msgspec.Struct, frozen=True, tag_field="what", tag="copy"):
    """A copy in memory."""

    size_bytes: int
    bytes_per_s: float


class TimedMessage(msgspec.Struct, frozen=True, tag_field="what", tag="timed"):
    """The times of one operation with one size."""

    operation: str
    ranks: int
    size_bytes: int
    times_s: tuple[float, ...] = ()
    wrong: int = 0
    lacking: str = ""


class PairMessage(msgspec.Struct, frozen=True, tag_field="what", tag="pair"):
    """Two nodes."""

    one: int
    other: int
    size_bytes: int
    bytes_per_s: float
    round_trip_s: float
    plain_bytes_per_s: float


class EndMessage(msgspec.Struct, frozen=True, tag_field="what", tag="end"):
    """The last line of a complete output."""


Word = PlaceMessage | CopyMessage | TimedMessage | PairMessage | EndMessage
_DECODER: msgspec.json.Decoder[Word] = msgspec.json.Decoder(Word)


def report_of(run: str, cluster: str, texts: Iterable[str], failed: str = "") -> CollectivesReport:
    """Return the report of a run; `failed` says why the run failed. A run with a wrong result fails too, but its
    output is complete.
    """
    place, ended = PlaceMessage("", "", 0, 0), False
    lines, copies, pairs, lacking = list[CollectiveLine](), list[MemoryCopy](), list[NodePair](), list[Lacking]()
    said = [text.removeprefix(MARK) for text in texts if text.startswith(MARK)]
    for text in said[:_MOST_LINES]:
        match _decoded(text):
            case PlaceMessage() as place:
                pass
            case CopyMessage() as one:
                copies.append(MemoryCopy(one.size_bytes, one.bytes_per_s))
            case TimedMessage(lacking="") as one if one.times_s:
                lines.append(_line(one))
            case TimedMessage() as one:
                lacking.append(Lacking(one.operation, one.ranks, one.lacking[:200]))
            case PairMessage() as one:
                found = (one.size_bytes, one.bytes_per_s, one.round_trip_s, one.plain_bytes_per_s)
                pairs.append(NodePair(one.one, one.other, *found))
            case EndMessage():
                ended = True
    return CollectivesReport(
        run, cluster, place.backend, place.device, place.ranks, place.nodes, tuple(lines), tuple(copies),
        with_slow(pairs), tuple(lacking), "" if ended else failed or "it did not say all of it",
    )  # fmt: skip


def _decoded(text: str) -> Word:
    try:
        return _DECODER.decode(text)
    except msgspec.MsgspecError as error:
        raise LaunchError(f"a rank said what cannot be understood: {error}") from error


def _line(one: TimedMessage) -> CollectiveLine:
    usual = statistics.median(one.times_s)
    rate = algorithm_bandwidth(one.size_bytes, usual)
    return CollectiveLine(
        one.operation, one.ranks, one.size_bytes, len(one.times_s), usual, min(one.times_s), max(one.times_s),
        rate, rate * bus_factor(one.operation, one.ranks), one.wrong,
    )  # fmt: skip
