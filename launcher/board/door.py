"""Has the page ready while the server behind it is still imported: a browser reads it meanwhile.

Only what is surely a question for a file of the page, by somebody who may have it, is answered here; every other
connection is put aside unread, and the server takes it over.
"""

import os
import select
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from launcher.board.admission import ALWAYS, Admission, Asked
from launcher.board.bundle import page_file

_MOST_BYTES = 1 << 14
_ANSWER_S = 5.0  # for a browser that reads slowly


class Door:
    """A thread that accepts connections, between `with` and its end; then `aside` is whose answer is still to come."""

    def __init__(self, listening: socket.socket, admission: Admission, welcomed: Callable[[], None]) -> None:
        self._listening, self._admission, self._welcomed = listening, admission, welcomed
        self.aside: list[socket.socket] = []
        self._thread = threading.Thread(target=self._keep, name="door", daemon=True)
        self._closing, self._close = os.pipe()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._close)
        self._thread.join()
        os.close(self._closing)

    def _keep(self) -> None:
        quiet: list[socket.socket] = []  # of which no word has come
        while True:
            watched = [self._closing, self._listening.fileno(), *(one.fileno() for one in quiet)]
            ready, _, _ = select.select(watched, [], [])
            if self._closing in ready:
                self.aside += quiet
                return
            if self._listening.fileno() in ready:
                connection, _ = self._listening.accept()
                connection.settimeout(_ANSWER_S)
                quiet.append(connection)
            for connection in [one for one in quiet if one.fileno() in ready]:
                quiet.remove(connection)
                if not self._answered(connection):
                    self.aside.append(connection)

    def _answered(self, connection: socket.socket) -> bool:
        try:
            head = connection.recv(_MOST_BYTES, socket.MSG_PEEK)
            answer = self._answer(head)
            if answer is None:
                return False
            connection.recv(len(head))
            connection.sendall(answer)
            connection.close()
        except OSError:
            connection.close()  # it has gone
        return True

    def _answer(self, head: bytes) -> bytes | None:
        asked = asked_in(head)
        if asked is None or asked.method != "GET" or self._admission.refusal(asked) is not None:
            return None
        name = "index.html" if asked.path == "/" else asked.path.removeprefix("/page/")
        found = page_file(name) if asked.path == "/" or asked.path.startswith("/page/") else None
        if found is None:
            return None
        kind, body = found
        headers = {**ALWAYS, "content-type": kind, "content-length": str(len(body)), "connection": "close"}
        if self._admission.comes_in(asked):
            headers["set-cookie"] = self._admission.cookie
            self._welcomed()
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        return "".join(["HTTP/1.1 200 OK\r\n", *lines, "\r\n"]).encode("latin-1") + body


def asked_in(head: bytes) -> Asked | None:
    """The plain request that this is, whole and with nothing behind it; of whatever is not so plain None."""
    if not head.endswith(b"\r\n\r\n") or head.count(b"\r\n\r\n") != 1 or not head.isascii():
        return None
    first, *lines = head.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] != "HTTP/1.1" or not words[1].startswith("/") or "%" in words[1]:
        return None
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip() or name in headers:
            return None
        headers[name] = value.strip()
    if headers.keys() & {"content-length", "transfer-encoding", "expect", "upgrade"}:
        return None
    path, _, query = words[1].partition("?")
    return Asked(words[0], path, query, headers)
