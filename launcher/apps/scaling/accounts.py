"""Compute speed-up, efficiency and lost time from what was measured on each number of ranks. A point is the measurement
of one strategy, scaling and number of ranks. Kinds of work are named as the fields of StepParts: data, compute,
optimizer, communication, straggler and other. A strategy is a way to divide a training over ranks, such as ddp or fsdp.
"""

from collections.abc import Sequence

import msgspec

from launcher.apps.scaling.findings import DP, KINDS, MASTER, MP, WEAK, ScaledRun, StepParts
from launcher.apps.scaling.measured import ratios

_TOLD = 0.005  # of a step: what rounds to less is not worth a word
_UNSTEADY = 0.3  # of a rate, between the slowest line and the fastest
_LESS = {
    "data": "more waiting for data",
    "compute": "slower forward and backward passes",
    "optimizer": "the optimizer, of which each rank does more than its part",
    "communication": "communication in the open",
    "straggler": "waiting for the slower rank",
    "other": "the host: logging, Python, torch itself",
}
_ADVICE = {
    "data": "more processes that prepare data (workers), or a faster disk under it",
    "compute": (
        "a bigger batch, where each rank's share has become too small to be computed as quickly; else ranks are in "
        "each other's way: cores, caches, the memory's bandwidth"
    ),
    "optimizer": "strategy zero1, zero2 or fsdp: each rank updates its part of the parameters alone",
    "communication": (
        "fewer bytes for each sample: a bigger batch, or accumulate; bf16; on several nodes hsdp; or a faster link"
    ),
    "straggler": "a look at the slower rank's node (launch top), or samples of more even length",
    "other": "a larger log_every, and a look at callbacks",
}
_NOT_ALONE = "strategy ddp, in whose all-reduce no rank has more to send than another, however many there are"
# What that helps against: messages of dp are copies in its passes.
_OF_BASELINES = {
    DP: ("compute", "communication"),
    MASTER: ("communication", "straggler", "optimizer"),
    MP: ("compute", "communication", "optimizer"),
}
_AT_ONCE = "a pipeline, mesh pp=2: its stages work at the same time, each on another part of the batch"
_OWN_CORES = "a core, or more, for each rank: see resources.cpus_per_rank"


def accounted(points: Sequence[ScaledRun]) -> list[ScaledRun]:
    """Return the points with speed-up, efficiency, lost time and a sentence on them filled in, where they are known:
    each compared with the point of the same strategy and scaling that has the fewest ranks.
    """
    return [_beside(point, _base(point, points)) for point in points]


def _base(point: ScaledRun, points: Sequence[ScaledRun]) -> ScaledRun | None:
    """Return the point among `points` with the strategy and scaling of `point` and the fewest ranks, perhaps `point`
    itself; points for which nothing could be measured do not count. Return None if none is left.
    """
    group = [one for one in points if (one.strategy, one.scaling) == (point.strategy, point.scaling) and one.rates]
    return min(group, key=lambda one: one.ranks, default=None)


def _beside(point: ScaledRun, base: ScaledRun | None) -> ScaledRun:
    """Return the point with speed-up, efficiency and lost time against `base`, and a sentence on them.

    If `base` is None or has as many ranks, these numbers are left out, and the sentence tells where a step's time goes;
    if nothing was measured, it tells why.
    """
    if not point.rates:
        return msgspec.structs.replace(point, says=f"{_ranks(point)}: {point.why}")
    if base is None or base.ranks == point.ranks:
        return msgspec.structs.replace(point, says=_alone(point))
    speedup = ratios(point.rates, base.rates)
    found = msgspec.structs.replace(
        point, base=base.ranks, speedup=speedup, efficiency=speedup.usual * base.ranks / point.ranks,
        lost=lost_over(point, base),
    )  # fmt: skip
    return msgspec.structs.replace(found, says=_sentence(found))


def lost_over(point: ScaledRun, base: ScaledRun) -> dict[str, float]:
    """Return {kind of work: the share of a step that it lost}.

    Lost is what exceeds an even division of the base's time; negative means faster. The shares add up to 1 minus the
    efficiency. The result is empty if steps were not traced, or their samples are not known.
    """
    if point.parts is None or base.parts is None or not point.step_s or not base.step_s:
        return {}
    if not point.step_samples or not base.step_samples:
        return {}
    even = (point.step_samples / base.step_samples) * (base.ranks / point.ranks)
    return {
        kind: (_seconds_of(point.parts, kind) - even * _seconds_of(base.parts, kind)) / point.step_s for kind in KINDS
    }


def _seconds_of(parts: StepParts, kind: str) -> float:
    """Return the seconds of a step that this kind of work takes."""
    seconds: float = getattr(parts, kind)
    return seconds


