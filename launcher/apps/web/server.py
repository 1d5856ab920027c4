"""Serve an ASGI application with uvicorn, with limits on what clients may occupy. uvicorn limits neither the number of
connections nor the time in which a request arrives. Here, if there are too many connections, the oldest on which no
request had the token is dropped.
"""

import asyncio
import contextlib
import errno
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp, Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from launcher.apps.web.limits import Limits, UnprovedConnections

STATE = "connection"  # the key of an ASGI scope's state under which its connection is found
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_S = 0.1


class WebServer(uvicorn.Server):
    """A uvicorn server on a listening socket, with limits. `proves` tells whether a request has the token; if it is
    None, anyone may call, and a connection that is being answered is not dropped. `dismiss` is called when the server
    begins to stop, to end streaming responses.
    """

    def __init__(
        self, app: ASGIApp, listening: socket.socket, limits: Limits, *, proves: Callable[[Scope], bool] | None,
        tls: ssl.SSLContext | None = None, headers: Sequence[tuple[str, str]] = (), let_go_s: int = 2,
        dismiss: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        config = uvicorn.Config(
            app, http=LimitedProtocol, ws="none", lifespan="off", log_config=None, log_level="error", access_log=False,
            server_header=False, headers=[*headers], timeout_keep_alive=limits.idle_s,
            timeout_graceful_shutdown=let_go_s,
        )  # fmt: skip
        super().__init__(config)
        self._listening, self._limits, self._tls, self._dismiss = listening, limits, tls, dismiss
        self._proves = proves

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 - uvicorn passes none
        """Start to accept connections, within the limits."""
        door = Door(self.config, self.server_state, self._listening, self._limits, self._tls, self._proves)
        door.open()
        self.servers = [cast("Any", door)]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, close those from which no whole request has come, and wait until the others were
        answered, at most for uvicorn's `timeout_graceful_shutdown`.
        """
        for door in self.servers:
            door.close()
        self._dismiss()
        for connection in list(self.server_state.connections):
            if isinstance(connection, LimitedProtocol) and connection.is_asking:
                connection.drop()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop the server on SIGINT and SIGTERM during the body.

        Unlike uvicorn's handlers, these do not raise the signal again afterwards.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Door:
    """The part of a server that accepts connections. If there are more than its limits allow, in all or from one
    address, it drops the oldest ones on which no request had the token.
    """

    def __init__(
        self, config: uvicorn.Config, state: Any, listening: socket.socket, limits: Limits, tls: ssl.SSLContext | None,
        proves: Callable[[Scope], bool] | None,
    ) -> None:  # fmt: skip
        self.limits, self.proves = limits, proves
        self.unproved: UnprovedConnections[LimitedProtocol] = UnprovedConnections(
            limits.connections, limits.per_address
        )
        self._config, self._state, self._listening, self._tls = config, state, listening, tls
        self._reopening: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Start to accept connections in the running event loop."""
        self._listening.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def close(self) -> None:
        """Stop accepting connections and close the listening socket; connections that were accepted stay open."""
        if self._reopening is not None:
            self._reopening.cancel()
        if self._listening.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()

    async def wait_closed(self) -> None:
        """Return at once; uvicorn waits for this on each of its servers."""

    def count(self, connection: "LimitedProtocol") -> bool:
        """Count a connection as the newest without the token, and drop the oldest ones while there are too many.

        Return False if there are still too many, because each of them has sent data that was not read yet and may hold
        the token. The new connection stays open then, and the caller should accept no others for now.
        """
        self.unproved.add(connection, connection.address)
        while self.unproved.are_too_many(connection.address):
            oldest = self.unproved.oldest(connection.address, LimitedProtocol.may_go)
            if oldest is None:
                return False
            oldest.drop()
        return True

    def _accept(self) -> None:
        """Accept a few of the waiting connections; the event loop calls this again in its next turn for the others.

        If no more files can be opened, drop the oldest connection and pause.
        """
        # So few in one turn of the loop that a handshake, which takes several, has ended before they are the oldest.
        for _ in range(max(1, self.limits.per_address // 16)):
            try:
                peer, address = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    continue  # it has left again
                self._make_room()
                return
            peer.setblocking(False)
            where = str(address[0]) if isinstance(address, tuple) else ""
            connection = LimitedProtocol(self._config, self._state, {}, door=self, peer=peer, address=where)
            connection.opening = asyncio.get_running_loop().create_task(self._connect(connection, peer))
            connection.opening.add_done_callback(connection.close_unused)
            if not self.count(connection):
                return

    async def _connect(self, connection: "LimitedProtocol", peer: socket.socket) -> None:
        """Hand an accepted connection to the event loop, after the TLS handshake if there is one."""
        handshake_s = None if self._tls is None else self.limits.head_s
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, peer, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )
        except OSError:  # it has left, or speaks no TLS
            self.unproved.discard(connection)

    def _make_room(self) -> None:
        """Drop the oldest connection on which no request had the token, if there is one, because no more files can be
        opened; accept no connections for a tenth of a second.
        """
        oldest = self.unproved.oldest("")
        if oldest is not None:
            oldest.drop()
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listening)
        self._reopening = loop.call_later(_PAUSE_S, self.open)


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol for one connection, which is dropped once a part of the exchange takes too long.

    The head of a request, its body, and the client's reading of the response have a time limit each, set in Limits. A
    request whose head has too many bytes or headers is answered with 400.
    """

    def __init__(
        self, config: uvicorn.Config, server_state: Any, app_state: dict[str, Any], _loop: Any = None, *,
        door: Door, peer: socket.socket, address: str,
    ) -> None:  # fmt: skip
        super().__init__(config, server_state, {**app_state, STATE: self}, _loop)
        self.address = address
        self.is_open = False  # what is before that: a TLS handshake
        self.proved = False  # a request on it carried the token
        self.opening: asyncio.Task[None] | None = None
        self._door, self._limits, self._peer = door, door.limits, peer
        self._asking: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None
        self._in_head, self._head_bytes = True, 0
        self._has_begun = False
        self._drained = 0  # bytes of a body that nobody reads

    @property
    def is_asking(self) -> bool:
        """Whether a request is expected, or has not completely arrived."""
        return self._asking is not None

    def may_go(self) -> bool:
        """Return whether the connection may be dropped to make room. It may not if its first bytes have arrived but
        were not read yet, because they may hold the token.
        """
        if self._has_begun:
            return True
        try:
            return not self._peer.recv(1, socket.MSG_PEEK)
        except OSError:  # nothing has come, or it is closed
            return True

    def close_unused(self, _: object) -> None:
        """Close the socket if the task that was to open the connection has ended without opening it, because it failed,
        was cancelled or took too long.
        """
        if not self.is_open:
            self._peer.close()

    def drop(self) -> None:
        """Close the connection at once, even while a response is being sent."""
        self._door.unproved.discard(self)
        if self.is_open:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    # -- what the event loop calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Start the time limit for the first request on the connection."""
        super().connection_made(transport)
        self.is_open = True
        self._expect(self._limits.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection no more among those without the token, and cancel its timers."""
        self._door.unproved.discard(self)
        for timer in (self._asking, self._taking):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass received bytes on to uvicorn's parser, and answer 400 once the head of a request is longer than the
        limit.
        """
        self._has_begun = True
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.head_bytes and not self.transport.is_closing():
                self.send_400_response(f"expected a head of at most {self._limits.head_bytes} bytes")

    def pause_writing(self) -> None:
        """Start the time limit within which the client must read what was sent so far; asyncio calls this when too much
        of a response is unread. If the limit passes before `resume_writing`, the connection is dropped.
        """
        super().pause_writing()
        self._taking = self.loop.call_later(self._limits.take_s, self.drop)

    def resume_writing(self) -> None:
        """Stop the time limit that `pause_writing` started; asyncio calls this when the client has read enough of the
        response.
        """
        super().resume_writing()
        if self._taking is not None:
            self._taking.cancel()

    # -- what the parser calls; an exception is answered by 400

    def on_message_begin(self) -> None:
        """Start the time limit for the head of another request."""
        super().on_message_begin()
        if not self._in_head:
            self._in_head = True
            self._expect(self._limits.head_s)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Raise ValueError, by which uvicorn refuses the request, if it has more headers than `Limits.headers`."""
        super().on_header(name, value)
        if len(self.headers) > self._limits.headers:
            raise ValueError("too many headers")

    def on_headers_complete(self) -> None:
        """Note, once the head is complete, whether the request has the token, and start the time limit for the body.

        A request without it goes on to the application, but its connection may be dropped to make room. Raises
        ValueError if too many requests on the connection await an answer.
        """
        self._in_head, self._head_bytes, self._drained = False, 0, 0
        if len(self.pipeline) >= self._limits.pipelined:
            raise ValueError("too many requests before the first was answered")
        super().on_headers_complete()
        if not self.proved and self._door.proves is not None and self._door.proves(dict(self.scope)):
            self.proved = True
            self._door.unproved.discard(self)
        self._expect(self._limits.body_s)

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body on to the application. Drop it if the request has no token or is answered already,
        and drop the connection once more than `drained_bytes` of a body were dropped.
        """
        is_read = (self.proved or self._door.proves is None) and not self.cycle.response_complete
        if is_read:
            super().on_body(body)
        else:
            self._drained += len(body)
            if self._drained > self._limits.drained_bytes and not self.transport.is_closing():
                self.drop()

    def on_message_complete(self) -> None:
        """Stop the time limit: the request has arrived completely."""
        self._expect(None)
        if self._door.proves is None and not self.cycle.response_complete:
            self._door.unproved.discard(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Count the connection, after its response was sent, again among those that may be dropped if there are too
        many, unless a request on it had the token.
        """
        super().on_response_complete()
        if not self.proved and not self.transport.is_closing():
            self._door.count(self)

    def _expect(self, in_s: float | None) -> None:
        """Drop the connection if the next part of its request takes longer than `in_s` seconds.

        None stops the time limit, because the request is complete.
        """
        if self._asking is not None:
            self._asking.cancel()
        self._asking = None if in_s is None else self.loop.call_later(in_s, self._late, in_s)

    def _late(self, in_s: float) -> None:
        """Drop the connection because its time limit of `in_s` seconds has passed, unless this server itself has paused
        reading: the client may have sent everything, so start the limit again.
        """
        if self.flow.read_paused:  # by us: it may have sent all of it
            self._expect(in_s)
        else:
            self.drop()
