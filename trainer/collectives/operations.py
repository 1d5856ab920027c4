"""Prepare operations of torch.distributed on one rank, `at` its place in the group: buffers, call and expected result.

The results are sums of small whole numbers, which are exact. A function that prepares an operation returns it with its
buffers and the check of its result (Prepared); the caller runs it. A Place has the process group, this rank's number
in it, and how many values the operation is about.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

_PERIOD = 7


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one rank in a measurement of collectives.

    `group` is the process group of the ranks that take part, `index` this rank's number among these, `ranks` their
    numbers in the world, and `count` the size of a message: the float32 values of a whole buffer, which operations such
    as scatter divide into equal parts, one for each rank.
    """

    group: dist.ProcessGroup
    index: int  # among the ranks that take part
    ranks: tuple[int, ...]  # by their numbers in the whole world
    count: int  # float32 values in a whole buffer; a multiple of the number of ranks that take part
    device: torch.device

    @property
    def many(self) -> int:
        """The number of ranks that take part."""
        return len(self.ranks)

    def of(self, index: int, count: int | None = None) -> Tensor:
        """Return the numbers that rank `index` contributes: `count` of them, or with None the measurement's `count`."""
        return _pattern(count or self.count, self.device) + (index + 1)

    def parts_of(self, index: int) -> list[Tensor]:
        """Return the numbers that rank `index` contributes, in equal parts for each rank."""
        return list(self.of(index).chunk(self.many))

    def empty(self, count: int) -> Tensor:
        """Return a buffer of `count` numbers, filled with -1, which no operation results in."""
        return torch.full((count,), -1.0, device=self.device)

    @property
    def total(self) -> Tensor:
        """The expected result of an all-reduce: the sum over all ranks, computed without communication."""
        return _pattern(self.count, self.device) * self.many + self.many * (self.many + 1) / 2

    @property
    def each(self) -> int:
        """The number of values in one part.

        It counts for operations that divide a buffer of `count` values into a part for each rank.
        """
        return self.count // self.many


@dataclass(frozen=True, slots=True)
class Prepared:
    """An operation with its buffers.

    `fill` sets their initial values, `call` runs the operation, and `wrong` counts wrong numbers in the result.
    """

    fill: Callable[[], None]
    call: Callable[[], object]
    wrong: Callable[[], int]


def _pattern(count: int, device: torch.device) -> Tensor:
    """Return `count` floats that count from 0 to 6 over and over, so that sums of them are exact."""
    return (torch.arange(count, device=device) % _PERIOD).float()


def differing(found: Tensor, expected: Tensor) -> int:
    """Return how many numbers differ between the two tensors."""
    return int((found != expected).sum())


def broadcast(at: Place) -> Prepared:
    """Prepare a broadcast of the first rank's numbers, `at.count` float32 values, to all ranks of the group."""
    data, right = at.empty(at.count), at.of(0)
    first = at.ranks[0]

    def fill() -> None:
        """Set the buffer's initial values: the data on the first rank, -1 elsewhere."""
        data.copy_(right) if at.index == 0 else data.fill_(-1.0)

    return Prepared(fill, lambda: dist.broadcast(data, src=first, group=at.group), lambda: differing(data, right))


def scatter(at: Place) -> Prepared:
    """Prepare a scatter: the first rank sends each rank its part."""
    mine, parts = at.empty(at.each), at.parts_of(0)
    given = parts if at.index == 0 else None
    return Prepared(
        lambda: _clear(mine),
        lambda: dist.scatter(mine, given, src=at.ranks[0], group=at.group),
        lambda: differing(mine, parts[at.index]),
    )


def gather(at: Place) -> Prepared:
    """Prepare a gather: the first rank collects `at.each` numbers from each rank."""
    mine = at.of(at.index, at.each)
    got = [at.empty(at.each) for _ in at.ranks] if at.index == 0 else None
    return Prepared(
        lambda: _clear(*(got or ())),
        lambda: dist.gather(mine, got, dst=at.ranks[0], group=at.group),
        lambda: sum(differing(one, at.of(index, at.each)) for index, one in enumerate(got or ())),
    )