def _sentence(point: ScaledRun) -> str:
    """Return the sentence of the report on a point: its speed-up over its base, the point with the fewest ranks, and
    its largest losses by kind of work.
    """
    speedup = point.speedup
    assert speedup is not None  # noqa: S101 - it has just been set
    beside = "one" if point.base == 1 else f"{point.base}"
    head = f"{_ranks(point)} are {speedup.usual:.2f} times as fast as {beside}"
    head += f" ({speedup.low:.2f} to {speedup.high:.2f})"
    if point.scaling == WEAK:
        head += " with as many times the batch" if point.base == 1 else " with a batch in proportion"
    told = [_share(point, kind) for kind in _by_size(point) if point.lost[kind] >= _TOLD]
    gained = -sum(share for share in point.lost.values() if share <= -_TOLD)
    if gained >= _TOLD:
        told.append(f"{gained:.0%} is won back by parts that got quicker")
    rest = f": {', '.join(told)}" if told else ""
    return f"{head}{rest}" + (f" ({point.crowded})" if point.crowded else "")


def _by_size(point: ScaledRun) -> list[str]:
    """Return the kinds of work that lost time, the largest loss first."""
    return sorted(point.lost, key=lambda kind: -point.lost[kind])


def _share(point: ScaledRun, kind: str) -> str:
    """Return text such as `30% is waiting for the slower rank`: the share of a step that this kind of work lost."""
    more = ""
    if kind == "communication" and point.parts is not None:
        more = f" ({point.parts.bytes / 1e6:.3g} MB in {point.parts.messages:.3g} messages a step)"
    return f"{point.lost[kind]:.0%} is {_LESS[kind]}{more}"


def _alone(point: ScaledRun) -> str:
    """Return the sentence about a base, the point with which others are compared: what its step's time was spent on."""
    if point.parts is None or not point.step_s:
        return f"{_ranks(point)}: what all others are compared with"
    shares = {kind: _seconds_of(point.parts, kind) / point.step_s for kind in KINDS}
    some = sorted((kind for kind in KINDS if shares[kind] >= _TOLD), key=lambda kind: -shares[kind])
    told = [f"{shares[kind]:.0%} {KINDS[kind]}" for kind in some]
    return f"{_ranks(point)}: of a step of {point.step_s:.3g} s " + ", ".join(told[:3])


def _ranks(point: ScaledRun) -> str:
    """Return the number of ranks with its noun: `1 rank` or `4 ranks`."""
    return f"{point.ranks} rank{'s'[: point.ranks != 1]}"


def unsteady(points: Sequence[ScaledRun]) -> list[str]:
    """Return a list of one warning, which names the points within which the speed varied by more than 30 % of its
    median, because that makes all results uncertain; an empty list if there are none.
    """
    some = {
        f"{point.strategy}, {point.scaling}, {_ranks(point)} ({rate.low:.4g} to {rate.high:.4g})"
        for point in points
        if (rate := point.samples_per_s) is not None and rate.high - rate.low > _UNSTEADY * rate.usual
    }
    if not some:
        return []
    why = (
        "unsure: something else uses the machine, for samples/s differ much from line to line of one training; more "
        "--rounds and --steps, or a quiet hour, tell more"
    )
    return [f"{why}: {'; '.join(sorted(some))}"]


def advice(points: Sequence[ScaledRun]) -> list[str]:
    """Return, for each strategy and scaling, a sentence on what would reduce its largest loss of time on the largest
    number of ranks. Return none for one whose lost time is not known or is small.
    """
    last: dict[tuple[str, str], ScaledRun] = {}
    for point in points:
        known = last.get((point.strategy, point.scaling))
        if point.lost and (known is None or known.ranks < point.ranks):
            last[point.strategy, point.scaling] = point
    return [line for point in last.values() if (line := _advice(point))]


def _advice(point: ScaledRun) -> str:
    """Return a sentence on what would reduce the largest loss at this number of ranks, or "" if even that is less than
    1 % of a step, or nothing was measured to compare with.
    """
    kind = _by_size(point)[0]
    share = point.lost[kind]
    if point.speedup is None or share < 2 * _TOLD:
        return ""
    without = point.speedup.usual / max(1e-9, 1 - share)
    what = _OWN_CORES if point.crowded and kind in ("compute", "straggler") else _ADVICE[kind]
    if kind in _OF_BASELINES.get(point.strategy, ()):
        what = _AT_ONCE if point.strategy == MP else _NOT_ALONE
    return (
        f"{point.strategy}, {point.scaling}, {_ranks(point)}: {share:.0%} of a step is {_LESS[kind]}; without it "
        f"{without:.2f} times as fast instead of {point.speedup.usual:.2f}. What helps: {what}"
    )
