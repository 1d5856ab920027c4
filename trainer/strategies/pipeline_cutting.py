"""Cut a sequence of parts into the stages of a pipeline: by layers, by measured time, or as the user says.

The functions are pure; `Cuts` is the interface that measures parts and saves a cut.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf
from typing import Protocol

from torch import Tensor

from trainer.errors import BadSettings

BY_LAYERS, BY_TIME = "layers", "time"

Rows = list[list[str]]  # the parts of each stage


@dataclass(frozen=True, slots=True)
class Cut:
    """The stages of a pipeline, and how they were found.

    `rows` has the names of each stage's parts. `way` is BY_LAYERS, BY_TIME, or "" if the user gave the parts. `seconds`
    are the measured times of the stages, and `otherwise` is the part of the time of all stages, from 0 to 1, that the
    slowest would have if the model had been cut by layers.
    """

    rows: Rows  # for each stage, the names of its parts
    way: str = BY_LAYERS  # how it was cut: BY_LAYERS, BY_TIME, or "" where the parts were given
    seconds: tuple[float, ...] = ()  # of a forward and a backward pass, by stage; empty: not measured
    otherwise: float | None = None  # None: not measured

    @property
    def begins(self) -> list[str]:
        """The name of the first part of each stage but the first."""
        return [row[0] for row in self.rows[1:]]

    @property
    def shares(self) -> list[float]:
        """Each stage's share of the time of all stages, or an empty list if the cut was not measured."""
        return [one / sum(self.seconds) for one in self.seconds]

    def summary(self) -> str:
        """Return as text how the model was cut: `by measured time: embedding to blocks.0 47%, blocks.1 to head 53%`.

        After the first and last part of each stage comes its share of the measured time of all stages, if known.
        """
        better = self.otherwise is not None and self.otherwise > max(self.shares, default=1.0)
        beside = f"; by layers the slowest would have {self.otherwise:.0%}" if better else ""
        return f"{_IN_WORDS.get(self.way, 'as given')}: {', '.join(self._stages())}{beside}"

    def lines(self) -> list[str]:
        """Return lines for a picture: how the model was cut, and one for each stage."""
        rows = [f"stage {number}: {stage_text}" for number, stage_text in enumerate(self._stages())]
        return [f"cut {_IN_WORDS.get(self.way, 'as given')}", *rows]

    def _stages(self) -> list[str]:
        """Return a text for each stage, such as `blocks.1 to head 53%`.

        It names the stage's first and last part, and its share of the measured time of all stages, if known.
        """
        names = [row[0] if len(row) == 1 else f"{row[0]} to {row[-1]}" for row in self.rows]
        shares = [f" {share:.0%}" for share in self.shares] or [""] * len(names)
        return [f"{name}{share}" for name, share in zip(names, shares, strict=True)]


_IN_WORDS = {BY_LAYERS: "by layers", BY_TIME: "by measured time"}


@dataclass(frozen=True, slots=True)
class SavedCut:
    """A cut that an earlier process of the same training saved, for later ones to use again.

    `begins` has the first part of each stage but the first. `seconds` are the measured times of the stages, and
    `otherwise` is the part of the whole time, from 0 to 1, that the slowest stage would take if the model were cut by
    layers.
    """

    begins: list[str]  # names of parts
    seconds: tuple[float, ...] = ()  # empty: unknown
    otherwise: float | None = None  # None: unknown


@dataclass(frozen=True, slots=True)
class Sample:
    """A part of a batch to measure the stages with: the input, and a function that makes the loss of the output."""

    inputs: Tensor
    loss_of: Callable[[Tensor], Tensor]  # of what the last part gives


class Cuts(Protocol):
    """The interface by which a cut by measured time gets the cuts saved earlier and a sample, and saves its result.

    The sample is a part of a batch, on which the parts are timed. Every rank calls the same methods in the same order.
    """

    def kept(self) -> list[SavedCut]:
        """Return the cuts saved before, the same on all ranks; the first one for these parts and stages is used."""

    def sample(self) -> Sample | None:
        """Return a sample to measure with, or None if the model is only evaluated; it is then cut by layers."""

    def keep(self, cut: Cut) -> None:
        """Save a measured cut, so that `kept` returns it after a restart of this training."""


def cut_by_layers(parts: Sequence[str], layers: Sequence[str], stages: int) -> Rows:
    """Return for each stage the names of its parts: as many layers in each stage, or one more in some.

    `parts` are all parts in order; those that are no layers go with the layer before them, or in the first stage.
    Raises BadSettings if there are fewer layers than stages.
    """
    if len(layers) < stages:
        raise BadSettings(
            f"mesh: pp: expected at least {stages} layers for {stages} stages, found {len(layers)}\n"
            "hint: fewer stages, or name the layers by `blocks`"
        )
    found: Rows = [[] for _ in range(stages)]
    numbers = {name: number for number, name in enumerate(layers)}
    stage = 0
    for name in parts:
        if name in numbers:
            stage = numbers[name] * stages // len(layers)
        found[stage].append(name)
    return found


def cut_at(parts: Sequence[str], begins: Sequence[str], stages: int) -> Rows:
    """Return for each stage the names of its parts; the second and further stages begin with the parts `begins`.

    Raises BadSettings for unknown parts, or unless `begins` has one part less than there are stages, in the order of
    `parts` and without the first of these.
    """
    if strangers := [name for name in begins if name not in parts]:
        raise BadSettings(
            f"pp_cut: expected layers, time, or parts with which stages begin, got {strangers[0]!r}\n"
            f"hint: parts are {', '.join(parts)}"
        )
    places = [0, *(parts.index(name) for name in begins), len(parts)]
    if len(places) != stages + 1:
        raise BadSettings(
            f"pp_cut: expected {stages - 1} parts with which stages begin, as there are {stages} stages, "
            f"got {len(begins)}: {', '.join(begins)}"
        )
    if any(one >= other for one, other in pairwise(places)):
        raise BadSettings(
            f"pp_cut: expected parts in the order of the model, the first of all left out, got {', '.join(begins)}"
        )
    return [list(parts[one:other]) for one, other in pairwise(places)]