def reduce(at: Place) -> Prepared:
    """Prepare a reduce: the first rank gets the sum over all ranks."""
    data, own, total = at.empty(at.count), at.of(at.index), at.total
    return Prepared(
        lambda: _put(data, own),
        lambda: dist.reduce(data, dst=at.ranks[0], group=at.group),
        lambda: differing(data, total) if at.index == 0 else 0,
    )


def all_reduce(at: Place) -> Prepared:
    """Prepare an all-reduce: every rank gets the sum over all ranks."""
    data, own, total = at.empty(at.count), at.of(at.index), at.total
    return Prepared(
        lambda: _put(data, own), lambda: dist.all_reduce(data, group=at.group), lambda: differing(data, total)
    )


def all_gather(at: Place) -> Prepared:
    """Prepare an all-gather: every rank gets the parts of all ranks, one after the other."""
    mine, got = at.of(at.index, at.each), at.empty(at.count)
    right = torch.cat([at.of(index, at.each) for index in range(at.many)])
    return Prepared(
        lambda: _clear(got),
        lambda: dist.all_gather_into_tensor(got, mine, group=at.group),
        lambda: differing(got, right),
    )


def reduce_scatter(at: Place) -> Prepared:
    """Prepare a reduce-scatter: each rank gets its part of the sum."""
    mine, own = at.empty(at.each), at.of(at.index)
    part = at.total.chunk(at.many)[at.index]
    return Prepared(
        lambda: _clear(mine),
        lambda: dist.reduce_scatter_tensor(mine, own, group=at.group),
        lambda: differing(mine, part),
    )


def all_to_all(at: Place) -> Prepared:
    """Prepare an all-to-all: each rank sends a part to each rank."""
    own, got = at.of(at.index), at.empty(at.count)
    right = torch.cat([at.parts_of(index)[at.index] for index in range(at.many)])
    return Prepared(
        lambda: _clear(got),
        lambda: dist.all_to_all_single(got, own, group=at.group),
        lambda: differing(got, right),
    )


def send_recv(at: Place) -> Prepared:
    """Prepare an exchange in a ring: each rank sends to the next one and receives from the previous one.

    `at` is this rank's place in the ring. The Prepared that is returned has the buffers, the call that runs the
    exchange, and the check of what was received.
    """
    own, got = at.of(at.index), at.empty(at.count)
    after, before = (at.index + 1) % at.many, (at.index - 1) % at.many
    right = at.of(before)

    def call() -> None:
        """Send and receive at the same time, and wait for both."""
        sending = dist.P2POp(dist.isend, own, at.ranks[after], at.group)
        taking = dist.P2POp(dist.irecv, got, at.ranks[before], at.group)
        for work in dist.batch_isend_irecv([sending, taking]):
            work.wait()

    return Prepared(lambda: _clear(got), call, lambda: differing(got, right))


def barrier(at: Place) -> Prepared:
    """Prepare a barrier, in which ranks wait for all others."""
    return Prepared(lambda: None, lambda: dist.barrier(group=at.group), lambda: 0)


def _clear(*tensors: Tensor) -> None:
    """Fill the tensors with -1, which no operation results in."""
    for tensor in tensors:
        tensor.fill_(-1.0)


def _put(data: Tensor, values: Tensor) -> None:
    """Copy `values` into `data`."""
    data.copy_(values)


OPERATIONS: dict[str, Callable[[Place], Prepared]] = {
    "broadcast": broadcast,
    "scatter": scatter,
    "gather": gather,
    "reduce": reduce,
    "all-gather": all_gather,
    "reduce-scatter": reduce_scatter,
    "all-reduce": all_reduce,
    "send/recv": send_recv,
    "all-to-all": all_to_all,
    "barrier": barrier,
}
