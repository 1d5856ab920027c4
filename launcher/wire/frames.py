"""An authenticated TCP connection between two of our processes: agents and coordinator, replica servers, supervisors of
a run. Both sides prove that they have a key by HMAC, and then exchange JSON lines.

    server → client   {"v":4,"nonce":S}
    client → server   {"v":4,"nonce":C,"mac":HMAC(key, client|CLIENT|SERVER|S|C)}
    server → client   {"mac":HMAC(key, server|CLIENT|SERVER|S|C)}

The key is valid for one kind of connection of one attempt of one run. CLIENT and SERVER are address and port of both
ends, as each end sees them, so that a proof that is forwarded or replayed is worthless. Neither token nor key is ever
sent.

Before a peer has proved that it has the key, only one short line of it is read. It has HANDSHAKE_S seconds for the
proof; if more peers wait than there can be, the oldest is dropped. After the proof, both sides send JSON lines; the
client's line comes first.
"""

import asyncio
import functools
import hmac
import ipaddress
import itertools
import resource
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from launcher.decoding import decoder_of
from launcher.errors import LaunchError
from launcher.wire.messages import WIRE_VERSION

MAX_LINE_BYTES = 1 << 20
HANDSHAKE_LINE_BYTES = 512
HANDSHAKE_S = 5.0
_HANDSHAKE_OF_A_PEER_S = 0.002  # of each that may come at the same moment: they are let in one after the other
MAX_UNSENT_BYTES = 8 << 20
MOST_UNPROVED = 256  # at least; as many as there are peers, or a herd of them would evict each other
_OTHER_DESCRIPTORS = 256  # that a process has open beside its connections, at most
_BACKLOG = 65_535  # as many as the kernel allows: whoever finds no place connects again only after seconds
_AT_ONCE = 64  # connections that are accepted before those already there are served
_AGAIN_S = 0.05
_MOST_COMPLAINTS = 1000
_complaints = itertools.count()
_STRANGER = "it does not know this run's token, or speaks for another"

In = TypeVar("In")
Out = TypeVar("Out")
Nonce = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


class WireError(LaunchError):
    """Raised when the peer breaks the protocol, cannot be reached, or does not prove that it has the key."""


class _Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The server's first line: the protocol's version and the server's nonce."""

    v: int
    nonce: Nonce


class _Proof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The client's line: its proof (HMAC) that it has the key, and its nonce."""

    v: int
    nonce: Nonce
    mac: str


class _Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The server's proof (HMAC) that it has the key."""

    mac: str


T = TypeVar("T", _Hello, _Proof, _Answer)


def wire_key(token: str, wire: str, run_id: str, attempt: int) -> bytes:
    """Return the key for the connections named `wire` of this attempt and no other, derived from the attempt's
    token.
    """
    return hmac.digest(bytes.fromhex(token), msgspec.json.encode((wire, run_id, attempt)), "sha256")


def proof_of(key: bytes, side: str, client: str, server: str, nonces: str) -> str:
    """Return the proof (HMAC) that the client or the server (`side`) must send on this connection; `client` and
    `server` are both ends' addresses.
    """
    return hmac.digest(key, f"{side}|{client}|{server}|{nonces}".encode(), "sha256").hex()


def parsed(line: bytes, decoder: msgspec.json.Decoder[In]) -> In:
    """Return the decoded message of a line; raise WireError if it is malformed."""
    try:
        return decoder.decode(line)
    except (ValueError, RecursionError) as error:  # ValueError: of msgspec, and of text that is no UTF-8
        raise WireError(f"it sent a line that is no message: {error}"[:500]) from error


def complain(text: str) -> None:
    """Write a line about a peer that broke the protocol to stderr; after many such lines, write none."""
    if next(_complaints) < _MOST_COMPLAINTS:
        sys.stderr.write(f"launch: {text}"[:500] + "\n")


class Wire(Generic[In, Out]):
    """One authenticated connection: `receive` returns messages in order and None at the end, `send` never blocks."""

    def __init__(
        self,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        decoder: msgspec.json.Decoder[In],
        peer: tuple[str, int],
    ) -> None:
        self._reader, self.writer = streams
        self._decoder = decoder
        self.address, port = peer
        self.peer = f"{self.address}:{port}"

    async def receive(self) -> In | None:
        """Return the next message, or None if the peer has closed; raise WireError for an invalid line."""
        try:
            line = await self._reader.readuntil(b"\n")
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            return None
        except asyncio.LimitOverrunError as error:
            raise WireError("it sent a line beyond the size limit") from error
        return parsed(line, self._decoder)

    def send(self, message: Out) -> None:
        """Queue one message and return at once; a peer that reads nothing for too long is dropped."""
        if self.writer.is_closing():
            return
        self.writer.write(msgspec.json.encode(message) + b"\n")
        if self.writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.writer.transport.abort()

    async def deliver(self, message: Out) -> None:
        """Send one message and wait until the peer has taken it, however slowly; raise WireError if the connection has
        ended.
        """
        try:
            self.writer.write(msgspec.json.encode(message) + b"\n")
            await self.writer.drain()
        except OSError as error:
            raise WireError(f"it is gone: {error}") from error

    def complain(self, error: Exception) -> None:
        """Write a line to stderr that this peer broke the protocol, with the error."""
        complain(f"dropped {self.peer}: {error}")

    def close(self) -> None:
        """Close the connection once everything queued was sent."""
        self.writer.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self.writer.transport.abort()


