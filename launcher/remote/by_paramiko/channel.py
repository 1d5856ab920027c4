"""A command over a connection of paramiko's, as a `Channel`."""

import select

from launcher.remote.paramiko_library import BROKEN, Session

_MOST = 256 * 1024


class ParamikoChannel:
    """The streams and the exit code of a command over paramiko."""

    def __init__(self, session: Session) -> None:
        self._session = session
        session.settimeout(0.0)
        self._poll = select.poll()
        self._poll.register(session.fileno(), select.POLLIN)

    @property
    def ready_fd(self) -> int:
        """Return a descriptor that is readable when `take` may return something."""
        return self._session.fileno()

    def give(self, data: bytes, wait_s: float) -> int:
        """Return how much of the data its stdin accepted, possibly after a wait; raise EOFError if it is closed."""
        try:
            sent = self._session.send(data)
        except TimeoutError:
            self._wait_for_room(wait_s)
            return 0
        except BROKEN:
            raise EOFError from None
        if not sent:
            raise EOFError
        return sent

    def end_input(self) -> None:
        """Close its stdin."""
        try:
            self._session.shutdown_write()
        except BROKEN:
            return

    def take(self, wait_s: float) -> tuple[bytes, bytes] | None:
        """Return new output on stdout and stderr, or None once there will be no more."""
        ended = self._session.eof_received or self._session.closed
        if said := self._said():
            return said
        if ended:
            return None
        if wait_s:
            self._poll.poll(wait_s * 1000)
        return self._said() or (b"", b"")

    def code(self, wait_s: float) -> int | None:
        """Return the exit code, or None if the command has not ended within the wait."""
        return self._session.exit_status if self._session.status_event.wait(wait_s) else None

    def close(self) -> None:
        """Close the channel; the command continues there with its pipes closed."""
        try:
            self._session.close()
        except BROKEN:
            return

    def _said(self) -> tuple[bytes, bytes] | None:
        """Return new output on stdout and stderr, or None if there is none."""
        out, err = bytearray(), bytearray()
        while self._session.recv_ready() and len(out) < _MOST:
            out += self._session.recv(_MOST)
        while self._session.recv_stderr_ready() and len(err) < _MOST:
            err += self._session.recv_stderr(_MOST)
        return (bytes(out), bytes(err)) if out or err else None

    def _wait_for_room(self, wait_s: float) -> None:
        """Wait at most this long until the other side accepts input."""
        with self._session.lock:
            if self._session.out_window_size == 0 and not self._session.closed:
                self._session.out_buffer_cv.wait(wait_s)
