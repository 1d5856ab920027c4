"""Choose the trainings that a scaling measurement runs, each as overrides of the spec, such as `resources.nodes=2`.
Pure. In strong scaling all ranks share a fixed batch; in weak scaling each rank's share of the batch is fixed. A
strategy is a way to divide a training over ranks, such as ddp or fsdp.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from launcher.apps.repeated_runs import gives, steps_override
from launcher.apps.scaling.findings import DP, MASTER, MP, OWN, STRONG, WEAK
from launcher.errors import BadInput
from launcher.spec.model import JobSpec, Resources, RunOptions

# The last two are baselines, and no strategies of the trainer; so is dp with a number of GPUs.
STRATEGIES = ("none", "dp", "ddp", "zero1", "zero2", "fsdp", "hsdp", MASTER, MP)
BASELINES = (DP, MASTER, MP)  # measured for comparison, and nothing to train by
_IN_ONE_PROCESS = (DP, MP)
_AS_THE_TRAINER_HAS_IT = {MASTER: "ddp", MP: "none"}
_BATCH, _STRATEGY = "batch-size", "strategy"
_BASELINE = "env.TRAINER_BASELINE"  # trainer/strategies/baselines.py reads it
_LINES = 6  # of metrics, that are measured
_WARM = 5  # steps at least, before them
_TRACED = 5  # steps, after them: a trace makes them slower
# Nobody is to hear of it, and nothing is worth keeping but its lines of metrics.
_ALWAYS = ("sweep=null", "notify.to=[]", "checkpoint.every=null", "checkpoint.memory_every=null")
_UNSET = ("max-epochs", "max-time-s", "patience", "checkpoint-every")  # a training has none of them, in the end
_LEFT_OUT = ("keep-best", "lr-find", "tensorboard", "fast-dev-run", "overfit-batches", "resume")


@dataclass(frozen=True, slots=True)
class Schedule:
    """How many steps of a training warm up, are measured, and are traced by torch's profiler, and how often, in steps,
    metrics are logged.
    """

    warm: int
    measured: int
    traced: int
    log_every: int

    @property
    def last(self) -> int:
        """The last measured step."""
        return self.warm + self.measured

    @property
    def end(self) -> int:
        """The last step of the training; traced steps come after the measured ones."""
        return self.last + self.traced


def schedule_of(steps: int) -> Schedule:
    """Return a schedule in which each line of metrics covers equally many steps, so that `steps`, the number of
    measured steps, is rounded down to a multiple of these.
    """
    every = max(1, steps // _LINES)
    return Schedule(every * math.ceil(_WARM / every), every * (steps // every), _TRACED, every)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A training to measure. `strategy` is "" for that of the spec, `scaling` is strong, weak or the script's own, and
    `per_node` is the ranks per node. With dp, ranks are the GPUs of nn.DataParallel; with mp, the devices that share
    the layers.
    """

    strategy: str  # "": that of the spec
    scaling: str  # how the batch depends on the ranks: strong, weak, or the script's own way
    nodes: int
    per_node: int  # ranks on each node

    @property
    def ranks(self) -> int:
        """The number of ranks of the training, on all nodes."""
        return self.nodes * self.per_node

    @property
    def name(self) -> str:
        """The end of its runs' ids, such as `fsdp-4`."""
        parts = (self.strategy, str(self.ranks), self.scaling if self.scaling == WEAK else "")
        return "-".join(part for part in parts if part)


def configurations(
    ranks: Sequence[int], strategies: Sequence[str], scalings: Sequence[str], resources: Resources, per_node: int | None
) -> list[Configuration]:
    """Return the trainings to measure: for each strategy, each number of ranks with each scaling (strong or weak),
    fewest ranks first.

    With the fewest ranks only the first scaling is measured, because all are the same there. `per_node` is the ranks on
    a node, or None for the spec's. Raise BadInput for ranks that do not fill whole nodes, or if a strategy that is one
    process would have several nodes.
    """
    found = list[Configuration]()
    for strategy in strategies:
        for count in sorted(set(ranks)):
            nodes, each = _placed(count, resources, per_node)
            if strategy in _IN_ONE_PROCESS and nodes > 1:
                raise BadInput(
                    f"--strategies: {strategy} is one process on one node: expected up to {each} ranks, got {count}"
                )
            for scaling in scalings[: 1 if count == min(ranks) else None]:
                found.append(Configuration(strategy, scaling, nodes, each))
    return found


def _placed(ranks: int, resources: Resources, per_node: int | None) -> tuple[int, int]:
    """Return (nodes, ranks per node) for `ranks` ranks in all.

    A node has `per_node` ranks, or if that is None as many as the spec says; fewer ranks than that are all on one node.
    If `per_node` is None and the spec has only one node, all ranks are on it, however many. Raise BadInput if the ranks
    do not fill whole nodes, or if the spec leaves the ranks of a node open (auto).
    """
    if per_node is None and resources.nodes.max > 1:
        per_node = resources.ranks_per_node
        if per_node is None:
            raise BadInput("--per-node: expected how many ranks a node has, the spec says auto")
    if per_node is None or ranks <= per_node:
        return 1, ranks
    if ranks % per_node:
        raise BadInput(f"--ranks: expected whole nodes of {per_node} ranks, got {ranks}")
    return ranks // per_node, per_node


