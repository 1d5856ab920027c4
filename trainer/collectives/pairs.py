"""Measure the network between two nodes at a time: through torch, and over a plain connection."""

import hmac
import os
import secrets
import socket
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import torch
import torch.distributed as dist

from trainer.collectives.measuring import seconds
from trainer.world import World

_SIZE = 2**22
_TIMES, _WARM = 5, 1
_LIMIT_S = 60.0
_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class Pair:
    """The measured path between the first ranks of nodes `one` and `other`.

    Messages go there and back, and rates are of one direction. `round_trip_s` is of a message of one number;
    `plain_bytes_per_s` is without torch, 0 if no connection could be made.
    """

    one: int  # number of the node
    other: int
    size_bytes: int
    bytes_per_s: float
    round_trip_s: float  # of a message of one number
    plain_bytes_per_s: float  # by a connection of its own, without torch; 0 where there was none


def pairs(world: World, nodes: int, per_node: int, group: dist.ProcessGroup) -> Iterator[Pair]:
    """Yield the measured rates and round-trip time between each two nodes, from first rank to first rank.

    All ranks call it and exhaust it together, and each gets all results. There are `nodes` nodes with `per_node` ranks
    each; `group` is a gloo group of all ranks.
    """
    for one, other in combinations(range(nodes), 2):
        ends = (one * per_node, other * per_node)
        mine = _measured(world, ends, group)
        measured: list[tuple[float, float, float] | None] = [mine]
        dist.broadcast_object_list(measured, src=ends[0], group=group)
        if measured[0] is not None:
            yield Pair(one, other, _SIZE, *measured[0])


def _measured(world: World, ends: tuple[int, int], group: dist.ProcessGroup) -> tuple[float, float, float] | None:
    """Measure between the two ranks `ends`: torch's rate, the seconds of a small round trip, a plain socket's rate.

    All ranks call it and those not in `ends` get None. Rates are in bytes per second, 0 for a socket that cannot
    connect.
    """
    where: list[tuple[str, int, bytes] | None] = [None]
    listener = None
    if world.rank == ends[0]:
        address = own_address()
        listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
        listener.settimeout(_LIMIT_S)
        where = [(address, listener.getsockname()[1], secrets.token_bytes(_TOKEN_BYTES))]
    dist.broadcast_object_list(where, src=ends[0], group=group)
    if world.rank not in ends or where[0] is None:
        return None
    large, small = (torch.ones(count, device=world.device) for count in (_SIZE // 4, 1))
    long_s, short_s = _round_trip_s(large, world, ends), _round_trip_s(small, world, ends)
    plain_s = _plain_seconds(listener, where[0])
    return 2 * _SIZE / long_s, short_s, 2 * _SIZE / plain_s if plain_s else 0.0


def _round_trip_s(data: torch.Tensor, world: World, ends: tuple[int, int]) -> float:
    """Return the seconds in which `data` goes from the first rank of `ends` to the second and back.

    It is the median of several round trips. Only these two ranks call it.
    """

    def call() -> None:
        """Send the data there and receive it back, or the reverse on the second rank."""
        if world.rank == ends[0]:
            dist.send(data, ends[1])
            dist.recv(data, ends[1])
        else:
            dist.recv(data, ends[0])
            dist.send(data, ends[0])

    took = [seconds(call, world.device) for _ in range(_WARM + _TIMES)]
    return statistics.median(took[_WARM:])


def own_address() -> str:
    """Return this machine's address on the network interface that reaches MASTER_ADDR, the host of rank 0."""
    first = os.environ["MASTER_ADDR"]
    family, _, _, _, place = socket.getaddrinfo(first, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as asked:
        asked.connect(place)  # nothing is sent
        return str(asked.getsockname()[0])


def _plain_seconds(listener: socket.socket | None, where: tuple[str, int, bytes]) -> float:
    """Return the seconds of a round trip over a plain socket, or 0 if there is no connection within a minute.

    The side without a `listener` connects; `where` is the address, the port and the token that it has to send.
    """
    address, port, token = where
    try:
        if listener is None:
            with socket.create_connection((address, port), _LIMIT_S) as line:
                line.sendall(token)
                return _echoed(line, first=False)
        with listener:
            line, _ = listener.accept()
            with line:
                line.settimeout(_LIMIT_S)
                known = hmac.compare_digest(_receive(line, _TOKEN_BYTES), token)
                return _echoed(line, first=True) if known else 0.0
    except OSError:
        return 0.0


def _echoed(line: socket.socket, *, first: bool) -> float:
    """Return the median seconds of a round trip over this socket; the side with `first` sends first.

    Raises OSError if the connection ends or the other side does not answer.
    """
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data, took = bytes(_SIZE), []
    for _ in range(_WARM + _TIMES):
        began = time.perf_counter()
        if first:
            line.sendall(data)
            _receive(line, _SIZE)
        else:
            _receive(line, _SIZE)
            line.sendall(data)
        took.append(time.perf_counter() - began)
    return statistics.median(took[_WARM:])


def _receive(line: socket.socket, size: int) -> bytes:
    """Return exactly `size` bytes from the socket. Raises ConnectionError if it is closed."""
    got = bytearray(size)
    view = memoryview(got)
    while view:
        count = line.recv_into(view)
        if not count:
            raise ConnectionError("it was closed")
        view = view[count:]
    return bytes(got)
