"""One proved connection to or from a server: lines by the event loop, contents by a thread on the same socket."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from launcher.agent.messages import ReplicaAddress
from launcher.agent.replication.bulk import STALL_S
from launcher.agent.replication.protocol import LINE_BYTES, FromServer, Go, Offer, Refusal, ToServer
from launcher.agent.wire import WireError, challenge, dial, read_line

T = TypeVar("T")
M = TypeVar("M", bound=msgspec.Struct)
_to_server: msgspec.json.Decoder[ToServer] = msgspec.json.Decoder(ToServer)
_from_server: msgspec.json.Decoder[FromServer] = msgspec.json.Decoder(FromServer)


class Unwilling(WireError):
    """The peer is there, understood, and says no."""

    def __init__(self, refused: Refusal) -> None:
        super().__init__(refused.text)
        self.gone = refused.gone


def roles(address: str, port: int) -> tuple[str, str]:
    """In which role a peer proves itself to the server that listens there, and it to the peer: good for no other."""
    return f"peer of server {address} {port}", f"server {address} {port}"


class ReplicaLink:
    """Raises WireError where the peer or the network fails; OSError is that of `work` alone."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        decoder: "msgspec.json.Decoder[Any]",
        pool: ThreadPoolExecutor,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = decoder
        self._pool = pool

    async def say(self, message: msgspec.Struct) -> None:
        try:
            self._writer.write(msgspec.json.encode(message) + b"\n")
            await self._writer.drain()
        except OSError as error:
            raise WireError(f"the peer is gone: {error}") from error

    async def hear(self) -> Any:
        """The next message; None at the end."""
        line = await read_line(self._reader)
        if line is None:
            return None
        try:
            return self._decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise WireError(f"a line that is no message: {error}") from error

    async def expect(self, *kinds: type[M]) -> M:
        """The next message, which must be one of these."""
        message = await self.hear()
        if isinstance(message, Refusal):
            raise Unwilling(message)
        if not isinstance(message, kinds):
            raise WireError("the peer left, or answered something else")
        return message

    async def take(
        self, ask: msgspec.Struct, check: Callable[[int], bool], work: Callable[[socket.socket, int], T]
    ) -> T:
        """Ask for contents and have a thread receive them, if their size is as it should be."""
        await self.say(ask)
        offer = await self.expect(Offer)
        if not check(offer.size):
            raise WireError(f"the peer offers {offer.size} bytes, which cannot be")
        return await self.receive(lambda peer: work(peer, offer.size))

    async def receive(self, work: Callable[[socket.socket], T]) -> T:
        """Let the peer go, and have a thread take all that it sends."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]
        await self.say(Go())
        answer = await self.in_thread(work)
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]
        return answer

    async def give(self, size: int, work: Callable[[socket.socket], T]) -> T:
        """Offer contents and have a thread send them once the peer wants them."""
        await self.say(Offer(size))
        await self.expect(Go)
        return await self.in_thread(work)

    async def in_thread(self, work: Callable[[socket.socket], T]) -> T:
        """Run it on the socket. Where this is cancelled the peer is cut off, and the thread has ended on return."""
        peer = socket.socket(fileno=os.dup(self._writer.get_extra_info("socket").fileno()))
        peer.settimeout(STALL_S)
        task = asyncio.get_running_loop().run_in_executor(self._pool, work, peer)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):  # the peer was quicker
                peer.shutdown(socket.SHUT_RDWR)
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # that of a thread whose socket was taken away: looked at, and nobody's
            raise
        finally:
            peer.close()

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.transport.abort()


async def accept(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    own: tuple[str, int],
    token: str,
    pool: ThreadPoolExecutor,
) -> ReplicaLink:
    """The server's side. Raises WireError or TimeoutError; the caller closes."""
    theirs, ours = roles(*own)
    await challenge(reader, writer, token, theirs, ours)
    return ReplicaLink(reader, writer, _to_server, pool)


@contextlib.asynccontextmanager
async def linked(
    server: ReplicaAddress, own_address: str, token: str, pool: ThreadPoolExecutor
) -> AsyncIterator[ReplicaLink]:
    """A connection to a server. Raises WireError."""
    ours, theirs = roles(server.address, server.port)
    try:
        reader, writer = await dial(server.address, server.port, own_address, token, ours, theirs, LINE_BYTES)
    except OSError as error:
        raise WireError(f"{server.address}:{server.port}: {error or 'no answer'}") from error
    link = ReplicaLink(reader, writer, _from_server, pool)
    try:
        yield link
    finally:
        link.close()
