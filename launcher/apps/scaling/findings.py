"""Results of `launch scale`, which measures a training on several numbers of ranks, as `--json` prints them. A strategy
is a way to divide a training over ranks, such as ddp or fsdp.
"""

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
    """A number that was measured several times: its median (`usual`) and range. The range may leave out a share of the
    smallest and largest values, as that of a speed-up leaves out a tenth at each end.
    """

    usual: float  # the median
    low: float  # the range: the smallest value that is not left out
    high: float  # and the largest one


class StepParts(msgspec.Struct, frozen=True):
    """The seconds of a step by kind of work, as a mean over all ranks; they add up to the step, without `hidden`, which
    is communication during computation. `straggler` is waiting for the slowest rank; `bytes` and `messages` count what
    is sent.
    """

    data: float  # waiting for input
    compute: float
    optimizer: float
    communication: float  # while nothing is computed, including copies that it needs
    straggler: float
    other: float
    hidden: float  # communication during computation; not part of the sum
    bytes: float  # that are reduced or gathered in a step
    messages: float  # in a step


class StepVolume(msgspec.Struct, frozen=True):
    """The bytes that a step moves by the strategy's formula, for P bytes of parameters (`model_bytes`) and n ranks;
    `who` is the rank that sends the most.
    """

    who: str  # the rank, or ranks, with the most to send
    formula: str
    bytes: float  # that it sends; it receives as many
    model_bytes: float  # P in the formula


class ScaledRun(msgspec.Struct, frozen=True):
    """The measurements on one number of ranks: rates in samples per second, times and memory; `why` says why nothing
    could be measured. It is compared with the measurement on `base` ranks: speed-up, efficiency, and the shares of a
    step that were `lost`; `says` is a sentence on that, and `crowded` a warning if ranks share cores.
    """

    strategy: str
    scaling: str  # strong: the batch is fixed; weak: each rank's share is fixed; as it is: the script decides
    ranks: int
    nodes: int = 1
    runs: tuple[str, ...] = ()  # ids
    why: str = ""  # the reason why it could not be measured, or ""
    rates: tuple[float, ...] = ()  # samples per second, for each logged line
    samples_per_s: Spread | None = None  # None: nothing could be measured
    step_samples: float | None = None  # samples of a step, over all ranks
    step_s: float | None = None  # seconds of a step
    memory_gb: float | None = None  # of the rank that uses the most
    parts: StepParts | None = None  # None: no steps were traced
    volume: StepVolume | None = None  # None: nothing is sent, or the formula is not known
    crowded: str = ""  # a warning if ranks share cores, or ""
    base: int | None = None  # the number of ranks with which it is compared
    speedup: Spread | None = None  # over the base
    efficiency: float | None = None  # the speed-up divided by the ratio of ranks
    lost: dict[str, float] = {}  # by kind of work: shares of a step that an efficiency of 1 would not need
    says: str = ""  # a sentence on the comparison


class ScalingModel(msgspec.Struct, frozen=True):
    """A model of the seconds of a step, fitted to measurements: `serial_s` + `divided_s` / ranks, as in Amdahl's law,
    and for an all-reduce hops * `latency_s` + 2 (ranks - 1) / ranks * `transfer_s`.
    """

    strategy: str
    scaling: str  # strong: the batch is fixed; weak: each rank's share is fixed; as it is: the script decides
    fitted_to: tuple[int, ...]  # numbers of ranks that were measured
    serial_s: float  # independent of the number of ranks
    divided_s: float  # on one rank; divided by the number of ranks
    latency_s: float  # of one hop, for all messages of a step
    transfer_s: float  # multiplied by 2 (ranks - 1) / ranks
    bandwidth_gb_s: float | None = None  # to which `transfer_s` corresponds, if the bytes are known
    latency_known: bool = True  # False: one number of ranks gives only the sum of latency and transfer
    tree: bool = False  # 2 log2 ranks hops fit better than the 2 (ranks - 1) of a ring


class ScalingForecast(msgspec.Struct, frozen=True):
    """A forecast for a number of ranks that was not measured, by the model of a step's time that was fitted to the
    measurements. The speed-up is over the first of the measured numbers of ranks; its range is from the 5th to the 95th
    percentile.
    """

    strategy: str
    scaling: str  # as in ScaledRun
    ranks: int
    speedup: Spread  # from the 5th to the 95th percentile
    efficiency: float  # the speed-up divided by how many times as many ranks there are


class ScalingReport(msgspec.Struct, frozen=True):
    """The result of one `launch scale`. `points` are the measurements, `advice` says what would help, `notes` what
    makes the results uncertain, and `kept` are the ids of runs that still exist.
    """

    id: str
    spec: str  # its file
    on: str  # the cluster
    steps: int  # measured steps of each training
    rounds: int  # how often all was measured
    took_s: float  # seconds of the whole measurement
    points: tuple[ScaledRun, ...]  # the measurements
    models: tuple[ScalingModel, ...] = ()  # of a step's time, fitted to the measurements of one strategy each
    forecasts: tuple[ScalingForecast, ...] = ()  # for numbers of ranks that were not measured, by the models
    advice: tuple[str, ...] = ()  # what would make the training faster
    notes: tuple[str, ...] = ()  # what makes the results uncertain
    kept: tuple[str, ...] = ()  # ids of runs that still exist
