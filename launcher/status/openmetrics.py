"""Format the state of runs as OpenMetrics text, for Prometheus. Facts in labels are gauges, because node_exporter's
textfile collector does not know the type `info`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from launcher.run.records import NodeLoad
from launcher.states import State
from launcher.status.derive import RunStatus
from launcher.status.life import Life, read_life

_LATELY_S = 3600.0

Labels = dict[str, str]
Sample = tuple[Labels, float | None]  # None: not known, and left out


@dataclass(frozen=True, slots=True)
class Family:
    """The samples of one metric name, in the sense of OpenMetrics; a sample is (labels, value), with None if it is not
    known. `unit` is the end of the name.
    """

    name: str
    help: str  # explains the metric
    samples: Sequence[Sample]
    unit: str = ""  # the end of the name
    type: str = "gauge"  # in the sense of OpenMetrics


def exposition_now(statuses: Sequence[RunStatus], now: float) -> str:
    """Return the OpenMetrics text for all runs.

    All runs are counted, but only those that are active at the Unix time `now`, or ended in the hour before, get series
    of their own.
    """
    since = now - _LATELY_S
    shown = [one for one in statuses if not one.state.ended or (one.ended_at or one.submitted_at) >= since]
    return exposition(statuses, shown, {one.run: read_life(one, now) for one in shown})


def exposition(statuses: Sequence[RunStatus], shown: Sequence[RunStatus], lives: Mapping[str, Life]) -> str:
    """Return the OpenMetrics text.

    All runs in `statuses` are counted by state, and each run in `shown` gets series of its own; `lives` has the
    timelines, by run id, of those in `shown` that have one.
    """
    of_runs = (*_run_families(shown), *_timeline_families(lives))
    families = [_by_state(statuses), *of_runs, *_node_families(shown), *_gpu_families(shown), *_rank_families(shown)]
    return "".join(line for family in families for line in lines_of(family)) + "# EOF\n"


def lines_of(family: Family) -> Iterator[str]:
    """Yield the text lines of a metric: its type and help, then a line for each value that is known; no line if none
    is.
    """
    known = [(labels, value) for labels, value in family.samples if value is not None]
    if not known:
        return
    yield f"# TYPE {family.name} {family.type}\n"
    if family.unit:
        yield f"# UNIT {family.name} {family.unit}\n"
    yield f"# HELP {family.name} {_escaped(family.help)}\n"
    suffix = "_total" if family.type == "counter" else ""
    for labels, value in known:
        told = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
        yield f"{family.name}{suffix}{{{told}}} {_number(value)}\n"


def _escaped(text: str) -> str:
    """Return a label's value escaped as OpenMetrics wants it."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    """Return a number as text, with `NaN`, `+Inf` and `-Inf` as OpenMetrics spells them."""
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(text := repr(value), text)


# -- runs


def _by_state(statuses: Sequence[RunStatus]) -> Family:
    """Return the family with the number of runs in every state, zeros included, so that an alert always finds the
    series.
    """
    found = Counter(status.state for status in statuses)
    return Family("launch_runs", "Runs by state.", [({"state": state}, found[state]) for state in State])


def _run_families(shown: Sequence[RunStatus]) -> Iterator[Family]:
    """Yield the OpenMetrics families (all series of one name) that have one series for each run in `shown`: its state,
    steps, rate, restarts and so on.
    """

    def of_each(name: str, help_: str, samples: Iterable[float | None], unit: str = "") -> Family:
        """Return a family with one value for each run."""
        labels = ({"run": status.run} for status in shown)
        return Family(f"launch_run_{name}", help_, [*zip(labels, samples, strict=True)], unit)

    about: list[Sample] = [({"run": one.run, "name": one.name, "cluster": one.cluster}, 1) for one in shown]
    yield Family("launch_run_info", "What a run is called, and where it runs.", about)
    states: list[Sample] = [({"run": one.run, "state": one.state}, 1) for one in shown]
    yield Family("launch_run_state", "The state of a run, as a label.", states)
    yield of_each("step", "The newest step.", (one.step for one in shown))
    yield of_each("steps", "The steps that the run is to have.", (one.total_steps for one in shown))
    yield of_each("step_rate", "Steps a second.", (one.rate for one in shown))
    yield of_each("left_seconds", "The time that is left by this rate.", (one.eta_s for one in shown), "seconds")
    yield of_each("checkpoint_step", "The step of the newest checkpoint.", (one.checkpoint for one in shown))
    safe = (one.safe_checkpoint for one in shown)
    yield of_each("safe_checkpoint_step", "The step of the newest checkpoint that survives the loss of a disk.", safe)
    copies = (one.memory_copy for one in shown)
    yield of_each("memory_copy_step", "The newest step in memory that survives the loss of a node.", copies)
    yield of_each("world_size", "The ranks of the run.", (one.world_size for one in shown))
    yield of_each("attempt", "How often it was begun.", (one.attempt for one in shown))
    for what in ("submitted", "started", "ended"):
        when = (getattr(one, f"{what}_at") for one in shown)
        yield of_each(f"{what}_timestamp_seconds", f"When the run {_HAS[what]}.", when, "seconds")
    known = (one.as_of for one in shown)
    help_ = "When this was last known to be so, of a run that cannot be asked now."
    yield of_each("as_of_timestamp_seconds", help_, known, "seconds")
    restarts: list[Sample] = [
        ({"run": one.run, "cause": cause}, count) for one in shown for cause, count in one.restarts.by_cause.items()
    ]
    yield Family("launch_run_restarts", "Restarts by cause.", restarts, type="counter")
    measured: list[Sample] = [
        ({"run": one.run, "metric": name}, value) for one in shown for name, value in _measured(one).items()
    ]
    yield Family("launch_run_metric", "The last value of what the run has measured.", measured)


