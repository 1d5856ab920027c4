"""Who comes to the board's socket gets a thread, until all is ended."""

import contextlib
import logging
import select
import socket
import threading
import time

from launcher.board.wire.connection import HttpConnection
from launcher.board.wire.exchange import Answering

_MOST_CONNECTIONS = 256  # a browser has six, over all its pages together
_END_S = 2.0  # for answers that are under way
_PAUSE_S = 0.1


class BoardListener:
    def __init__(self, listening: socket.socket, site: Answering) -> None:
        self._listening, self._site = listening, site
        self._open: dict[socket.socket, threading.Thread] = {}
        self._stopped, self._stop = socket.socketpair()
        listening.setblocking(False)

    def stop(self) -> None:
        """From another thread, or where a signal is handled."""
        with contextlib.suppress(OSError):  # it has ended
            self._stop.send(b"\0")

    def run(self) -> None:
        """Until it is stopped."""
        with self._listening, self._stopped, self._stop:
            while True:
                ready, _, _ = select.select([self._listening, self._stopped], [], [])
                if self._stopped in ready:
                    break
                self._let_in()
            self._listening.close()
            self._end()

    def _let_in(self) -> None:
        try:
            peer, _ = self._listening.accept()
        except OSError:  # it has left again, or as many files are open as may be
            select.select([self._stopped], [], [], _PAUSE_S)
            return
        if len(self._open) >= _MOST_CONNECTIONS:
            peer.close()
            return
        self._open[peer] = thread = threading.Thread(target=self._serve, args=(peer,), name="page", daemon=True)
        thread.start()

    def _serve(self, peer: socket.socket) -> None:
        try:
            with peer:
                HttpConnection(peer, self._site).serve()
        except Exception:
            logging.getLogger(__name__).exception("a connection is given up; others go on")
        finally:
            del self._open[peer]

    def _end(self) -> None:
        """Nobody is listened to any more; what is being said is said, within a bound."""
        self._site.dismiss()
        left = [*self._open.items()]
        for peer, _ in left:
            with contextlib.suppress(OSError):  # it has left
                peer.shutdown(socket.SHUT_RD)
        bound = time.monotonic() + _END_S
        for _, thread in left:
            thread.join(max(0.0, bound - time.monotonic()))
