"""An authenticated TCP connection between two processes of the launcher: agents and coordinator, replica servers,
supervisors of a run. Both sides prove that they have a key by HMAC, and then exchange JSON lines.

    server → client   {"v":4,"nonce":S}
    client → server   {"v":4,"nonce":C,"mac":HMAC(key, client|CLIENT|SERVER|S|C)}
    server → client   {"mac":HMAC(key, server|CLIENT|SERVER|S|C)}

The key is valid for one kind of connection of one attempt of one run. CLIENT and SERVER are address and port of both
ends, as each end sees them, so that a proof that is forwarded or replayed is worthless. Neither token nor key is ever
sent.

Before a peer has proved that it has the key, only one short line of it is read. It has HANDSHAKE_S seconds for the
proof. At most MOST_UNPROVED peers are at this stage; while there are so many, each has only HURRY_S seconds, and the
kernel queues the connections that follow. After the proof, both sides send JSON lines; the client's line comes first.
"""

import asyncio
import hmac
import ipaddress
import itertools
import os
import resource
import secrets
import select
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
HANDSHAKE_S, HURRY_S = 5.0, 1.0  # the latter while others may wait for a place
_HANDSHAKE_OF_A_PEER_S = 0.002  # of each that may come at the same moment: they are let in one after the other
MAX_UNSENT_BYTES = 8 << 20
MOST_UNPROVED = 1280  # in HANDSHAKE_S each: more than 10,000 strangers a minute, who keep none waiting that is honest
_LEAST_UNPROVED = 16
_PROOF_OF_A_PEER_S = 0.0005  # more for each that may come at the same moment, all from a few machines
_OTHER_DESCRIPTORS = 256  # that a process has open beside its connections, at most
_BACKLOG = 65_535  # as many as the kernel allows: a peer that finds no place connects again only after seconds
_AT_ONCE = 64  # connections that are accepted before those already there are served
_AGAIN_S = 0.05
_READ_BYTES = 1 << 16
_MANY, _GATHER_S = 1000, 0.01  # connections; with more, messages that arrive within this time are read together
_MOST_COMPLAINTS = 1000
_complaints = itertools.count()
_TOO_LONG = "it sent a line beyond the size limit"
_TOO_MUCH = "it left, or said too much, before its proof"
_STRANGER = "it does not know this run's token, or speaks for another"

In = TypeVar("In")
Out = TypeVar("Out")
Nonce = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


class WireError(LaunchError):
    """Raised when the peer breaks the protocol, cannot be reached, or does not prove that it has the key."""


class NoAnswer(WireError):
    """Raised when the connection was made, but the server did not answer within the time limit: it may be busy with
    many others.
    """


class _Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The server's first line: the protocol's version and the server's nonce."""

    v: int
    nonce: Nonce


class _Proof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The client's line: the protocol's version, its nonce, and its proof (`mac`, an HMAC) that it has the key."""

    v: int
    nonce: Nonce
    mac: str


class _Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The server's proof (HMAC) that it has the key."""

    mac: str


T = TypeVar("T", _Hello, _Proof, _Answer)


def wire_key(token: str, wire: str, run_id: str, attempt: int) -> bytes:
    """Return the key for one kind of connection of this attempt and no other, derived from the attempt's secret `token`
    (hex digits). `wire` is the name of that kind, such as `replicas`.
    """
    return hmac.digest(bytes.fromhex(token), msgspec.json.encode((wire, run_id, attempt)), "sha256")


def proof_of(key: bytes, side: str, client: str, server: str, nonces: str) -> str:
    """Return the proof (HMAC) that one end of this connection must send. `side` is that end, "client" or "server";
    `client` and `server` are both ends' addresses as text; `nonces` are the server's and the client's nonce with a bar
    between them.
    """
    return hmac.digest(key, f"{side}|{client}|{server}|{nonces}".encode(), "sha256").hex()


def parsed(line: bytes, decoder: msgspec.json.Decoder[In]) -> In:
    """Return the decoded message of a line; raise WireError if it is malformed."""
    try:
        return decoder.decode(line)
    except (ValueError, RecursionError) as error:  # ValueError: of msgspec, and of text that is no UTF-8
        raise WireError(f"it sent a line that is no message: {error}"[:500]) from error


