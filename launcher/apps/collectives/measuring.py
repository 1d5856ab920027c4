"""Measure collectives on a cluster: run `trainer.collectives` there like any other run, and read the messages that rank
0 prints, each as a line of JSON.
"""

import statistics
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from launcher import api
from launcher.apps.collectives.findings import CollectiveLine, CollectivesReport, Lacking, MemoryCopy, NodePair
from launcher.apps.repeated_runs import Tell, to_its_end
from launcher.errors import BadInput, LaunchError
from launcher.states import LOCAL, State

TAG = "collectives"
_MODULE = "trainer.collectives"
SIZES = tuple(2**power for power in (10, 14, 18, 22, 26))
SLOW = 2.0  # times as slow as is usual among the pairs
_PAIRS = 3  # of fewer nobody can say which is the odd one

MARK = "collectives "
_MOST_LINES = 20_000


class PlaceMessage(msgspec.Struct, frozen=True, tag_field="what", tag="place"):
    """The first message: the backend and device, and how many ranks and nodes take part."""

    backend: str
    device: str
    ranks: int
    nodes: int


class CopyMessage(msgspec.Struct, frozen=True, tag_field="what", tag="copy"):
    """The message about the speed of a copy within the memory of rank 0's device, an upper bound for what ranks send
    each other.
    """

    size_bytes: int
    bytes_per_s: float


class TimedMessage(msgspec.Struct, frozen=True, tag_field="what", tag="timed"):
    """The message with the times of one operation with messages of one size: each repetition's on the slowest rank.
    `lacking` says why the backend does not support the operation, or is "".
    """

    operation: str
    ranks: int
    size_bytes: int
    times_s: tuple[float, ...] = ()  # of each repetition; empty if the operation is not supported
    wrong: int = 0  # how many numbers in results were wrong, over all ranks and repetitions
    lacking: str = ""


class PairMessage(msgspec.Struct, frozen=True, tag_field="what", tag="pair"):
    """The message about the connection between two nodes, `one` and `other`, through the backend and over plain TCP.
    Rates are of one direction.
    """

    one: int  # index of a node, as is `other`
    other: int
    size_bytes: int  # of the messages by which the rates were measured
    bytes_per_s: float  # through the backend, as is `round_trip_s`
    round_trip_s: float  # of a message of one number
    plain_bytes_per_s: float  # over a plain TCP connection; 0: none could be made


class EndMessage(msgspec.Struct, frozen=True, tag_field="what", tag="end"):
    """The last message, which shows that the output is complete."""


Word = PlaceMessage | CopyMessage | TimedMessage | PairMessage | EndMessage
_DECODER: msgspec.json.Decoder[Word] = msgspec.json.Decoder(Word)


def report_of(run: str, cluster: str, texts: Iterable[str], failed: str = "") -> CollectivesReport:
    """Return the report from the lines that rank 0 has printed; lines without the mark of a message are skipped.

    `failed` says why the run failed, or is ""; it is ignored if the output is complete, since a run with a wrong result
    fails as well. Raise LaunchError for an unknown message.
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
    """Return the message in a line of JSON; raise LaunchError if it is none of the known ones."""
    try:
        return _DECODER.decode(text)
    except msgspec.MsgspecError as error:
        raise LaunchError(f"a rank said what cannot be understood: {error}") from error


def _line(one: TimedMessage) -> CollectiveLine:
    """Return the report's line for the times of one operation and size."""
    usual = statistics.median(one.times_s)
    rate = algorithm_bandwidth(one.size_bytes, usual)
    return CollectiveLine(
        one.operation, one.ranks, one.size_bytes, len(one.times_s), usual, min(one.times_s), max(one.times_s),
        rate, rate * bus_factor(one.operation, one.ranks), one.wrong,
    )  # fmt: skip


def algorithm_bandwidth(size_bytes: int, seconds: float) -> float:
    """Return the size divided by the time, in bytes per second: the bandwidth as the caller of the operation sees it; 0
    for no time.
    """
    return size_bytes / seconds if seconds > 0 else 0.0