class WireServer(Generic[In, Out]):
    """A server that calls `serve` with a Wire for each peer that has proved the key. A peer that breaks the protocol
    loses only its own connection.
    """

    def __init__(
        self,
        key: bytes,
        decoder: msgspec.json.Decoder[In],
        serve: Callable[[Wire[In, Out]], Awaitable[None]],
        most_peers: int,
        line_bytes: int = MAX_LINE_BYTES,
        handshake_s: float | None = None,
    ) -> None:
        self._key, self._decoder, self._line_bytes = key, decoder, line_bytes
        self._handshake_s = handshake_limit_s(most_peers) if handshake_s is None else handshake_s  # for a proof
        self._serve, self._most_peers = serve, most_peers
        self._descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OTHER_DESCRIPTORS
        self._listening: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._unproved: dict[socket.socket, asyncio.Task[None]] = {}  # the oldest first
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self, address: str, port: int = 0) -> int:
        """Listen on `address`, at a free port or at `port`, which an earlier process may have had; return the port."""
        self._listening = listening = await _socket_for(address)
        try:
            if port:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((address, port))
            # Connections linger when we are gone: who comes after us may have the port all the same.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        except BaseException:
            listening.close()
            raise
        listening.listen(_BACKLOG)
        self._accepting = asyncio.create_task(self._accept(listening))
        return int(listening.getsockname()[1])

    async def close(self) -> None:
        """Stop listening and end all connections."""
        tasks = {*([self._accepting] if self._accepting else ()), *self._unproved.values(), *self._serving}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._listening is not None:
            self._listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        """Accept connections for ever; if too many have not proved the key, drop the oldest of them."""
        for number in itertools.count():
            try:
                peer, _ = listening.accept()  # not by the loop: where it is cancelled, it loses who was let in already
                peer.setblocking(False)
            except BlockingIOError:
                await _readable(listening)
                continue
            except OSError:  # it is gone again, or there is no descriptor left
                await asyncio.sleep(_AGAIN_S)
                continue
            task = self._unproved[peer] = asyncio.create_task(self._serve_peer(peer))
            task.add_done_callback(functools.partial(self._forget, peer))
            if len(self._unproved) > self._most_unproved:
                oldest = next(iter(self._unproved.values()))
                oldest.cancel()
                await asyncio.wait([oldest])
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)  # new peers may authenticate before the next are accepted

    @property
    def _most_unproved(self) -> int:
        """Return how many connections without a proof are accepted at a time: as many as there can be peers, as far as
        descriptors allow.
        """
        return max(MOST_UNPROVED, min(self._most_peers, self._descriptors - len(self._serving)))

    async def _serve_peer(self, peer: socket.socket) -> None:
        """Authenticate one peer and run `serve` for it."""
        async with asyncio.timeout(self._handshake_s):
            await _challenge(peer, self._key)
        if len(self._serving) >= self._most_peers:
            raise WireError("too many connections at once")
        self._serving.add(self._unproved.pop(peer))
        wire: Wire[In, Out] = await _opened(peer, self._decoder, self._line_bytes)
        try:
            await self._serve(wire)
        except (WireError, OSError) as error:
            wire.abort()
            wire.complain(error)
        finally:
            wire.close()

    def _forget(self, peer: socket.socket, task: "asyncio.Task[None]") -> None:
        """Remove a connection whose `task` has ended, and report an unexpected error that ended it."""
        self._serving.discard(task)
        if self._unproved.pop(peer, None) is not None:
            peer.close()
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, (WireError, OSError)):
            task.get_loop().call_exception_handler({"message": "serving a peer failed", "exception": error})
        while error is not None:  # its frames lead back to the task: of thousands that would fill the memory
            error.__traceback__, error = None, error.__cause__


def handshake_limit_s(peers: int) -> float:
    """Return how many seconds a handshake may take if `peers` peers may connect at the same moment."""
    return HANDSHAKE_S + _HANDSHAKE_OF_A_PEER_S * peers