def complain(text: str) -> None:
    """Write a line about a peer that broke the protocol to stderr; after the first _MOST_COMPLAINTS lines of this
    process, write none.
    """
    if next(_complaints) < _MOST_COMPLAINTS:
        sys.stderr.write(f"launch: {text}"[:500] + "\n")


class Wire(Generic[In, Out]):
    """An authenticated connection of this process to a peer, for messages of type `In` from it and `Out` to it.

    `receive` returns messages in order, and None once the peer has closed or the connection broke. `send` queues a
    message without waiting, and drops it if the connection has ended.
    """

    def __init__(
        self,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        decoder: msgspec.json.Decoder[In],
        peer: tuple[str, int],
        limit: int = MAX_LINE_BYTES,
        inbox: "_Inbox | None" = None,
    ) -> None:
        self._reader, self.writer = streams
        self._limit, self._inbox = limit, inbox
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
            raise WireError(_TOO_LONG) from error
        return parsed(line, self._decoder)

    async def attend(self, handle: Callable[[In], None]) -> None:
        """Call `handle` with each message until the peer has closed; raise WireError for an invalid line, and whatever
        `handle` raises.

        The call comes from the event loop as soon as bytes are read, without waking a task: with thousands of peers,
        waking one for each message would cost more than handling the message.
        """
        transport = self.writer.transport
        lines = _Lines(transport, self._inbox, self._limit, lambda line: handle(parsed(line, self._decoder)))
        transport.set_protocol(lines)
        self._reader.feed_eof()  # it gets nothing from now on
        if self._reader.exception() is not None:
            return  # the connection broke before
        lines.data_received(await self._reader.read())
        if transport.is_closing():
            lines.connection_lost(None)
        elif self._inbox is not None:
            self._inbox.add(lines)
        try:
            await lines.ended
        finally:
            lines.connection_lost(None)

    def send(self, message: Out) -> None:
        """Queue one message and return at once. If more than MAX_UNSENT_BYTES are queued, the peer does not read, and
        its connection is dropped.
        """
        if self.writer.is_closing():
            return
        self.writer.write(msgspec.json.encode(message) + b"\n")
        if self.writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.writer.transport.abort()

    async def deliver(self, message: Out) -> None:
        """Send one message and wait, however slowly the peer reads, until at most 64 KiB are queued (asyncio's
        `drain`); raise WireError if the connection has ended.
        """
        try:
            self.writer.write(msgspec.json.encode(message) + b"\n")
            await self.writer.drain()
        except OSError as error:
            raise WireError(f"it is gone: {error}") from error

    def complain(self, error: Exception) -> None:
        """Write a line to stderr that this peer was dropped because of the error; the caller closes the connection."""
        complain(f"dropped {self.peer}: {error}")

    def close(self) -> None:
        """Close the connection once everything queued was sent; return at once."""
        self.writer.close()

    def abort(self) -> None:
        """Close the connection at once, and drop what is queued."""
        self.writer.transport.abort()


class _Handshake:
    """A connection that the server has accepted from a client, `peer`, which has not yet proved that it has the key.

    `nonce` is the server's, `line` the part of the client's line that has been read, `since` the event loop's time of
    the start, and `ends` the addresses of client and server as text.
    """

    __slots__ = ("ends", "key", "line", "nonce", "peer", "since")

    def __init__(self, peer: socket.socket, key: bytes, since: float) -> None:
        """Send the first line; raise OSError if the peer has gone."""
        self.peer, self.key, self.since, self.line = peer, key, since, b""
        self.nonce = secrets.token_hex(16)
        self.ends = _address_text(peer.getpeername()), _address_text(peer.getsockname())
        _send_now(peer, _Hello(WIRE_VERSION, self.nonce))

    def advance(self) -> bool:
        """Read what the client has sent so far, without waiting, and return whether its proof is now complete and
        right; if so, send the server's proof. Return False while more is to come.

        Raise WireError if the line is wrong or too long, is of another version or shows another key, or if the client
        has closed the connection; raise OSError if the connection fails.
        """
        try:
            piece = self.peer.recv(HANDSHAKE_LINE_BYTES - len(self.line))
        except BlockingIOError:
            return False
        _check(bool(piece), _TOO_MUCH)
        self.line += piece
        if not self.line.endswith(b"\n"):
            return False
        proof = parsed(self.line, decoder_of(_Proof))
        nonces = f"{self.nonce}|{proof.nonce}"
        _check(proof.v == WIRE_VERSION, f"it speaks version {proof.v} of the wire, not {WIRE_VERSION}")
        right = proof_of(self.key, "client", *self.ends, nonces)
        _check(hmac.compare_digest(proof.mac.encode(), right.encode()), _STRANGER)
        _send_now(self.peer, _Answer(proof_of(self.key, "server", *self.ends, nonces)))
        return True


