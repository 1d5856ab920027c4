"""One connection: what a browser sends is read by h11, one request after the other, and answered.

Whoever it is, they hold little memory and one thread, for no longer than a request may take to come and an answer to
be taken.
"""

import contextlib
import logging
import socket
import time
import zlib
from urllib.parse import parse_qsl, unquote

import h11

from launcher.board.wire.exchange import Answering, Asked, BoardReply, in_words

_REQUEST_S = 30.0  # in which a request is here as a whole, from the end of the one before
_TAKE_S = 60.0  # in which a piece of an answer is taken
_LEAVE_S = 1.0  # for the other side to hear why we leave
_MOST_HEAD = 32 << 10
_MOST_BODY = 1 << 20
_CHUNK = 64 << 10
_PACKED_FROM = 10_000  # bytes
_GZIP = 16 + zlib.MAX_WBITS


class HttpConnection:
    def __init__(self, peer: socket.socket, site: Answering) -> None:
        self._peer, self._site = peer, site
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MOST_HEAD)
        self._bound = 0.0  # when it has to have asked

    def serve(self) -> None:
        """Until one of both has enough."""
        with contextlib.suppress(OSError):  # it has left, or takes too long
            while self._exchange():
                self._http.start_next_cycle()
            self._leave()

    def _exchange(self) -> bool:
        """One request and its answer; whether another may follow."""
        self._bound = time.monotonic() + _REQUEST_S
        asked = Asked("", "", {}, {})
        try:
            head = self._next()
            if not isinstance(head, h11.Request):
                return False
            asked = _asked(head)
            reply = self._site.refusal(asked)
            if reply is None:
                reply = self._answer(asked, self._body())
        except h11.RemoteProtocolError as error:
            reply = in_words("this is no request", error.error_status_hint)
        self._send(asked, reply)
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    def _next(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._peer.settimeout(max(0.001, self._bound - time.monotonic()))
            self._http.receive_data(self._peer.recv(_CHUNK))
        return event

    def _body(self) -> bytes | None:
        """None: there is more of it than anybody has to say."""
        body = bytearray()
        while isinstance(event := self._next(), h11.Data):
            body += event.data
            if len(body) > _MOST_BODY:
                return None
        return bytes(body)

    def _answer(self, asked: Asked, body: bytes | None) -> BoardReply:
        if body is None:
            return in_words("that is too long", 413)
        try:
            return self._site.answer(asked, body)
        except Exception:
            logging.getLogger(__name__).exception("%s %s has no answer", asked.method, asked.path[:100])
            return in_words("internal error", 500)

    # -- what goes out

    def _send(self, asked: Asked, reply: BoardReply) -> None:
        told = [("date", time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())), ("content-type", reply.kind)]
        told += [*reply.headers, *self._site.always]
        body = reply.body
        if isinstance(body, bytes):
            if len(body) >= _PACKED_FROM:
                told.append(("vary", "accept-encoding"))
                if "gzip" in asked.headers.get("accept-encoding", ""):
                    body = _packed(body)
                    told.append(("content-encoding", "gzip"))
            told.append(("content-length", str(len(body))))
        if self._http.their_state is not h11.DONE:  # what is left of it is not read
            told.append(("connection", "close"))
        head = self._http.send(h11.Response(status_code=reply.status, headers=told)) or b""
        if asked.method == "HEAD":
            self._put(head + self._said(h11.EndOfMessage()))
        elif isinstance(body, bytes):
            self._put(head + self._said(h11.Data(body)) + self._said(h11.EndOfMessage()))
        else:
            self._put(head)
            with contextlib.closing(body):
                for piece in body:
                    if piece:
                        self._put(self._said(h11.Data(piece)))
                    elif self._has_left():
                        return
            self._put(self._said(h11.EndOfMessage()))

    def _said(self, event: h11.Event) -> bytes:
        return self._http.send(event) or b""

    def _put(self, data: bytes) -> None:
        self._peer.settimeout(_TAKE_S)
        self._peer.sendall(data)

    def _has_left(self) -> bool:
        self._peer.setblocking(False)
        try:
            return not self._peer.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False

    def _leave(self) -> None:
        """With what was said last on its way: to close at once would take it back, where something came unread."""
        self._peer.shutdown(socket.SHUT_WR)
        self._peer.settimeout(_LEAVE_S)
        left = 4 * _MOST_BODY
        while left > 0 and (data := self._peer.recv(_CHUNK)):
            left -= len(data)


def _asked(head: h11.Request) -> Asked:
    path, _, query = head.target.decode("ascii").partition("?")
    headers = {name.decode("ascii"): text.decode("latin-1") for name, text in reversed([*head.headers])}
    return Asked(head.method.decode("ascii"), unquote(path), dict(parse_qsl(query, keep_blank_values=True)), headers)


def _packed(body: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, _GZIP)
    return packer.compress(body) + packer.flush()