async def dial(
    address: str,
    port: int,
    own_address: str,
    key: bytes,
    decoder: msgspec.json.Decoder[In],
    line_bytes: int = MAX_LINE_BYTES,
    peers: int = 1,
) -> Wire[In, Any]:
    """Connect from `own_address`, authenticate both sides, and return the wire; raise WireError if either fails.

    `peers` is how many may connect to the server at the same moment, which lengthens the time limit; `line_bytes` is
    the longest line accepted.
    """
    try:
        async with asyncio.timeout(handshake_limit_s(peers)):
            peer = await _socket_for(address)
            try:
                peer.bind((own_address, 0))
                await asyncio.get_running_loop().sock_connect(peer, (address, port))
                await _prove(peer, key)
            except BaseException:
                peer.close()
                raise
            return await _opened(peer, decoder, line_bytes)
    except OSError as error:
        raise WireError(f"{address}:{port}: {str(error) or 'no answer'}") from error
    except WireError as error:
        raise WireError(f"{address}:{port}: {error}") from error


async def _socket_for(address: str) -> socket.socket:
    """Return a new socket bound to the address."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    except ValueError:  # a name: asked for in a thread, for which a number must not have to wait
        found = await asyncio.get_running_loop().getaddrinfo(address, 0, type=socket.SOCK_STREAM)
        family = found[0][0]
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setblocking(False)
    return made


async def _readable(listening: socket.socket) -> None:
    """Wait until the listening socket has a connection to accept."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(listening, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(listening)


async def _opened(peer: socket.socket, decoder: msgspec.json.Decoder[In], line_bytes: int) -> Wire[In, Any]:
    """Return the wire on an authenticated socket."""
    try:
        address, port = peer.getpeername()[
            :2
        ]  # the transport has no address of a peer that has reset the connection by then
        return Wire(await asyncio.open_connection(sock=peer, limit=line_bytes), decoder, (address, port))
    except BaseException:
        peer.close()
        raise


async def _challenge(peer: socket.socket, key: bytes) -> None:
    """Check, as the server, the peer's proof that it has the key, and send our own; raise WireError if the peer lacks
    the key.
    """
    nonce, ends = secrets.token_hex(16), (_address_text(peer.getpeername()), _address_text(peer.getsockname()))
    await _send_line(peer, _Hello(WIRE_VERSION, nonce))
    proof = await _receive_line(peer, _Proof)
    nonces = f"{nonce}|{proof.nonce}"
    _check(proof.v == WIRE_VERSION, f"it speaks version {proof.v} of the wire, not {WIRE_VERSION}")
    _check(hmac.compare_digest(proof.mac.encode(), proof_of(key, "client", *ends, nonces).encode()), _STRANGER)
    await _send_line(peer, _Answer(proof_of(key, "server", *ends, nonces)))


async def _prove(peer: socket.socket, key: bytes) -> None:
    """Prove, as the client, that we have the key, and check the server's proof; raise WireError if the server lacks
    it.
    """
    hello = await _receive_line(peer, _Hello)
    _check(hello.v == WIRE_VERSION, f"it speaks version {hello.v} of the wire, not {WIRE_VERSION}")
    nonce, ends = secrets.token_hex(16), (_address_text(peer.getsockname()), _address_text(peer.getpeername()))
    nonces = f"{hello.nonce}|{nonce}"
    await _send_line(peer, _Proof(WIRE_VERSION, nonce, proof_of(key, "client", *ends, nonces)))
    answer = await _receive_line(peer, _Answer)
    _check(hmac.compare_digest(answer.mac.encode(), proof_of(key, "server", *ends, nonces).encode()), _STRANGER)


def _check(good: bool, why: str) -> None:
    """Raise WireError with the text `why` unless `good`."""
    if not good:
        raise WireError(why)


def _address_text(name: tuple[Any, ...]) -> str:
    """Return the address of one end of the connection as text."""
    address, port = name[:2]
    return f"{address.partition('%')[0]} {port}"  # what follows is this machine's name of an interface


async def _send_line(peer: socket.socket, words: msgspec.Struct) -> None:
    """Send one message of the handshake."""
    await asyncio.get_running_loop().sock_sendall(peer, msgspec.json.encode(words) + b"\n")


async def _receive_line(peer: socket.socket, kind: type[T]) -> T:
    """Return one message of the handshake, decoded as `kind`; no byte beyond its line is read. Raise WireError if it is
    malformed.
    """
    line = b""
    while not line.endswith(b"\n"):
        piece = await asyncio.get_running_loop().sock_recv(peer, HANDSHAKE_LINE_BYTES - len(line))
        _check(bool(piece), "it left, or said too much, before its proof")
        line += piece
    return parsed(line, decoder_of(kind))
