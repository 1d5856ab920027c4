"""Measure the network link to another node's agent, for the coordinator: the rate in each direction, and the round
trip.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, Any, assert_never

import msgspec

from launcher.copies.bulk import PIECE_BYTES, receive
from launcher.copies.link import ReplicaLink, linked
from launcher.copies.protocol import LINE_BYTES, Fine, FromServer, Go
from launcher.health.links import MEASURE_S
from launcher.wire.frames import Wire, WireError, WireServer
from launcher.wire.messages import LinkSeen, ReplicaAddress

_FEW_BYTES, _MOST_BYTES = 1 << 18, 1 << 22
_TELLING_S, _WAY_S = 0.05, 1.0
_MOST_LETTERS = 200
_PINGS = 3
_THREADS, _MOST_PEERS = 4, 16

Size = Annotated[int, msgspec.Meta(ge=1, le=_MOST_BYTES)]


class Ping(msgspec.Struct, frozen=True, tag="ping", tag_field="t"):
    """A request that is answered by Fine, to measure the round trip."""


class Give(msgspec.Struct, frozen=True, tag="give", tag_field="t"):
    """A request to the peer to send `size` arbitrary bytes.

    The peer answers with Offer (it has so many bytes), and sends them once the requester has sent Go.
    """

    size: Size


class Take(msgspec.Struct, frozen=True, tag="take", tag_field="t"):
    """An announcement of `size` bytes to the peer, which answers with Go, after which they are sent, and with Fine once
    all have arrived.
    """

    size: Size


_to_server: msgspec.json.Decoder[Ping | Give | Take | Go] = msgspec.json.Decoder(Ping | Give | Take | Go)


class Prober:
    """A node's part in measuring links: it listens on its own address, and `measure` connects to another node's."""

    def __init__(self, node: int, address: str, key: bytes) -> None:
        self.port = 0
        self._node, self._address, self._key = node, address, key
        self._pool = ThreadPoolExecutor(_THREADS, "links")
        self._listener = WireServer(key, _to_server, self._serve, _MOST_PEERS, LINE_BYTES)
        self._piece = memoryview(os.urandom(PIECE_BYTES))  # what can be pressed together would seem faster

    async def open(self) -> None:
        """Listen for other nodes, and set `port` to the port that this uses."""
        self.port = await self._listener.start(self._address)

    async def close(self) -> None:
        """Stop listening for other nodes and close their connections, which ends the measurements that they make."""
        await self._listener.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def measure(self, number: int, peer: ReplicaAddress) -> LinkSeen:
        """Measure the link to the peer and return the rate of the slower direction and the round trip, or the problem;
        `number` is that of the coordinator's request.
        """
        try:
            async with asyncio.timeout(MEASURE_S), linked(peer, self._address, self._key, self._pool) as link:
                trip_s = min([await _timed(self._ping(link)) for _ in range(_PINGS)])
                rate, through = await _rate_of(partial(self._fetch, link))
                if through:
                    rate = min(rate, (await _rate_of(partial(self._send, link)))[0])
        except TimeoutError:
            return LinkSeen(self._node, number, problem="nothing came of it in time")
        except (WireError, OSError) as error:
            return LinkSeen(self._node, number, problem=str(error)[:_MOST_LETTERS])
        return LinkSeen(self._node, number, rate, trip_s)

    async def _ping(self, link: ReplicaLink) -> None:
        """Send a Ping to the peer and return when it has answered."""
        await link.send(Ping())
        await link.expect(Fine)

    async def _fetch(self, link: ReplicaLink, size: int) -> None:
        """Ask the peer for `size` bytes, receive all of them and drop them."""
        await link.take(Give(size), lambda offered: offered == size, _drop)

    async def _send(self, link: ReplicaLink, size: int) -> None:
        """Send `size` random bytes to the peer, and return when it has confirmed that all have arrived."""
        await link.send(Take(size))
        await link.expect(Go)
        await link.in_thread(partial(self._give, size))
        await link.expect(Fine)

    def _give(self, size: int, peer: socket.socket) -> None:
        """Send `size` arbitrary bytes to the peer's socket."""
        for sent in range(0, size, PIECE_BYTES):
            peer.sendall(self._piece[: size - sent])

    async def _serve(self, wire: Wire[Ping | Give | Take | Go, FromServer]) -> None:
        """Answer the requests of one peer until it closes the connection: a Ping with Fine, a Give by sending so many
        bytes, a Take by receiving so many.

        Go belongs inside a transfer that this node has offered; raise WireError if it comes as a request.
        """
        link = ReplicaLink(wire, self._pool)
        while (request := await wire.receive()) is not None:
            match request:
                case Ping():
                    await link.send(Fine())
                case Give(size=size):
                    await link.give(size, partial(self._give, size))
                case Take(size=size):
                    await link.receive(partial(_drop, size=size))
                    await link.send(Fine())
                case Go():
                    raise WireError("nothing was offered")
                case _:
                    assert_never(request)


async def _rate_of(way: Callable[[int], Coroutine[Any, Any, None]]) -> tuple[float, bool]:
    """Return (the rate of a transfer in bytes per second, whether the last transfer completed).

    `way` transfers a number of bytes. It is called with four times as many until they take 0.05 seconds, because
    buffers take the first few at any speed, or until 4 MiB. If a transfer takes longer than a second, the rate is an
    upper bound and the flag False. Raise TimeoutError if even the first does.
    """
    size = _FEW_BYTES
    while True:
        try:
            took_s = await asyncio.wait_for(_timed(way(size)), _WAY_S)
        except TimeoutError:
            if size == _FEW_BYTES:
                raise
            return size / _WAY_S, False
        if took_s >= _TELLING_S or size >= _MOST_BYTES:
            return size / took_s, True
        size *= 4


async def _timed(work: Coroutine[Any, Any, None]) -> float:
    """Await the work and return how many seconds it took."""
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


def _drop(peer: socket.socket, size: int) -> None:
    """Receive `size` bytes and drop them."""
    for _ in receive(peer, size):
        pass