def _timeline_families(lives: Mapping[str, Life]) -> Iterator[Family]:
    """Yield the families about the timelines of runs: goodput and the time spent on each activity; `lives` has the
    timelines by run id.
    """
    shares: list[Sample] = [({"run": run}, life.goodput) for run, life in lives.items()]
    yield Family("launch_run_goodput_ratio", "The share of its time that went into steps which count.", shares, "ratio")
    spent: list[Sample] = [
        ({"run": run, "on": kind}, seconds) for run, life in lives.items() for kind, seconds in life.seconds.items()
    ]
    yield Family("launch_run_spent_seconds", "What the time of a run went into.", spent, "seconds")


def _measured(status: RunStatus) -> dict[str, float]:
    """Return {metric: its newest value} of a run, NaN and infinite values included."""
    return status.metrics | {name: float(one.value) for name, one in status.not_finite.items()}


_HAS = {"submitted": "was submitted", "started": "first started", "ended": "ended"}


# -- what is in use


def _node_families(shown: Sequence[RunStatus]) -> Iterator[Family]:
    """Yield the families with a series per node: cores and memory of its machine, how much of them is in use, and the
    traffic of its networks and disks.
    """
    loads = [*_loads(shown)]

    def of_each(name: str, help_: str, field: str, unit: str = "") -> Family:
        """Return a family with one value for each node."""
        return Family(f"launch_node_{name}", help_, [(labels, getattr(load, field)) for labels, load in loads], unit)

    yield of_each("cores", "The cores of a node's machine.", "cores")
    yield of_each("cores_used", "Of its cores those in use, by whomever.", "cpu")
    yield of_each("memory_bytes", "The memory of a node's machine.", "memory_total", "bytes")
    yield of_each("memory_used_bytes", "Of its memory what is in use, by whomever.", "memory", "bytes")
    for field in ("received", "sent", "read", "written"):
        where = "networks" if field in ("received", "sent") else "disks"
        yield of_each(f"{field}_bytes_per_second", f"What is {field}, by its {where}.", field)


def _gpu_families(shown: Sequence[RunStatus]) -> Iterator[Family]:
    """Yield the families with a series per GPU: how busy it is, its memory, and how much of that is in use."""
    gpus = [(labels | {"gpu": str(gpu.index)}, gpu) for labels, load in _loads(shown) for gpu in load.gpus]
    busy = [(labels, None if gpu.busy is None else gpu.busy / 100) for labels, gpu in gpus]
    yield Family("launch_gpu_busy_ratio", "The share of the time that a GPU is busy.", busy, "ratio")
    totals: list[Sample] = [(labels, gpu.memory_total) for labels, gpu in gpus]
    yield Family("launch_gpu_memory_bytes", "The memory of a GPU.", totals, "bytes")
    used: list[Sample] = [(labels, gpu.memory) for labels, gpu in gpus]
    yield Family("launch_gpu_memory_used_bytes", "Of it what is in use.", used, "bytes")


def _rank_families(shown: Sequence[RunStatus]) -> Iterator[Family]:
    """Yield the families with a series per rank: its newest step, and the cores, memory and GPU memory that it uses."""
    steps: list[Sample] = [
        ({"run": one.run, "rank": str(rank.rank)}, rank.step) for one in shown if one.loads for rank in one.ranks
    ]
    yield Family("launch_rank_step", "The newest step of a rank that runs.", steps)
    ranks = [(labels | {"rank": str(rank.rank)}, rank) for labels, load in _loads(shown) for rank in load.ranks]
    cores: list[Sample] = [(labels, rank.cpu) for labels, rank in ranks]
    yield Family("launch_rank_cores_used", "The cores that a rank uses, with all its processes.", cores)
    memory: list[Sample] = [(labels, rank.memory) for labels, rank in ranks]
    yield Family("launch_rank_memory_used_bytes", "The memory that a rank uses.", memory, "bytes")
    on_gpus: list[Sample] = [(labels, rank.gpu_memory if rank.gpus else None) for labels, rank in ranks]
    yield Family("launch_rank_gpu_memory_used_bytes", "The memory of GPUs that a rank uses.", on_gpus, "bytes")


def _loads(shown: Sequence[RunStatus]) -> Iterator[tuple[Labels, NodeLoad]]:
    """Yield (labels of the run and node, load) of each node."""
    for status in shown:
        hosts = {node.node: node.host or node.address for node in status.nodes}
        for load in status.loads:
            yield {"run": status.run, "node": str(load.node), "host": hosts.get(load.node, "")}, load
