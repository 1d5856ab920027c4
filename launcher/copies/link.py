"""A connection to or from a replica server: messages pass through the event loop, and file contents through a thread on
the same socket. A generation is one set of ranks that train together.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from launcher.copies.bulk import STALL_S
from launcher.copies.protocol import LINE_BYTES, FromServer, Go, Offer, Refusal
from launcher.wire.frames import Wire, WireError, dial
from launcher.wire.messages import ReplicaAddress, Start

T = TypeVar("T")
M = TypeVar("M", bound=msgspec.Struct)
_from_server: msgspec.json.Decoder[FromServer] = msgspec.json.Decoder(FromServer)


class Unwilling(WireError):
    """Raised when the peer understood the request and refused it; `gone` is True if it refused because the checkpoint
    no longer exists.
    """

    def __init__(self, refused: Refusal) -> None:
        super().__init__(refused.text)
        self.gone = refused.gone


class ReplicaLink:
    """A connection to another agent's server, dropped if the peer sends or accepts nothing for `stall_s` seconds.

    Methods raise WireError if the peer or the network fails. An OSError can only come from the caller's `work`.
    """

    def __init__(self, wire: Wire[Any, Any], pool: ThreadPoolExecutor, stall_s: float = STALL_S) -> None:
        self._wire, self._pool, self._stall_s = wire, pool, stall_s
        self.send, self.receive_message = wire.deliver, wire.receive

    async def expect(self, *kinds: type[M]) -> M:
        """Return the next message if it is of one of these types. Raise Unwilling for a refusal, and WireError for any
        other message or if the peer has closed the connection.
        """
        message = await self.receive_message()
        if isinstance(message, Refusal):
            raise Unwilling(message)
        if not isinstance(message, kinds):
            raise WireError("the peer left, or answered something else")
        return message

    async def take(
        self, ask: msgspec.Struct, check: Callable[[int], bool], work: Callable[[socket.socket, int], T]
    ) -> T:
        """Send a request for contents, receive them by `work` (socket, size) in a thread, and return its result; raise
        WireError if `check` returns False for the size that is offered.
        """
        await self.send(ask)
        offer = await self.expect(Offer)
        if not check(offer.size):
            raise WireError(f"the peer offers {offer.size} bytes, which cannot be")
        return await self.receive(lambda peer: work(peer, offer.size))

    async def receive(self, work: Callable[[socket.socket], T]) -> T:
        """Send the peer the message Go, on which it sends its bytes, run `work` on the socket in a thread until all are
        received, and return its result.
        """
        self._wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await self.send(Go())
        answer = await self.in_thread(work)
        self._wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
        return answer

    async def give(self, size: int, work: Callable[[socket.socket], T]) -> T:
        """Offer contents of `size` bytes; once the peer asks for them (Go), run `work` on the socket in a thread to
        send them, and return its result. Raise WireError if the peer sends anything else or the connection ends.
        """
        await self.send(Offer(size))
        await self.expect(Go)
        return await self.in_thread(work)

    async def in_thread(self, work: Callable[[socket.socket], T]) -> T:
        """Run `work` on the socket in a thread and return its result. If this call is cancelled, the socket is shut
        down and the thread ends first.
        """
        peer = socket.socket(fileno=os.dup(self._wire.writer.get_extra_info("socket").fileno()))
        peer.settimeout(self._stall_s)
        task = asyncio.get_running_loop().run_in_executor(self._pool, work, peer)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):  # the peer was quicker
                peer.shutdown(socket.SHUT_RDWR)
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # the error of a thread whose socket was closed: retrieved and ignored
            raise
        finally:
            peer.close()


@contextlib.asynccontextmanager
async def linked(
    server: ReplicaAddress, own_address: str, key: bytes, pool: ThreadPoolExecutor, stall_s: float = STALL_S
) -> AsyncIterator[ReplicaLink]:
    """Connect to a server from the address `own_address`, with proofs of the secret `key` on both sides, for the body;
    raise WireError if that fails. File contents pass through threads of `pool`.

    The connection is dropped if the peer sends or accepts nothing for `stall_s` seconds.
    """
    wire = await dial(server.address, server.port, own_address, key, _from_server, LINE_BYTES)
    try:
        yield ReplicaLink(wire, pool, stall_s)
    finally:
        wire.close()


def ring_neighbour(start: Start, steps: int) -> ReplicaAddress | None:
    """Return the address of the replica server of the node that is `steps` places after this one, or before it if
    `steps` is negative, in the ring of members (the generation's nodes), as `start`, this node's order, gives it.

    Return None if this node is the only member, or if any member has no server.
    """
    if start.group_world_size < 2 or len(start.replicas) < start.group_world_size:
        return None
    return start.replicas[(start.group_rank + steps) % start.group_world_size]
