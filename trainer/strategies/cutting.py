"""Where a row of parts is cut into the stages of a pipeline: by layers, by measured time, or where a user says.

Pure: who measures parts and who keeps a cut is told by `Cuts`.
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
    """Stages, and how they came about."""

    rows: Rows
    way: str = BY_LAYERS
    seconds: tuple[float, ...] = ()  # of each stage a forward and a backward pass, where that was measured
    otherwise: float | None = None  # the share of the slowest stage, had it been cut by layers

    @property
    def begins(self) -> list[str]:
        """The parts with which stages begin, but for the first."""
        return [row[0] for row in self.rows[1:]]

    @property
    def shares(self) -> list[float]:
        """Of the time of all stages, that of each."""
        return [one / sum(self.seconds) for one in self.seconds]

    def told(self) -> str:
        """`by measured time: embedding to blocks.0 47 %, blocks.1 to head 53 %`."""
        better = self.otherwise is not None and self.otherwise > max(self.shares, default=1.0)
        beside = f"; by layers the slowest would have {self.otherwise:.0%}" if better else ""
        return f"{_IN_WORDS.get(self.way, 'as given')}: {', '.join(self._stages())}{beside}"

    def lines(self) -> list[str]:
        """For a picture: how it was cut, and a line for each stage."""
        rows = [f"stage {number}: {said}" for number, said in enumerate(self._stages())]
        return [f"cut {_IN_WORDS.get(self.way, 'as given')}", *rows]

    def _stages(self) -> list[str]:
        names = [row[0] if len(row) == 1 else f"{row[0]} to {row[-1]}" for row in self.rows]
        shares = [f" {share:.0%}" for share in self.shares] or [""] * len(names)
        return [f"{name}{share}" for name, share in zip(names, shares, strict=True)]


_IN_WORDS = {BY_LAYERS: "by layers", BY_TIME: "by measured time"}


@dataclass(frozen=True, slots=True)
class Kept:
    """A cut that was found before."""

    begins: list[str]
    seconds: tuple[float, ...] = ()  # empty: they are not known any more
    otherwise: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """What parts are measured with: a part of a batch, as one stage after the other has it."""

    inputs: Tensor
    loss_of: Callable[[Tensor], Tensor]  # of what the last part gives


class Cuts(Protocol):
    """What cutting by time needs. All ranks call it, and in the same order."""

    def kept(self) -> list[Kept]:
        """What was found before, the same on all ranks; the first that fits is taken."""

    def sample(self) -> Sample | None:
        """None: nothing is to be measured now."""

    def keep(self, cut: Cut) -> None:
        """It was measured, and is what this training goes on with."""


def cut_by_layers(parts: Sequence[str], layers: Sequence[str], stages: int) -> Rows:
    """Equally many layers for each stage, or one more for some; what is no layer goes with the one before it.

    The first stage has what comes before the first layer. Raises BadSettings where there are too few.
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
    """Stages that begin with these parts, the first with the first. Raises BadSettings where they are none."""
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
    """The slowest stage as fast as it can be; of such ways that in which the others are the most alike.

    A stage needs a part with something to train. Raises BadSettings where there are fewer such parts than stages.
    """
    if sum(trained) < stages:
        raise BadSettings(
            f"mesh: pp: expected at least {stages} parts with parameters to train for {stages} stages, "
            f"found {sum(trained)}"
        )
    times, learners = [0.0, *accumulate(seconds)], [0, *accumulate(trained)]

    def time_of(begin: int, end: int) -> float:
        return times[end] - times[begin] if learners[end] > learners[begin] else inf

    slowest, _ = _cheapest(time_of, max, len(parts), stages)

    def unlikeness(begin: int, end: int) -> float:
        time = time_of(begin, end)
        return time * time if time <= slowest else inf

    _, places = _cheapest(unlikeness, lambda one, other: one + other, len(parts), stages)
    return [list(parts[begin:end]) for begin, end in zip([0, *places], [*places, len(parts)], strict=True)]


def _cheapest(
    cost: Callable[[int, int], float], add: Callable[[float, float], float], many: int, stages: int
) -> tuple[float, list[int]]:
    """What the cheapest way costs to cut a row of so many into stages, and where each but the first begins."""
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


def how_cut(
    wanted: str,
    parts: Sequence[str],
    layers: Sequence[str],
    trained: Sequence[bool],
    stages: int,
    cuts: Cuts | None,
    measure: Callable[[Sample], Sequence[float]],
) -> Cut:
    """As the setting says. `measure`: seconds of each part, the same on all ranks.

    What was measured once is gone by from then on: times differ from start to start, and a cut decides last bits of
    norms, and who draws which numbers for dropout.
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
    return tuple(sum(times[name] for name in row) for row in rows)


def _slowest_by_layers(
    parts: Sequence[str], layers: Sequence[str], stages: int, times: dict[str, float]
) -> float | None:
    """None where it could not be cut so."""
    if len(layers) < stages:
        return None
    return max(_of_stages(cut_by_layers(parts, layers, stages), times)) / sum(times.values())


def _fitting(parts: Sequence[str], begins: Sequence[str], stages: int) -> Rows | None:
    """None where it was another model, or another number of stages."""
    try:
        return cut_at(parts, begins, stages)
    except BadSettings:
        return None
