"""Results of measuring collectives, as `--json` prints them."""

import msgspec


class CollectiveLine(msgspec.Struct, frozen=True):
    """The times of one operation with one size on a number of ranks."""

    operation: str
    ranks: int
    size_bytes: int
    repetitions: int
    usual_s: float  # median
    fastest_s: float
    slowest_s: float
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float
    wrong: int  # numbers that were not as they must be


class MemoryCopy(msgspec.Struct, frozen=True):
    """The speed of a copy in the memory of the first rank."""

    size_bytes: int
    bytes_per_s: float


class NodePair(msgspec.Struct, frozen=True):
    """The measured connection between the nodes with indexes `one` and `other`, by torch and by a plain connection."""

    one: int
    other: int
    size_bytes: int
    bytes_per_s: float  # by torch's send and recv
    round_trip_s: float
    plain_bytes_per_s: float  # by a plain connection; 0: there could be none
    slow: str = ""  # in words, where it is much slower than the others


class Lacking(msgspec.Struct, frozen=True):
    """An operation that the backend lacks, on a number of ranks."""

    operation: str
    ranks: int
    why: str


class CollectivesReport(msgspec.Struct, frozen=True):
    """The result of one `launch doctor CLUSTER --collectives`."""

    run: str
    cluster: str
    backend: str
    device: str
    ranks: int
    nodes: int
    lines: tuple[CollectiveLine, ...] = ()
    copies: tuple[MemoryCopy, ...] = ()
    pairs: tuple[NodePair, ...] = ()
    lacking: tuple[Lacking, ...] = ()
    failed: str = ""  # why it came to no end
