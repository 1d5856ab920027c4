"""Results of `launch doctor CLUSTER --collectives`, the measured speed of collective operations, as `--json` prints
them.
"""

import msgspec


class CollectiveLine(msgspec.Struct, frozen=True):
    """The times of one operation with one message size on a number of ranks: median, fastest, slowest, and bandwidths
    as nccl-tests defines them. `wrong` counts numbers in results that were wrong.
    """

    operation: str
    ranks: int
    size_bytes: int
    repetitions: int  # how often it was timed
    usual_s: float  # median
    fastest_s: float
    slowest_s: float
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float
    wrong: int  # numbers in results that were wrong


class MemoryCopy(msgspec.Struct, frozen=True):
    """The speed at which rank 0 copies `size_bytes` within the memory of its own device: an upper bound for messages
    between ranks.
    """

    size_bytes: int
    bytes_per_s: float


class NodePair(msgspec.Struct, frozen=True):
    """The measured connection between the nodes with indexes `one` and `other`: by torch's send and recv, and by a
    plain TCP connection (0: none could be made). `slow` says in which of the three values the pair is at least twice as
    bad as the median of all pairs, or is "".
    """

    one: int
    other: int
    size_bytes: int
    bytes_per_s: float  # by torch's send and recv
    round_trip_s: float
    plain_bytes_per_s: float  # by a plain TCP connection; 0: none could be made
    slow: str = ""  # in which of these it is far worse than the median of all pairs, and how many times; "": in none


class Lacking(msgspec.Struct, frozen=True):
    """An operation that the backend does not support on this number of ranks, and why."""

    operation: str
    ranks: int
    why: str


class CollectivesReport(msgspec.Struct, frozen=True):
    """The result of one measurement of collectives: a line per operation and size, copies in memory, and connections
    between nodes. `failed` says why the run did not complete, or is "".
    """

    run: str  # its id
    cluster: str
    backend: str  # of torch.distributed, such as nccl
    device: str  # cuda or cpu
    ranks: int
    nodes: int
    lines: tuple[CollectiveLine, ...] = ()
    copies: tuple[MemoryCopy, ...] = ()
    pairs: tuple[NodePair, ...] = ()
    lacking: tuple[Lacking, ...] = ()  # operations that the backend does not support
    failed: str = ""  # why it did not complete, or ""
