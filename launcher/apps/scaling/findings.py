"""Results of `launch scale`, which measures a training on several numbers of ranks, as `--json` prints them."""

import msgspec

KINDS = {
    "data": "waiting for data",
    "compute": "forward and backward passes",
    "optimizer": "the optimizer",
    "communication": "communication in the open",
    "straggler": "waiting for the slower rank",
    "other": "the host",
}
STRONG, WEAK, OWN = "strong", "weak", "as it is"
DP, MASTER, MP = "dp", "master", "mp"


class Spread(msgspec.Struct, frozen=True):
    """A number that was measured several times: its median (`usual`) and range."""

    usual: float  # the median
    low: float
    high: float


class StepParts(msgspec.Struct, frozen=True):
    """The seconds of a step by kind of work, as a mean over all ranks; they add up to the step, without `hidden`, which
    is communication during computation. `straggler` is waiting for the slowest rank; `bytes` and `messages` count what
    is sent.
    """

    data: float
    compute: float
    optimizer: float
    communication: float  # while nothing is computed, and what is copied for it
    straggler: float
    other: float
    hidden: float  # communication that goes on beneath a computation; no part of the sum
    bytes: float  # that are summed or gathered in a step
    messages: float  # of a step


class StepVolume(msgspec.Struct, frozen=True):
    """The bytes that a step moves by the strategy's formula, for P bytes of parameters (`model_bytes`) and n ranks;
    `who` is the rank that sends the most.
    """

    who: str  # of all ranks that has the most to send
    formula: str
    bytes: float  # that it sends, and takes in as many
    model_bytes: float  # P


class ScaledRun(msgspec.Struct, frozen=True):
    """What was measured on one number of ranks: rates in samples per second, times and memory; `why` says why nothing
    could be. It is compared with the measurement on `base` ranks: speed-up, efficiency, and the shares of a step that
    were `lost`; `says` is a sentence on that, and `crowded` a warning if ranks share cores.
    """

    strategy: str
    scaling: str  # strong: the batch stays; weak: each rank's share of it stays; as it is: the script decides
    ranks: int
    nodes: int = 1
    runs: tuple[str, ...] = ()
    why: str = ""  # it could not be measured
    rates: tuple[float, ...] = ()  # samples a second, line by line
    samples_per_s: Spread | None = None
    step_samples: float | None = None
    step_s: float | None = None
    memory_gb: float | None = None  # of the rank with the most
    parts: StepParts | None = None  # None: no steps were traced
    volume: StepVolume | None = None  # None: nothing moves, or it is not known
    crowded: str = ""  # its ranks have not each a core of their own
    base: int | None = None  # the number of ranks that it is compared with
    speedup: Spread | None = None  # over the base
    efficiency: float | None = None  # the speed-up beside that of the number of ranks
    lost: dict[str, float] = {}  # shares of a step beyond what it would be with an efficiency of 1
    says: str = ""


class ScalingModel(msgspec.Struct, frozen=True):
    """A model of a step's time, fitted to measurements: `serial_s` and `divided_s` are Amdahl's law; `latency_s` per
    hop and `transfer_s` are an all-reduce, along a `tree` or around a ring. `latency_known` is False if one number of
    ranks cannot separate the last two.
    """

    strategy: str
    scaling: str
    fitted_to: tuple[int, ...]  # numbers of ranks
    serial_s: float  # whatever their number
    divided_s: float  # on one rank; divided by their number
    latency_s: float  # of each hop of the messages of a step together
    transfer_s: float  # times 2 (ranks - 1) / ranks
    bandwidth_gb_s: float | None = None  # that this makes, where the bytes are known
    latency_known: bool = (
        True  # else latency and transfer could not be separated: one number of ranks alone gives only their sum
    )
    tree: bool = False  # 2 log2 ranks hops follow better what was measured than the 2 (ranks - 1) of a ring


class ScalingForecast(msgspec.Struct, frozen=True):
    """The model's forecast for a number of ranks that was not measured; the range of `speedup` is from the 5th to the
    95th percentile.
    """

    strategy: str
    scaling: str
    ranks: int
    speedup: Spread  # from the 5th to the 95th percentile
    efficiency: float


class ScalingReport(msgspec.Struct, frozen=True):
    """The result of one `launch scale`. `points` are the measurements, `advice` says what would help, `notes` what
    makes the results uncertain, and `kept` are the ids of runs that still exist.
    """

    id: str
    spec: str
    on: str
    steps: int
    rounds: int
    took_s: float
    points: tuple[ScaledRun, ...]
    models: tuple[ScalingModel, ...] = ()
    forecasts: tuple[ScalingForecast, ...] = ()
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what makes all this unsure
    kept: tuple[str, ...] = ()  # runs that are still there
