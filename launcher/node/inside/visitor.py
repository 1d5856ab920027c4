"""The host's end of a connection with a visitor, a `launch` command elsewhere: receive its messages and answer them."""

import os

import msgspec

from launcher.node.inside.visit_messages import LONGEST_LINE, PIECE_BYTES, FromHost, FromVisitor, Question
from launcher.remote.rpc.wire import Garbled, decoded, encoded, greeting
from launcher.run.durable import write_all

_questions: msgspec.json.Decoder[Question] = msgspec.json.Decoder(Question)
_words: msgspec.json.Decoder[FromVisitor] = msgspec.json.Decoder(FromVisitor)


class VisitorConnection:
    """A connection to a visitor over two descriptors, one for reading and one for writing."""

    def __init__(self, source: int, sink: int) -> None:
        self.source = source
        self._sink = sink
        self._unread = b""
        self._lines: list[bytes] = []

    def begin(self) -> Question:
        """Send the greeting, wait for the visitor's question, with which every visit begins, and return it. Raise
        EOFError if the visitor disconnects.
        """
        write_all(self._sink, greeting())
        while not self._lines:
            self._read()
        return decoded(self._lines.pop(0), _questions)

    def receive(self) -> list[FromVisitor]:
        """Return the new messages, waiting for the first if there are none; raise EOFError once the visitor has
        disconnected.
        """
        if not self._lines:
            self._read()
        lines, self._lines = self._lines, []
        return [decoded(line, _words) for line in lines]

    @property
    def has_more(self) -> bool:
        """Return whether complete lines have been read that `receive` has not returned yet."""
        return bool(self._lines)

    def send(self, message: FromHost) -> None:
        """Send a message to the visitor, waiting while it reads nothing; raise OSError if it has disconnected."""
        write_all(self._sink, encoded(message))

    def _read(self) -> None:
        """Wait for bytes from the visitor, and keep the lines that they complete for `begin` and `receive`. Raise
        EOFError if the visitor has disconnected, and Garbled for a line that is too long.
        """
        data = os.read(self.source, PIECE_BYTES * 2)
        if not data:
            raise EOFError
        *lines, self._unread = (self._unread + data).split(b"\n")
        if len(self._unread) > 2 * LONGEST_LINE:
            raise Garbled("a line that does not end")
        self._lines += lines
