"""Read from torch's profiler traces of all ranks how the time of some steps was spent; pure functions.

A collective (all-reduce, all-gather, ...) runs in the background. It is exposed while its rank computes nothing, and
hidden otherwise. It ends on all ranks at about the same moment, so the rank that entered it last sees the shortest
time, which is the transfer. Any longer time on other ranks is waiting for the slower one. No clocks are compared.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

LAP = "lap "  # begins the name of a mark at the end of a phase
_COMPUTES = ("copy", "forward", "backward")
_OF_CPU = "gloo:"
_OF_GPU = "nccl"
# Ranks may be waited for inside of these.
_NEVER_COMPUTES = ("c10d", "_c10d", "autograd::engine::", "torch::autograd::")
# What DDP and FSDP copy for messages, on a CPU: it counts as communication in the open.
_PACKS = ("torch::distributed::reducer::", "torch.distributed.ddp.reducer::", "fsdp::")
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_LEAST_GAP_S = 100e-6  # of a CPU, between two operators: Python and torch need so long themselves
_SIZES = {
    "double": 8, "long": 8, "long int": 8, "float": 4, "int": 4, "c10::half": 2, "half": 2, "c10::bfloat16": 2,
    "bfloat16": 2,
}  # fmt: skip

_LABELS = {
    "data": "waiting for data",
    "compute": "forward and backward",
    "optimizer": "optimizer",
    "communication": "communication in the open",
    "straggler": "waiting for slower ranks",
    "other": "other",
}
_KINDS = tuple(_LABELS)

Span = tuple[float, float]  # seconds, from and to


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective as one rank saw it: its operator's name, and the seconds from its begin to its end.

    `sent` is the bytes that the rank gave, `open_s` those of its `seconds` in which the rank computed nothing, and
    `phase` the phase of the step to which it counts: on a GPU the one in which it was launched, on a CPU the one in
    which the rank waited for it.
    """

    name: str  # of torch's operator
    sent: int  # bytes that the rank gave
    seconds: float
    open_s: float  # those of `seconds` in which the rank computed nothing
    phase: str  # in which it was launched (on a GPU), or waited for (on a CPU)


@dataclass(frozen=True, slots=True)
class Traced:
    """How the time of one rank's traced steps was spent: times in seconds, and the collectives in these steps.

    A step has phases, such as `data` or `optimizer`.
    """

    seconds: float  # in all
    phases: dict[str, float]  # by phase; with its packing, and the time in which the rank only waited for collectives
    collectives: list[Collective]
    packing: dict[str, float] = field(default_factory=dict)  # by phase: copying tensors into and out of messages


def traced(events: Sequence[Mapping[str, Any]]) -> Traced:
    """Return how the time between the first and last phase mark of one rank's trace was spent.

    `events` are the `traceEvents` in the JSON file of torch's profiler. A phase mark is an event that the trainer adds
    at the end of each phase of a step, such as `data`. With fewer than two marks all times are 0.
    """
    whole = [one for one in events if one.get("ph") == "X" and "dur" in one]
    laps = sorted((_seconds(one["ts"]), one["name"][len(LAP) :]) for one in whole if one["name"].startswith(LAP))
    if len(laps) < 2:
        return Traced(0.0, {}, [])
    kernels = [one for one in whole if one.get("cat") in _ON_GPU]
    return _on_gpu(whole, kernels, laps) if kernels else _on_cpu(whole, laps)


def _on_cpu(whole: Sequence[Mapping[str, Any]], laps: Sequence[tuple[float, str]]) -> Traced:
    """Return how the time between the first and the last phase mark of a CPU's trace was spent.

    `whole` are its events with a duration, and `laps` its phase marks: when a phase ended, and its name.
    """
    calls = [one for one in whole if one["name"].startswith(_OF_CPU)]
    waits = united(_span(one) for one in whole if "wait_tensor" in one["name"])
    works = without(united(_span(one) for one in whole if one.get("cat") == "cpu_op" and _computes(one["name"])), waits)
    phases: defaultdict[str, float] = defaultdict(float)
    for (begin, _), (end, phase) in pairwise(laps):
        phases[phase] += end - begin
    found = [
        _collective(call, spans, _phase_at(laps, _middle(spans, call))) for call, spans in _exposed(calls, works, laps)
    ]
    packing: defaultdict[str, float] = defaultdict(float)
    for begin, end in united(_span(one) for one in whole if one["name"].startswith(_PACKS)):
        if laps[0][0] <= begin and end <= laps[-1][0]:
            packing[_phase_at(laps, begin)] += end - begin
    return Traced(laps[-1][0] - laps[0][0], dict(phases), found, dict(packing))


