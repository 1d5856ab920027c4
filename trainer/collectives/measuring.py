"""Time each collective operation on the ranks that take part, and check its result."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trainer.collectives.operations import OPERATIONS, Place, Prepared
from trainer.world import World

_WARM = 2
_BYTES = 4  # of a float32
_LACKING = ("not support", "not implemented", "unsupported", "does not have")


@dataclass(frozen=True, slots=True)
class Timed:
    """The result of one operation with messages of one size: the time of each repetition on the slowest rank.

    `ranks` counts those that took part, `wrong` the wrong numbers over all ranks and repetitions. `lacking` is why the
    backend cannot do the operation, or "".
    """

    operation: str
    ranks: int  # how many took part
    size_bytes: int
    times_s: tuple[float, ...]
    wrong: int = 0  # numbers that were not as they must be, over all ranks and repetitions
    lacking: str = ""  # why this backend cannot do it


def members(many: int, nodes: int, per_node: int) -> tuple[int, ...]:
    """Return the numbers of `many` ranks to take part, out of `nodes` nodes with `per_node` ranks each.

    They are equally many of each node if `nodes` divides `many`, else the first ones.
    """
    if many % nodes:
        return tuple(range(many))
    return tuple(node * per_node + local for node in range(nodes) for local in range(many // nodes))


def repetitions(size_bytes: int) -> int:
    """Return how many times an operation on `size_bytes` is timed: 20, or fewer (10 or 5) for a large message."""
    return 20 if size_bytes <= 2**16 else 10 if size_bytes <= 2**22 else 5


def rounded(size_bytes: int, many: int) -> int:
    """Return how many float32 numbers have about `size_bytes`: a multiple of `many` ranks, at least one for each."""
    return max(1, size_bytes // _BYTES // many) * many


def timed(
    names: Sequence[str], sizes: Sequence[int], ranks: tuple[int, ...], group: dist.ProcessGroup, world: World
) -> Iterator[Timed]:
    """Yield the result of each operation in `names` with each size in bytes; each of `ranks` calls it.

    `group` is the process group of these ranks. A barrier has no size. For an operation that the backend lacks, only
    one result is yielded, with the reason (`lacking`).
    """
    for name in names:
        for size in sizes if name != "barrier" else (0,):
            count = rounded(size, len(ranks))
            place = Place(group, ranks.index(world.rank), ranks, count, world.device)
            found = _timed(name, OPERATIONS[name](place), place, 0 if name == "barrier" else count * _BYTES)
            yield found
            if found.lacking:
                break


def _timed(name: str, one: Prepared, place: Place, size_bytes: int) -> Timed:
    """Run the operation `name` repeatedly; return its times and wrong results, or why the backend lacks it.

    All ranks that take part call it: `one` is the operation with its buffers on this rank, and `place` says which rank
    this is. `size_bytes` is only noted in the result.
    """
    try:
        for _ in range(_WARM):
            one.fill()
            one.call()
    except (RuntimeError, NotImplementedError) as error:
        message = " ".join(str(error).split())
        if not any(phrase in message.lower() for phrase in _LACKING):
            raise
        return Timed(name, place.many, size_bytes, (), lacking=message[:200])
    took, missed = list[float](), 0
    for _ in range(repetitions(size_bytes)):
        took.append(_once(one, place))
        missed += one.wrong()  # of each: a rare fault is in one of them, and not in the last
    wrong = torch.tensor([missed], device=place.device)
    slowest = torch.tensor(took, dtype=torch.float64, device=place.device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=place.group)
    every = [torch.empty_like(wrong) for _ in place.ranks]
    dist.all_gather(every, wrong, group=place.group)
    return Timed(name, place.many, size_bytes, tuple(slowest.tolist()), sum(int(part) for part in every))


def _once(one: Prepared, place: Place) -> float:
    """Return the seconds of one run of the operation, which all ranks begin together."""
    one.fill()
    dist.barrier(group=place.group)
    return seconds(one.call, place.device)


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return how many seconds the call takes, including its work on the GPU."""
    _finish(device)
    began = time.perf_counter()
    call()
    _finish(device)
    return time.perf_counter() - began


def _finish(device: torch.device) -> None:
    """Wait for the device's queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def copied(size_bytes: int, device: torch.device) -> float:
    """Return the speed of a copy in this rank's memory in bytes per second, an upper bound for messages."""
    source = torch.ones(max(1, size_bytes // _BYTES), device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    took = sorted(seconds(lambda: target.copy_(source), device) for _ in range(repetitions(size_bytes)))
    return source.numel() * _BYTES / max(took[len(took) // 2], 1e-9)
