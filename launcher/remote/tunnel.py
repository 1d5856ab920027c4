"""Forward a port of this machine, through the connection to a host, to a port that only that host reaches."""

import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Callable

from launcher.errors import LaunchError
from launcher.remote.running import Channel

_PIECE = 32 << 10
_TAKE_S = 60.0  # in which either side takes a piece
_MOST = 64  # connections at once


class Tunnel:
    """A relay that accepts connections on the socket `listening` and connects each to a new channel, which `dial`
    returns.

    If there are more than `most` connections, the one over which no data passed for the longest time is closed.
    `listening` and all connections are closed when `run` ends.
    """

    def __init__(self, listening: socket.socket, dial: Callable[[], Channel], *, most: int = _MOST) -> None:
        self._listening, self._dial, self._most = listening, dial, most
        self._heard_at: dict[socket.socket, float] = {}
        self._lock = threading.Lock()

    def run(self) -> None:
        """Accept and relay connections until an exception, such as KeyboardInterrupt, ends it."""
        try:
            while True:
                peer, _ = self._listening.accept()
                with self._lock:
                    self._heard_at[peer] = time.monotonic()
                    if len(self._heard_at) > self._most:
                        silent = min(self._heard_at, key=self._heard_at.__getitem__)
                        self._end(silent)
                threading.Thread(target=self._carry, args=(peer,), name="tunnel", daemon=True).start()
        finally:
            self._listening.close()
            with self._lock:
                for peer in [*self._heard_at]:
                    self._end(peer)

    def _end(self, peer: socket.socket) -> None:
        """Shut down one accepted connection, so that the thread that relays it ends."""
        self._heard_at.pop(peer, None)
        with contextlib.suppress(OSError):  # it has left
            peer.shutdown(socket.SHUT_RDWR)

    def _carry(self, peer: socket.socket) -> None:
        """Relay one accepted connection over a new channel until either side ends, and close both.

        A LaunchError, such as that no channel can be opened, is logged and not raised.
        """
        with peer:
            try:
                channel = self._dial()
                try:
                    self._pass_on(peer, channel)
                finally:
                    channel.close()
            except (OSError, EOFError):
                return  # one of both has left
            except LaunchError as error:
                logging.getLogger(__name__).warning("%s", error)
            finally:
                with self._lock:
                    self._heard_at.pop(peer, None)

    def _pass_on(self, peer: socket.socket, channel: Channel) -> None:
        """Relay data in both directions until the channel ends. When the peer sends no more, the channel's input is
        ended, and what still comes from the host is relayed.

        Raise OSError or EOFError if a side has left, or accepts no data for a minute.
        """
        peer.settimeout(_TAKE_S)
        poll = select.poll()
        poll.register(peer, select.POLLIN)
        poll.register(channel.ready_fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if channel.ready_fd in ready:
                said = channel.take(0.0)
                if said is None:
                    return
                peer.sendall(said[0])
            if peer.fileno() in ready:
                data = peer.recv(_PIECE)
                if not data:
                    poll.unregister(peer)
                    channel.end_input()
                self._give(channel, data)
            with self._lock:
                if peer in self._heard_at:
                    self._heard_at[peer] = time.monotonic()

    def _give(self, channel: Channel, data: bytes) -> None:
        """Write all of the data to the channel; raise TimeoutError if it does not accept it within a minute."""
        until = time.monotonic() + _TAKE_S
        while data and time.monotonic() < until:
            data = data[channel.give(data, 1.0) :]
        if data:
            raise TimeoutError("nobody takes it")
