"""Compare a disturbed run with the undisturbed one: the metrics that ranks reported, as {rank: {step: {metric:
value}}}, and the contents of checkpoints.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from launcher.apps.proof.findings import Departure, StateDeparture
from launcher.status.series import Rows, better
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.differences import Differences, differences
from trainer.errors import CheckpointDamaged, CheckpointPartial

_ALSO = frozenset({"lr", "norm", "grad_norm"})  # of no better or worse, but a part of the training; others may be times
_DECIDES = ("generators", "data")  # of what is kept beside tensors: what comes next is drawn from it


@dataclass(frozen=True, slots=True)
class ComparedRows:
    """The comparison of the metrics that two runs reported: at which steps, of which metrics, and the first number that
    differs, or None.
    """

    at: tuple[int, ...]  # the steps compared: both runs reported a value of the same metric and rank
    metrics: tuple[str, ...]  # the names of those compared
    first: Departure | None  # step, rank, metric and both values


def is_of_the_training(metric: str) -> bool:
    """Return whether a metric must be equal in every run: the learning rate, a norm, or one whose name tells whether
    larger or smaller is better, such as a loss. Other metrics need not be equal, as they may be times or speeds.
    """
    return better(metric) != 0 or metric in _ALSO


def compared_rows(
    undisturbed: Mapping[int, Rows], disturbed: Mapping[int, Rows], chosen: Collection[str] = ()
) -> ComparedRows:
    """Compare what two runs reported, given by rank, at the steps that both reported; NaN equals NaN.

    Only the metrics in `chosen` are compared or, if it is empty, those that must be equal in every run by their names
    (`is_of_the_training`), such as a loss or the learning rate, and not a rate or a time.
    """
    wanted = set(chosen).__contains__ if chosen else is_of_the_training
    pairs = list(_pairs(undisturbed, disturbed, wanted))
    departures = (
        Departure(step, rank, name, one, other) for step, rank, name, one, other in pairs if not _alike(one, other)
    )
    names = tuple(dict.fromkeys(name for _, _, name, *_ in pairs))
    return ComparedRows(tuple(dict.fromkeys(step for step, *_ in pairs)), names, next(departures, None))


def _pairs(
    undisturbed: Mapping[int, Rows], disturbed: Mapping[int, Rows], wanted: Callable[[str], bool]
) -> Iterator[tuple[int, int, str, float, float]]:
    """Yield (step, rank, metric, undisturbed value, disturbed value) for what both runs reported, by ascending step,
    then rank.

    Only metrics for which `wanted` returns True are yielded.
    """
    both = [rank for rank in sorted(undisturbed) if rank in disturbed]
    for step in sorted({step for rank in both for step in undisturbed[rank]}):
        for rank in both:
            here, there = undisturbed[rank].get(step, {}), disturbed[rank].get(step, {})
            for name, one in here.items():
                if name in there and wanted(name):
                    yield step, rank, name, one, there[name]


def _alike(one: float, other: float) -> bool:
    """Return whether two numbers are equal, where NaN equals NaN."""
    return one == other or (math.isnan(one) and math.isnan(other))


@dataclass(frozen=True, slots=True)
class ComparedStates:
    """The comparison of the checkpoints of two runs: of which steps, and the first that differs, or None. `unread` says
    why one could not be read, or is "".
    """

    steps: tuple[int, ...]  # whose checkpoints were compared
    first: StateDeparture | None
    unread: str = ""  # why a checkpoint could not be read, or ""


def compared_states(
    undisturbed: Mapping[int, Path], disturbed: Mapping[int, Path], *, untouched: int, every: bool
) -> ComparedStates:
    """Compare the checkpoints, given as {step: folder}, of steps that both runs have: the last one or, with `every`,
    each until two differ.

    Nothing was killed before step `untouched`. State other than tensors that differs already in the last checkpoint up
    to that step, such as that of a generator without a seed, differs between any two runs and is ignored.
    """
    both = sorted(undisturbed.keys() & disturbed.keys())
    done = list[int]()
    try:
        before = next((step for step in reversed(both) if step <= untouched), None)
        usual = None if before is None else {*_between(before, undisturbed, disturbed).kept}
        for step in both if every else both[-1:]:
            found = _between(step, undisturbed, disturbed)
            done.append(step)
            if (first := departure_of(step, found, usual)) is not None:
                return ComparedStates(tuple(done), first)
    except (CheckpointDamaged, CheckpointPartial, OSError) as error:
        return ComparedStates(tuple(done), None, str(error).partition("\n")[0])
    return ComparedStates(tuple(done), None)


def _between(step: int, undisturbed: Mapping[int, Path], disturbed: Mapping[int, Path]) -> Differences:
    """Return the differences between the two checkpoints of step `step`; `undisturbed` and `disturbed` have each run's
    checkpoints by step.
    """
    return differences(Entry("step", step, undisturbed[step]), Entry("step", step, disturbed[step]))


def departure_of(step: int, found: Differences, usual: Collection[str] | None) -> StateDeparture | None:
    """Return, in the form of the report, the differences `found` between the two runs' checkpoints of a step, or None
    if they do not affect the rest of the training.

    `usual` names the state, other than tensors, that differs between any two runs and so is ignored. If it is None,
    that is not known, and only tensors decide.
    """
    kept = tuple(place for place in found.kept if usual is None or place not in usual)
    if not found.different and (usual is None or not any(map(decides, kept))):
        return None
    state = StateDeparture(step, found.tensors, len(found.different), kept=kept)
    if (first := found.first) is None:
        return state
    return msgspec.structs.replace(
        state, tensor=first.name, index=first.index, undisturbed=first.one, disturbed=first.other
    )


def decides(place: str) -> bool:
    """Return whether a difference at `place` would change the training; `place` is the path in a checkpoint of state
    that is no tensor.

    The state of random generators and the position in the data would. A user's object need not: it may contain a time,
    in which no two runs agree.
    """
    return bool(named_in([place], _DECIDES))


def named_in(places: Iterable[str], parts: Sequence[str]) -> list[str]:
    """Return those of `places`, paths in a checkpoint with parts between slashes, of which one part is among the names
    in `parts`.
    """
    return [place for place in places if set(parts) & set(place.split("/"))]