class _Lines(asyncio.Protocol):
    """A connection of which each line that arrives is given to `handle`. The future `ended` is done once the connection
    has ended, with the error that ended it, if any.
    """

    def __init__(
        self, transport: asyncio.WriteTransport, inbox: "_Inbox | None", limit: int, handle: Callable[[bytes], None]
    ) -> None:
        self._transport, self._inbox, self._limit, self._handle, self._rest = transport, inbox, limit, handle, b""
        self.descriptor: int = transport.get_extra_info("socket").fileno()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def pause(self) -> None:
        """Stop the event loop from reading the connection; from now on lines arrive only when `read` is called."""
        self._transport.pause_reading()  # type: ignore[attr-defined]

    def read(self) -> None:
        """Read what has arrived, without waiting, and handle its complete lines; end if the peer has closed."""
        try:
            data = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.data_received(data)
        else:
            self._transport.close()
            self._end(None)

    def data_received(self, data: bytes) -> None:
        """Handle the lines that are complete now, and keep what is left."""
        *lines, self._rest = (self._rest + data if self._rest else data).split(b"\n")
        try:
            for line in lines:
                if self.ended.done():
                    return
                self._handle(line)
            _check(len(self._rest) <= self._limit, _TOO_LONG)
        except Exception as error:  # noqa: BLE001 - it is raised where the connection is attended to
            self._end(error)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Complete `ended` without an error, unless it is done already. A connection that broke counts like one that
        the peer or this process has closed.
        """
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        """Stop reading the connection, without closing it, and complete `ended`, with `error` if it is not None."""
        if self._inbox is not None:
            self._inbox.remove(self)
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)


class _Inbox:
    """The connections of many peers, read together: the event loop waits for one epoll object that has them all.

    With more than a thousand connections it reads them a hundred times a second at most, and not for each message.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._lines: dict[int, _Lines] = {}
        self._later: asyncio.TimerHandle | None = None
        self._wait()

    def add(self, lines: _Lines) -> None:
        """Read this connection from now on: pause its own reading by the event loop, and call its `read` method when
        something has arrived.
        """
        lines.pause()
        self._lines[lines.descriptor] = lines
        self._epoll.register(lines.descriptor, select.EPOLLIN)

    def remove(self, lines: _Lines) -> None:
        """Stop reading this connection, without closing it; call it before its socket is closed."""
        if self._lines.get(lines.descriptor) is lines:
            del self._lines[lines.descriptor]
            self._epoll.unregister(lines.descriptor)

    def close(self) -> None:
        """Stop reading for good. The connections themselves stay open. A second call does nothing."""
        if self._epoll.closed:
            return
        if self._later is not None:
            self._later.cancel()
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _wait(self) -> None:
        """Have the loop call `_read` whenever one of the connections can be read, from now on."""
        self._loop.add_reader(self._epoll.fileno(), self._read)

    def _read(self) -> None:
        """Read each connection on which something has arrived, all in one callback of the event loop, so that
        heartbeats do not wait for one turn of the loop each while many new peers are accepted.
        """
        for descriptor, _ in self._epoll.poll(0, max(1, len(self._lines))):
            lines = self._lines.get(descriptor)
            if lines is not None and not lines.ended.done():
                lines.read()
        if len(self._lines) > _MANY:
            if self._later is None:
                self._loop.remove_reader(self._epoll.fileno())
            self._later = self._loop.call_later(_GATHER_S, self._read)
        elif self._later is not None:
            self._later = None
            self._wait()