def _on_gpu(
    whole: Sequence[Mapping[str, Any]], kernels: Sequence[Mapping[str, Any]], laps: Sequence[tuple[float, str]]
) -> Traced:
    """Return the times of a trace of a GPU: each phase has the GPU time of the work launched in it.

    `whole` are its events with a duration, `kernels` those of the GPU, and `laps` its phase marks: when a phase ended,
    and its name. Time in which the GPU is idle goes to the phase `data`, up to the time that the rank waited for data;
    the rest is `other`.
    """
    asked = {
        _correlation(one): _seconds(one["ts"]) for one in whole if one.get("cat") in ("cuda_runtime", "cuda_driver")
    }
    first, last = laps[0][0], laps[-1][0]
    calls, works = list[Mapping[str, Any]](), list[Mapping[str, Any]]()
    for one in kernels:
        (calls if _OF_GPU in one["name"].lower() else works).append(one)
    spans = united(_span(one) for one in works)
    phases: defaultdict[str, float] = defaultdict(float)
    covered = first
    for one in sorted(works, key=lambda one: float(one["ts"])):
        begin, end = _span(one)
        at = asked.get(_correlation(one), begin)
        if first <= at <= last:
            phases[_phase_at(laps, at)] += max(0.0, end - max(begin, covered))
        covered = max(covered, end)
    found = list[Collective]()
    for call, shown in _exposed(calls, spans, laps, gap_s=0.0):
        phase = _phase_at(laps, asked.get(_correlation(call), _seconds(call["ts"])))
        found.append(_collective(call, shown, phase))
        phases[phase] += found[-1].open_s
    seconds = last - first
    idle = max(0.0, seconds - sum(phases.values()))
    waited = sum(end - begin for (begin, _), (end, phase) in pairwise(laps) if phase == "data")
    phases["data"] += min(idle, waited)
    phases["other"] += max(0.0, idle - waited)
    return Traced(seconds, dict(phases), found)


def _exposed(
    calls: Iterable[Mapping[str, Any]],
    works: Sequence[Span],
    laps: Sequence[tuple[float, str]],
    gap_s: float = _LEAST_GAP_S,
) -> list[tuple[Mapping[str, Any], list[Span]]]:
    """Return each collective within the traced steps, with the spans of it in which its rank computed nothing.

    `calls` are the trace's events of collectives. Time in which several collectives are exposed in this way counts for
    the first. `works` are the spans of computation; gaps up to `gap_s` seconds between them do not count. `laps` are
    the phase marks: when a phase ended, and its name; what is before the first or after the last of them is left out.
    """
    found, covered = [], laps[0][0]
    for call in sorted(calls, key=lambda one: float(one["ts"])):
        begin, end = _span(call)
        if end <= laps[0][0] or begin >= laps[-1][0]:
            continue
        rest = (max(begin, covered), min(end, laps[-1][0]))
        shown = without([rest], works) if rest[0] < rest[1] else []
        found.append((call, [(one, other) for one, other in shown if other - one > gap_s]))
        covered = max(covered, end)
    return found


def _collective(call: Mapping[str, Any], shown: Sequence[Span], phase: str) -> Collective:
    """Return the Collective that the trace event `call` shows, counted to the phase `phase` of the step.

    `shown` are the spans of the collective's time in which the rank computed nothing.
    """
    name = call["name"].removeprefix(_OF_CPU)
    begin, end = _span(call)
    return Collective(name, _sent(call.get("args", {})), end - begin, sum(b - a for a, b in shown), phase)


def _middle(spans: Sequence[Span], call: Mapping[str, Any]) -> float:
    """Return a time that shows in which phase of the step a collective was, from its trace event `call`.

    `spans` are the parts of the collective's time in which the rank computed nothing. The result is the middle of the
    longest of them or, if there is none, the middle of the trace event.
    """
    begin, end = max(spans, key=lambda one: one[1] - one[0], default=_span(call))
    return (begin + end) / 2


def _phase_at(laps: Sequence[tuple[float, str]], at: float) -> str:
    """Return the phase in which the time `at` is: that of the first lap that ends then or later.

    Each lap is its end and its phase; the first only marks the beginning. A time after all laps counts for the last
    one.
    """
    return next((phase for end, phase in laps[1:] if at <= end), laps[-1][1])


def _sent(args: Mapping[str, Any]) -> int:
    """Return the bytes that a collective sends; `args` are the arguments in its trace event."""
    if "In msg nelems" in args:  # NCCL's
        return int(args["In msg nelems"]) * _SIZES.get(str(args.get("dtype", "")).lower(), 1)
    total = 0
    for dims, kind in zip(args.get("Input Dims", ()), args.get("Input type", ()), strict=False):
        if all(isinstance(one, int) for one in dims):
            count = 1
            for one in dims:
                count *= one
            total += count * _SIZES.get(str(kind).lower(), 1)
    return total


