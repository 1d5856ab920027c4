"""The table of all runs: one row of it, with a summary of the run's metrics."""

from collections.abc import Sequence

import msgspec

from launcher.apps.board.answers import Number, named_numbers, number
from launcher.apps.board.groups import RunGroup
from launcher.apps.board.measured.curves import thumbnail
from launcher.apps.board.measured.reading import MeasuredRun
from launcher.states import Cause, State
from launcher.status.about import About, options_in
from launcher.status.derive import RunStatus
from launcher.status.series import better
from launcher.status.text import plain

_POINTS = 40
_LONGEST = 2000  # characters of a headline, a note or an argument that somebody wrote without end


class LastValue(msgspec.Struct, frozen=True):
    """The newest value of a metric and its step, shown at the end of its curve."""

    name: str  # of the metric
    value: Number
    step: int


class Figures(msgspec.Struct, frozen=True):
    """A summary of a run's metrics, empty until they have been read: the best value of each with its step, and the
    points of a small curve (`spark`) of the metric `spark_of`, with its newest value.
    """

    best: dict[str, tuple[float, int]] = {}  # by metric: (best value, its step)
    spark: list[float | None] = []  # values of the small curve, evenly spread over the run; None: not finite
    spark_of: str = ""  # the metric of the small curve
    last: LastValue | None = None  # the newest value of that metric


class BoardRow(msgspec.Struct, frozen=True):
    """A row of the table of all runs. `called` is the name that a user gave the run, `headline` says why it is in its
    state, `as_of` when the state was last known to hold if it may be out of date, `args` are options of its script, and
    `spark` the points of a small curve.
    """

    id: str
    name: str  # of the job, in its spec
    called: str
    tags: tuple[str, ...]
    note: str
    description: str
    cluster: str
    job: str | None  # its id in the batch system
    state: State
    ended: bool  # whether the run has ended in this state
    cause: Cause | None  # why it failed, if it did
    headline: str
    step: int | None  # None: none was reported; so for all numbers below
    total: int | None  # steps of the whole training
    rate: float | None  # steps per second
    eta_s: float | None  # seconds until the last step
    submitted_at: float  # Unix time, as are the next three
    started_at: float | None
    ended_at: float | None
    as_of: float | None
    args: dict[str, str]
    metrics: dict[str, Number]  # the newest value of each
    best: dict[str, tuple[float, int]]  # by metric: (best value, its step)
    restarts: int  # of its ranks, all causes together
    nodes: int
    world_size: int | None
    spark: list[float | None]  # evenly spread over the run; None: not finite
    spark_of: str  # the metric of the small curve; "": there is none
    last: LastValue | None = None  # the newest value of the metric `spark_of`
    group: RunGroup | None = None  # the runs with which one command started it


def board_row(status: RunStatus, about: About, figures: Figures, group: RunGroup | None = None) -> BoardRow:
    """Return the table row of a run, from its status, its arguments and labels (`about`), and the summary of its
    metrics (`figures`). `group` describes the runs that one command started together with it, or is None.
    """
    said = status.last_word if status.state is State.FAILED else status.message
    return BoardRow(
        id=status.run,
        name=status.name,
        called=about.called,
        tags=about.tags,
        note=_short(about.note),
        description=_short(about.description),
        cluster=status.cluster,
        job=status.job,
        state=status.state,
        ended=status.state.ended,
        cause=status.cause,
        headline=_short(said),
        step=status.step,
        total=status.total_steps,
        rate=status.rate,
        eta_s=status.eta_s,
        submitted_at=status.submitted_at,
        started_at=status.started_at,
        ended_at=status.ended_at,
        as_of=status.as_of,
        args={_short(name): _short(value) for name, value in options_in(about.args).items()},
        metrics=_metrics(status),
        best=figures.best,
        restarts=status.restarts.total,
        nodes=len(status.nodes),
        world_size=status.world_size,
        spark=figures.spark,
        spark_of=figures.spark_of,
        last=figures.last,
        group=group,
    )


def _metrics(status: RunStatus) -> dict[str, Number]:
    """Return {metric: the newest value that the run reported of it}; NaN and infinity are text, such as `nan`."""
    words = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
    odd = {name: words[one.value] for name, one in status.not_finite.items()}
    return {**named_numbers(status.metrics), **odd}


def _short(text: str) -> str:
    """Return the text on one line, cut if it is long."""
    return plain(" ".join(text.split()))[:_LONGEST]


def figures_of(measured: MeasuredRun) -> Figures:
    """Return the summary of a run's metrics: the best value of each metric whose name tells whether more or less of it
    is better, with its step, and a small curve and the last value of the loss. If the run has no loss, the curve is
    that of its first metric.
    """
    best, names = {}, measured.names
    for name in names:
        if way := better(name):
            points = ((value, step) for step, _, value in measured.points(name) if value - value == 0.0)
            found = min(points, key=lambda point: (-way * point[0], point[1]), default=None)
            if found is not None:
                best[name] = found
    shown = _main_metric(names)
    values = [value for _, _, value in measured.points(shown)]
    return Figures(best, thumbnail(values, _POINTS), shown, last_value(measured))


def last_value(measured: MeasuredRun) -> LastValue | None:
    """Return the newest value, with its step, of the metric that the row's small curve shows: the loss, or the run's
    first metric if it has no loss. Return None if no value was read.
    """
    name = _main_metric(measured.names)
    found = measured.newest(name)
    return LastValue(name, number(found[1]), found[0]) if found is not None else None


def _main_metric(names: Sequence[str]) -> str:
    """Return the metric in `names` that represents a run: the first that is a loss, else the first one; "" if there is
    none. A metric is a loss if its name is `loss` or ends in `/loss`.
    """
    return next((name for name in names if name == "loss" or name.endswith("/loss")), names[0] if names else "")