class WireServer(Generic[In, Out]):
    """A server that calls `serve` for each peer that has proved that it has the key; a bad peer harms only its own
    connection. At most `most_peers` are served at a time, and further ones are dropped.

    At most `most_unproved` connections may be without a proof at a time; the kernel queues further ones. None means
    MOST_UNPROVED, or `most_peers` if that is more, because the kernel's queue may be too short for all of them.
    """

    def __init__(
        self,
        key: bytes,
        decoder: msgspec.json.Decoder[In],
        serve: Callable[[Wire[In, Out]], Awaitable[None]],
        most_peers: int,
        line_bytes: int = MAX_LINE_BYTES,
        handshake_s: float | None = None,
        most_unproved: int | None = None,
        hurry_s: float = HURRY_S,
    ) -> None:
        self._key, self._decoder, self._line_bytes = key, decoder, line_bytes
        usual_s = HANDSHAKE_S + _PROOF_OF_A_PEER_S * most_peers
        self._handshake_s = usual_s if handshake_s is None else handshake_s  # for a proof
        self._hurry_s = min(hurry_s, self._handshake_s)  # while there is no room for another
        self._serve, self._most_peers = serve, most_peers
        self._most_unproved = max(MOST_UNPROVED, most_peers) if most_unproved is None else most_unproved
        self._descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OTHER_DESCRIPTORS
        self._listening: socket.socket | None = None
        self._accepts = False
        self._timer: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._unproved: dict[socket.socket, _Handshake] = {}  # the oldest first
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self, address: str, port: int = 0) -> int:
        """Listen on the address `address` alone, at the given port, or at any free one if `port` is 0, and return the
        port. A process that had the port before may have exited just now. Raise OSError if another program has it.
        """
        self._loop, self._inbox = asyncio.get_running_loop(), _Inbox()
        listening = await _socket_for(address)
        try:
            if port:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((address, port))
            # Connections linger when we are gone: who comes after us may have the port all the same.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.listen(_BACKLOG)
        except BaseException:
            listening.close()
            raise
        self._listening = listening
        self._accept_if_room()
        return int(listening.getsockname()[1])

    async def close(self) -> None:
        """Stop listening, close all connections, and wait until no call of `serve` runs any more."""
        for timer in (self._timer, self._again):
            if timer is not None:
                timer.cancel()
        listening, self._listening, self._accepts = self._listening, None, False
        if listening is not None:
            self._loop.remove_reader(listening)
            listening.close()
        for peer in [*self._unproved]:
            self._forget(peer)
            peer.close()
        await asyncio.sleep(0)  # each that was created has begun, and closes its socket when it is cancelled
        tasks = {*self._serving}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._inbox.close()

    # -- who has not proved itself

    @property
    def _has_room(self) -> bool:
        """Return whether the server may accept one more connection that has not proved the key yet.

        Their number is limited by `most_unproved`, and by the descriptors that this process has left.
        """
        most = min(self._most_unproved, max(_LEAST_UNPROVED, self._descriptors - len(self._serving)))
        return len(self._unproved) < most

    def _accept_if_room(self) -> None:
        """Accept connections from now on if there is room for one more that has not proved the key, else leave them in
        the kernel's queue. If there is none, have the timer drop the oldest of these sooner than usual.
        """
        accepts = self._listening is not None and self._has_room
        if self._listening is not None and accepts != self._accepts:
            if accepts:
                self._loop.add_reader(self._listening, self._accept, self._listening)
            else:
                self._loop.remove_reader(self._listening)
        self._accepts = accepts
        if not accepts and self._listening is not None and self._unproved:
            self._set_timer(next(iter(self._unproved.values())).since + self._hurry_s)

    def _accept(self, listening: socket.socket) -> None:
        """Accept connections that wait, but only a few in a call, so that those already here are served, and never more
        that have not proved the key than the server has room for. The others wait in the kernel for a later call.
        """
        for _ in range(_AT_ONCE):
            if not self._has_room:
                break
            try:
                peer, _ = listening.accept()
            except BlockingIOError:
                return
            except OSError:  # it is gone again, or there is no descriptor left
                self._loop.remove_reader(listening)
                self._accepts = False
                self._again = self._loop.call_later(_AGAIN_S, self._accept_if_room)
                return
            self._challenge(peer)
        self._accept_if_room()

    def _challenge(self, peer: socket.socket) -> None:
        """Send a nonce to a peer that has connected, and have the event loop read the proof that the peer sends back;
        drop the peer if that fails, or if no proof comes in time.
        """
        peer.setblocking(False)
        try:
            handshake = _Handshake(peer, self._key, self._loop.time())
        except OSError as error:
            self._drop(peer, error)
            return
        self._unproved[peer] = handshake
        self._loop.add_reader(peer, self._advance, handshake)
        if self._timer is None:
            self._set_timer(handshake.since + self._handshake_s)

    def _advance(self, handshake: _Handshake) -> None:
        """Read a peer's proof as far as it has come; serve the peer once it is complete and right. Drop the peer if the
        proof is wrong, the connection fails, or as many peers as allowed are being served.
        """
        peer = handshake.peer
        try:
            if not handshake.advance():
                return
            if len(self._serving) >= self._most_peers:
                raise WireError("too many connections at once")
        except (WireError, OSError) as error:
            self._forget(peer)
            self._drop(peer, error)
            return
        self._forget(peer)
        task = self._loop.create_task(self._attend(peer))
        self._serving.add(task)
        task.add_done_callback(self._ended)

    def _drop_overdue(self) -> None:
        """Drop the peers that have not proved that they have the key within the time limit. A peer's bytes that have
        arrived but were not read yet are read first, because it may be this process that is late.
        """
        self._timer = None
        while self._unproved:
            oldest = next(iter(self._unproved.values()))
            until = oldest.since + (self._handshake_s if self._has_room else self._hurry_s)
            if until > self._loop.time():
                self._set_timer(until)
                return
            self._advance(oldest)
            if oldest.peer in self._unproved:
                self._forget(oldest.peer)
                self._drop(oldest.peer, TimeoutError("no proof in time"))

    def _set_timer(self, moment: float) -> None:
        """Have the event loop call `_drop_overdue`, which drops the peers that have not proved the key in time, at
        `moment` by the loop's clock. This replaces the call that was set before, if any.
        """
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(moment, self._drop_overdue)

    def _forget(self, peer: socket.socket) -> None:
        """Stop reading the proof of `peer`, which is complete or given up, so that another connection can be accepted.
        The socket stays open.
        """
        self._loop.remove_reader(peer)
        del self._unproved[peer]
        self._accept_if_room()

    def _drop(self, peer: socket.socket, _error: Exception) -> None:
        """Close the connection of a peer that has not proved itself. The error is not reported: any program can
        connect.
        """
        peer.close()

    # -- who has

    async def _attend(self, peer: socket.socket) -> None:
        """Call `serve` with the connection of a peer that has proved itself, and close it when that returns; report a
        peer that breaks the protocol on stderr.
        """
        wire: Wire[In, Out] = await _opened(peer, self._decoder, self._line_bytes, self._inbox)
        try:
            await self._serve(wire)
        except (WireError, OSError) as error:
            wire.abort()
            wire.complain(error)
        finally:
            wire.close()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Forget a connection that has ended, and report an unexpected error that ended it."""
        self._serving.discard(task)
        self._accept_if_room()
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
    patience: int = 1,
) -> Wire[In, Any]:
    """Connect from `own_address` to the server at `address` and `port`, have both sides prove that they have `key`, and
    return the connection. Raise WireError if either fails, or NoAnswer if the connection was made and the server did
    not answer within the time limit.

    `decoder` decodes the server's messages, of at most `line_bytes` each. `peers` is how many may connect to the server
    at the same moment, which makes the limit longer. `patience` multiplies the limit for the server's answer.
    """
    try:
        peer = await _connected(address, port, own_address, handshake_limit_s(peers))
        try:
            async with asyncio.timeout(handshake_limit_s(peers) * patience):
                await _prove(peer, key)
        except TimeoutError as error:
            peer.close()
            raise NoAnswer(f"{address}:{port}: no answer") from error
        except BaseException:
            peer.close()
            raise
        return await _opened(peer, decoder, line_bytes)
    except OSError as error:
        raise WireError(f"{address}:{port}: {str(error) or 'no answer'}") from error
    except NoAnswer:
        raise
    except WireError as error:
        raise WireError(f"{address}:{port}: {error}") from error


async def _connected(address: str, port: int, own_address: str, limit_s: float) -> socket.socket:
    """Return a socket connected from `own_address` to the server at `address` and `port`, whose process may not have
    accepted the connection yet. Raise TimeoutError after `limit_s` seconds, or OSError if it is refused.
    """
    peer = await _socket_for(address)
    try:
        peer.bind((own_address, 0))
        async with asyncio.timeout(limit_s):
            await asyncio.get_running_loop().sock_connect(peer, (address, port))
    except BaseException:
        peer.close()
        raise
    return peer


async def _socket_for(address: str) -> socket.socket:
    """Return a new, unbound socket of the address's family, IPv4 or IPv6; `address` may be a host's name."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    except ValueError:  # a name: asked for in a thread, for which a number must not have to wait
        found = await asyncio.get_running_loop().getaddrinfo(address, 0, type=socket.SOCK_STREAM)
        family = found[0][0]
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setblocking(False)
    return made