def _computes(name: str) -> bool:
    """Return whether the operator called `name` computes, rather than waits or communicates.

    Autograd's nodes do not count, as hooks may wait in them; the operators inside them have events of their own.
    """
    compiled = name.startswith(("Torch-Compiled Region", "CompiledFunction"))
    return compiled or ("::" in name and not name.startswith(_NEVER_COMPUTES) and "wait_tensor" not in name)


def _correlation(event: Mapping[str, Any]) -> Any:
    """Return the number that connects a kernel with its launch, or None."""
    return event.get("args", {}).get("correlation")


def _span(event: Mapping[str, Any]) -> Span:
    """Return the begin and end of an event in seconds."""
    return _seconds(event["ts"]), _seconds(event["ts"]) + _seconds(event["dur"])


def _seconds(microseconds: Any) -> float:
    """Return microseconds as seconds."""
    return float(microseconds) / 1e6


def united(spans: Iterable[Span]) -> list[Span]:
    """Return the times that any of the spans covers, in order: spans that overlap or touch are joined to one."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def without(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return the parts of `spans` that are in none of `others`; both are in order and without overlaps."""
    found: list[Span] = []
    place = 0
    for begin, end in spans:
        while place < len(others) and others[place][1] <= begin:
            place += 1
        at, here = begin, place
        while here < len(others) and others[here][0] < end:
            if others[here][0] > at:
                found.append((at, others[here][0]))
            at = max(at, others[here][1])
            here += 1
        if at < end:
            found.append((at, end))
    return found


def merged(ranks: Sequence[Traced], steps: int) -> dict[str, float]:
    """Return means per step and rank by name, of so many traced steps of all ranks.

    `step` is the seconds of a step, `hidden` those of collectives behind computation, `bytes` and `messages` what was
    communicated. The rest are seconds by kind of work: `data`, `compute`, `optimizer`, `communication`, `straggler`
    (waiting for slower ranks) and `other`.
    """
    least = _least([one.collectives for one in ranks])
    sums: defaultdict[str, float] = defaultdict(float)
    for rank in ranks:
        sums["step"] += rank.seconds
        for phase, seconds in rank.phases.items():
            sums[_kind(phase)] += seconds
        for phase, seconds in rank.packing.items():
            sums[_kind(phase)] -= seconds
            sums["communication"] += seconds
        for number, one in _numbered(rank.collectives):
            transfer = min(one.open_s, least.get((one.name, one.sent, number), one.open_s))
            sums[_kind(one.phase)] -= one.open_s
            sums["communication"] += transfer
            sums["straggler"] += one.open_s - transfer
            sums["hidden"] += max(0.0, one.seconds - one.open_s)
            sums["bytes"] += one.sent * (len(ranks) if "gather" in one.name.lower() else 1)
            sums["messages"] += 1
    count = max(1, len(ranks) * steps)
    return {name: sums[name] / count for name in (*_KINDS, "step", "hidden", "bytes", "messages")}


def summary_of(found: Mapping[str, float]) -> str:
    """Return a summary such as `a step of 0.62 s: 71 % forward and backward, 14 % communication in the open`.

    `found` are the means per step and rank that `merged` returned, by name.
    """
    whole = found["step"] or 1.0
    shares = [f"{found[name] / whole:.0%} {_LABELS[name]}" for name in _KINDS if round(found[name] / whole, 2)]
    sent = f" ({found['bytes'] / 1e6:.3g} MB in {found['messages']:.3g} messages)" if found["messages"] else ""
    text = ", ".join(shares).replace(_LABELS["communication"], _LABELS["communication"] + sent)
    return f"a step of {found['step']:.3g} s, traced: {text}"


def _kind(phase: str) -> str:
    """Return the kind of work of a phase of a training step: `compute`, `data`, `optimizer` or `other`.

    The phases copy, forward and backward compute.
    """
    if phase in _COMPUTES:
        return "compute"
    return phase if phase in ("data", "optimizer") else "other"


def _numbered(collectives: Iterable[Collective]) -> Iterable[tuple[int, Collective]]:
    """Yield (n, collective) for each collective of one rank, in order; n counts the earlier ones that are like it.

    Alike are those of the same name and bytes. Name, bytes and n together identify the same collective on other ranks.
    """
    seen: defaultdict[tuple[str, int], int] = defaultdict(int)
    for one in collectives:
        yield seen[one.name, one.sent], one
        seen[one.name, one.sent] += 1


def _least(ranks: Sequence[Sequence[Collective]]) -> dict[tuple[str, int, int], float]:
    """Return the shortest time that any rank saw for each collective that all ranks saw.

    `ranks` has the collectives of each rank; the key is name, bytes and the count of equal ones before it.
    """
    times: defaultdict[tuple[str, int, int], list[float]] = defaultdict(list)
    for collectives in ranks:
        for number, one in _numbered(collectives):
            times[one.name, one.sent, number].append(one.seconds)
    return {key: min(some) for key, some in times.items() if len(some) == len(ranks)}