def overrides_of(
    one: Configuration, run: RunOptions, schedule: Schedule, batch: int | None, cpus: int | None = None
) -> list[str]:
    """Return the overrides that make the run of a spec the training `one`, which ends after the steps of `schedule`.

    `run` shows which of the trainer's options the spec sets. `batch` is the samples of a step over all ranks, and
    `cpus` the cores of each rank; None leaves what the spec says.
    """
    return [
        *_ALWAYS, *(_in_one_process(one, cpus) if one.strategy in _IN_ONE_PROCESS else _places(one)),
        *(f"run.args.{name}=none" for name in _UNSET),
        *(f"run.args.{name}=null" for name in _LEFT_OUT if gives(run, name)),
        f"run.args.max-steps={schedule.end}", f"run.args.log-every={schedule.log_every}",
        f"run.args.profile={schedule.last + 1}..{schedule.end}", "run.args.validate-every=never",
        *_strategy_overrides(one.strategy),
        *([f"run.args.{_BATCH}={batch}"] if batch is not None else []),
    ]  # fmt: skip


def own_overrides(one: Configuration, run: RunOptions, schedule: Schedule) -> list[str]:
    """Return the overrides with which a script that lacks the trainer's options runs the training `one`: its nodes and
    ranks, and a limit of steps. Raise BadInput if no option of the script is known that limits its steps.
    """
    return [*_ALWAYS, *_places(one), steps_override(run, schedule.last)]


def counted_role(spec: JobSpec, name: str | None) -> str:
    """Return the role whose ranks are measured: `name`, by default the main one; "" for a run of one program.

    Raise BadInput if there is no such role.
    """
    if name is not None and name not in spec.roles:
        there = f"hint: there is {', '.join(spec.roles)}" if spec.roles else "hint: the spec has no roles"
        raise BadInput(f"--role: no role {name[:100]!r}", there)
    return name or next((other for other, role in spec.roles.items() if role.main), "")


def of_roles(overrides: Sequence[str], spec: JobSpec, counted: str) -> list[str]:
    """Return the overrides with their keys put below the spec's roles: `resources` below the role `counted`, whose
    ranks are measured; `run`, `env` and `checkpoint` below the main role.

    They are returned unchanged if the spec has no roles.
    """
    main = counted_role(spec, None)
    owners = {"resources": counted, "run": main, "env": main, "checkpoint": main} if main else {}
    return [f"roles.{owners[key]}.{word}" if (key := word.partition(".")[0]) in owners else word for word in overrides]


def _strategy_overrides(strategy: str) -> Iterator[str]:
    """Yield the overrides that select a strategy, the way of dividing a training over ranks, such as `ddp` or `fsdp`:
    for example `run.args.strategy=ddp`. Yield none for "", which leaves the spec's own.
    """
    if strategy == MASTER:  # as ddp, but for how it adds gradients up
        yield f"{_BASELINE}={MASTER}"
    if strategy:
        yield f"run.args.{_STRATEGY}={_AS_THE_TRAINER_HAS_IT.get(strategy, strategy)}"


def _in_one_process(one: Configuration, cpus: int | None) -> Iterator[str]:
    """Yield the overrides that make `one`, a training by an older way such as nn.DataParallel, use `one.ranks` GPUs in
    one process on one node. `cpus` is the cores for each GPU (None: the process gets those that the spec says).
    """
    yield from ("resources.nodes=1", "resources.ranks_per_node=1", f"{_BASELINE}={one.strategy}={one.ranks}")
    if cpus is not None:
        yield f"resources.cpus_per_rank={cpus * one.ranks}"


def _places(one: Configuration) -> Iterator[str]:
    """Yield the overrides by which the training `one` gets its numbers of nodes and of ranks per node."""
    yield f"resources.nodes={one.nodes}"
    yield f"resources.ranks_per_node={one.per_node}"


def scalings_of(*, strong: bool, weak: bool, has_options: bool) -> tuple[str, ...]:
    """Return the scalings to measure: those chosen by `strong` and `weak`, both if neither is.

    `has_options` is False if the script lacks the trainer's options. launch cannot set the batch of such a script: the
    only scaling is `OWN`, in which the script runs as it is, and BadInput is raised if `strong` or `weak` is set.
    """
    if not has_options:
        if strong or weak:
            raise BadInput("--strong, --weak: expected a script with the trainer's options: add_options(parser)")
        return (OWN,)
    return tuple(word for word, wanted in ((STRONG, strong or not weak), (WEAK, weak or not strong)) if wanted)