async def _opened(
    peer: socket.socket, decoder: msgspec.json.Decoder[In], line_bytes: int, inbox: _Inbox | None = None
) -> Wire[In, Any]:
    """Return the wire on an authenticated socket. `decoder` decodes the peer's messages, of at most `line_bytes` each.
    With `inbox`, the wire's method `attend` does not read the socket by itself: the inbox reads it together with the
    sockets of other peers.
    """
    try:
        address, port = peer.getpeername()[
            :2
        ]  # the transport has no address of a peer that has reset the connection by then
        streams = await asyncio.open_connection(sock=peer, limit=line_bytes)
        return Wire(streams, decoder, (address, port), line_bytes, inbox)
    except BaseException:
        peer.close()
        raise


async def _prove(peer: socket.socket, key: bytes) -> None:
    """Prove, as the client, that this process has the key, and check the server's proof; raise WireError if the server
    lacks it.
    """
    hello = await _receive_line(peer, _Hello)
    _check(hello.v == WIRE_VERSION, f"it speaks version {hello.v} of the wire, not {WIRE_VERSION}")
    nonce, ends = secrets.token_hex(16), (_address_text(peer.getsockname()), _address_text(peer.getpeername()))
    nonces = f"{hello.nonce}|{nonce}"
    _send_now(peer, _Proof(WIRE_VERSION, nonce, proof_of(key, "client", *ends, nonces)))
    answer = await _receive_line(peer, _Answer)
    _check(hmac.compare_digest(answer.mac.encode(), proof_of(key, "server", *ends, nonces).encode()), _STRANGER)


def _check(good: bool, why: str) -> None:
    """Raise WireError with the text `why` unless `good`."""
    if not good:
        raise WireError(why)


def _address_text(name: tuple[Any, ...]) -> str:
    """Return the address and the port of one end of a connection as text, from a socket's `name` for that end."""
    address, port = name[:2]
    return f"{address.partition('%')[0]} {port}"  # what follows is this machine's name of an interface


def _send_now(peer: socket.socket, words: msgspec.Struct) -> None:
    """Send one message of the handshake without waiting: it is short, and the first or second on its connection, so
    that the kernel's buffer has room for it. Raise OSError if the peer has gone.
    """
    peer.send(msgspec.json.encode(words) + b"\n")


async def _receive_line(peer: socket.socket, kind: type[T]) -> T:
    """Return one message of the handshake, decoded as `kind`; no byte beyond its line is read. Raise WireError if it is
    malformed.
    """
    line = b""
    while not line.endswith(b"\n"):
        piece = await asyncio.get_running_loop().sock_recv(peer, HANDSHAKE_LINE_BYTES - len(line))
        _check(bool(piece), _TOO_MUCH)
        line += piece
    return parsed(line, decoder_of(kind))