def bus_factor(operation: str, ranks: int) -> float:
    """Return the factor by which nccl-tests converts algorithm bandwidth to bus bandwidth, which does not depend on the
    number of ranks.

    For n ranks it is 2 (n - 1) / n for `all-reduce`, (n - 1) / n for `all-gather`, `reduce-scatter`, `all-to-all`,
    `gather` and `scatter`, and 1 for any other operation.
    """
    match operation:
        case "all-reduce":
            return 2 * (ranks - 1) / ranks
        case "all-gather" | "reduce-scatter" | "all-to-all" | "gather" | "scatter":
            return (ranks - 1) / ranks
        case _:
            return 1.0


def with_slow(pairs: Sequence[NodePair]) -> tuple[NodePair, ...]:
    """Return the pairs in the same order, with the reason in the field `slow` of each slow one.

    A pair is slow if at least one of its values is `SLOW` times as bad as the median over all pairs: the rate by send
    and recv, the rate by a plain TCP connection, or the round trip. With fewer than `_PAIRS` pairs none is.
    """
    if len(pairs) < _PAIRS:
        return tuple(pairs)
    usual = statistics.median(one.bytes_per_s for one in pairs)
    plain = statistics.median(one.plain_bytes_per_s for one in pairs)
    trip = statistics.median(one.round_trip_s for one in pairs)

    def said(one: NodePair) -> str:
        """Return why the pair is slow, or "" if it is not."""
        ratios = (
            ("as slow by send and recv", _ratio(usual, one.bytes_per_s)),
            ("as slow by a plain connection", _ratio(plain, one.plain_bytes_per_s) if one.plain_bytes_per_s else 0.0),
            ("the round trip", _ratio(one.round_trip_s, trip)),
        )
        return ", ".join(f"{ratio:.1f} times {what}" for what, ratio in ratios if ratio >= SLOW)

    return tuple(replace(one, slow=said(one)) for one in pairs)


def _ratio(one: float, other: float) -> float:
    """Return the first number divided by the other, or 0.0 if the other is 0."""
    return one / other if other > 0 else 0.0


def collectives(
    cluster: str = LOCAL, *, ranks: Sequence[int] = (2,), nodes: int = 1, sizes: Sequence[int] = SIZES,
    backend: str = "auto", overrides: Sequence[str] = (), tell: Tell = lambda _: None,
) -> CollectivesReport:  # fmt: skip
    """Measure and check each collective operation on a cluster, for each number in `ranks` and each message size in
    bytes in `sizes`; return the report.

    The largest number is spread evenly over `nodes` nodes. A smaller one has as many ranks on each node if `nodes`
    divides it, else it is the first ranks. `backend` is that of torch.distributed, or "auto" for nccl on GPUs, else
    gloo. `overrides` change the spec of the run, which is removed once its output is complete. `tell` is called with
    lines on the progress. Raise BadInput if the ranks, the nodes or the spec are invalid, and LaunchError if the output
    cannot be read.
    """
    least, most = min(ranks, default=0), max(ranks, default=0)
    if least < 2:
        raise BadInput(f"--ranks: expected numbers of at least 2, got {least}")
    if nodes < 1:
        raise BadInput(f"--nodes: expected a number of at least 1, got {nodes}")
    if most % nodes:
        raise BadInput(f"--ranks: expected as many on each of {nodes} nodes, got {most}")
    per_node = most // nodes
    words = {"ranks": ",".join(map(str, ranks)), "sizes": ",".join(map(str, sizes)), "backend": backend}
    spec = {
        "name": "collectives",
        "run": {"module": _MODULE, "args": words},
        "resources": {"nodes": nodes, "ranks_per_node": per_node} | ({"gpus_per_node": 0} if backend == "gloo" else {}),
        "recovery": {"user_error": 0},
    }
    run = api.submit(spec, on=cluster, overrides=overrides)
    run.label(add=[TAG])
    tell(f"{run.id}: {most} ranks on {nodes} {'node' if nodes == 1 else 'nodes'} of {cluster}")
    status = to_its_end(run, run.wait, tell)
    run.renew()
    failed = ""
    if status.state is not State.SUCCEEDED:
        failed = f"{run.id} {status.state}: {status.last_word}"
    report = report_of(run.id, cluster, (line.text for line in run.logs(ranks=[0])), failed)
    if not report.failed:
        api.remove([run])
    return report