def cut_by_time(parts: Sequence[str], seconds: Sequence[float], trained: Sequence[bool], stages: int) -> Rows:
    """Return for each stage the names of its parts, so that the slowest stage is as fast as possible.

    If several cuts are equally fast, it is the most even one. `seconds` are the times of the parts, and `trained` says
    for each part whether it has something to train. Each stage needs such a part. Raises BadSettings if there are fewer
    of them than stages.
    """
    if sum(trained) < stages:
        raise BadSettings(
            f"mesh: pp: expected at least {stages} parts with parameters to train for {stages} stages, "
            f"found {sum(trained)}"
        )
    times, learners = [0.0, *accumulate(seconds)], [0, *accumulate(trained)]

    def time_of(begin: int, end: int) -> float:
        """Return the time of the parts from `begin` to `end`, or infinity if none of them is trained."""
        return times[end] - times[begin] if learners[end] > learners[begin] else inf

    slowest, _ = _cheapest(time_of, max, len(parts), stages)

    def unlikeness(begin: int, end: int) -> float:
        """Return the squared time of these parts, or infinity if they take longer than the slowest stage must."""
        time = time_of(begin, end)
        return time * time if time <= slowest else inf

    _, places = _cheapest(unlikeness, lambda one, other: one + other, len(parts), stages)
    return [list(parts[begin:end]) for begin, end in zip([0, *places], [*places, len(parts)], strict=True)]


def _cheapest(
    cost: Callable[[int, int], float], add: Callable[[float, float], float], many: int, stages: int
) -> tuple[float, list[int]]:
    """Return the least cost of cutting a sequence of `many` items into stages, and where stages except the first begin.

    `cost(begin, end)` is that of one stage, and `add(cost, cost)` joins the costs of two, as by a sum or maximum.
    """
    best = [cost(0, end) if end else inf for end in range(many + 1)]  # of the first so many, in one stage
    cut_at_: list[list[int]] = []
    for stage in range(1, stages):
        now, begins = [inf] * (many + 1), [0] * (many + 1)
        for end in range(stage + 1, many + 1):
            for begin in range(stage, end):
                whole = add(best[begin], cost(begin, end))
                if whole < now[end]:
                    now[end], begins[end] = whole, begin
        best = now
        cut_at_.append(begins)
    places: list[int] = []
    end = many
    for begins in reversed(cut_at_):
        end = begins[end]
        places.append(end)
    return best[many], places[::-1]


def choose_cut(
    wanted: str,
    parts: Sequence[str],
    layers: Sequence[str],
    trained: Sequence[bool],
    stages: int,
    cuts: Cuts | None,
    measure: Callable[[Sample], Sequence[float]],
) -> Cut:
    """Return the cut that `wanted` asks for: `layers`, `time`, or the names of the parts that begin later stages.

    `layers` are the parts that count as layers, and `trained` says for each part whether it has something to train. A
    cut by time that was saved in `cuts` is used again, because times differ between starts, and a cut decides the last
    bits of norms and which rank draws which numbers for dropout. Without a saved one `measure(sample)` returns each
    part's seconds, on all ranks, and the new cut is saved. If `cuts` is None or has no sample, the model is cut by
    layers. Raises BadSettings if the model cannot be cut into so many `stages`.
    """
    if wanted == BY_LAYERS:
        return Cut(cut_by_layers(parts, layers, stages))
    if wanted != BY_TIME:
        return Cut(cut_at(parts, [name.strip() for name in wanted.split(",")], stages), "")
    for known in cuts.kept() if cuts is not None else ():
        if (rows := _fitting(parts, known.begins, stages)) is not None:
            return Cut(rows, BY_TIME, known.seconds if len(known.seconds) == stages else (), known.otherwise)
    sample = cuts.sample() if cuts is not None else None
    if cuts is None or sample is None:
        return Cut(cut_by_layers(parts, layers, stages))
    seconds = measure(sample)
    rows = cut_by_time(parts, seconds, trained, stages)
    times = dict(zip(parts, seconds, strict=True))
    cut = Cut(rows, BY_TIME, _of_stages(rows, times), _slowest_by_layers(parts, layers, stages, times))
    cuts.keep(cut)
    return cut


def _of_stages(rows: Rows, times: dict[str, float]) -> tuple[float, ...]:
    """Return for each stage the sum of the times of its parts; `times` has the seconds by part name."""
    return tuple(sum(times[name] for name in row) for row in rows)


def _slowest_by_layers(
    parts: Sequence[str], layers: Sequence[str], stages: int, times: dict[str, float]
) -> float | None:
    """Return the share, from 0 to 1, of all parts' time that the slowest stage has if cut by layers.

    It is None if there are fewer layers than stages. `layers` are those of the `parts` that count as layers; `times`
    has each part's seconds by its name.
    """
    if len(layers) < stages:
        return None
    return max(_of_stages(cut_by_layers(parts, layers, stages), times)) / sum(times.values())


def _fitting(parts: Sequence[str], begins: Sequence[str], stages: int) -> Rows | None:
    """Return for each stage the names of its parts, by a saved cut whose stages begin with the parts `begins`.

    Returns None if the cut is of another model or another number of stages.
    """
    try:
        return cut_at(parts, begins, stages)
    except BadSettings:
        return None
