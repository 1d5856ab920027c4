"""Split the bytes of a log into lines of text, in bounded memory. A progress bar, which a program draws again and again
after a carriage return, counts as one line: its last state. Pure.
"""

from collections.abc import Iterator

from launcher.status.text import coloured

MAX_LINE_BYTES = 64 * 1024


def text_of(line: bytes) -> str:
    """Return the text that a terminal would finally show of the line: of a progress bar, its last state."""
    return coloured(line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace"))


class LineSplitter:
    """A splitter of a log into lines, each with the offset after it. An unfinished line is kept until its end comes."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset  # of the first byte not yet in a line that was given out
        self._held = bytearray()  # what is kept of the unfinished line
        self._length = 0  # how long the unfinished line really is
        self._cut = 0  # bytes of it that were thrown away
        self._drawn = False  # it has been drawn over before

    def feed(self, data: bytes) -> Iterator[tuple[int, str]]:
        """Yield (offset in the log after the line, text) for each line that `data`, the next bytes of the log,
        completes.
        """
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._store(data[start:end])
            yield self._finish_line(newline=1)
            start = end + 1
        self._store(data[start:])

    @property
    def moving(self) -> str:
        """The present text of the unfinished line if it is a progress bar, else ""."""
        held = bytes(self._held)
        if b"\r" not in held and not self._drawn:
            return ""
        return text_of(held)

    def rest(self) -> Iterator[tuple[int, str]]:
        """Yield (offset after the line, text) for the unfinished line at the end of the log, or nothing if there is
        none.
        """
        if self._length:
            yield self._finish_line(newline=0)

    def _store(self, piece: bytes) -> None:
        """Append a piece to the unfinished line, of which at most 64 KiB are kept. If it is longer, drop the earlier
        states of a progress bar. If the rest is still too long, drop and count the bytes after its first 64 KiB.
        """
        self._length += len(piece)
        self._held += piece
        if len(self._held) <= MAX_LINE_BYTES:
            return
        last = self._held.rstrip(b"\r").rfind(b"\r") + 1  # of a progress bar only the last state is ever shown
        if last:
            del self._held[:last]
            self._cut, self._drawn = 0, True
        surplus = len(self._held) - MAX_LINE_BYTES
        if surplus > 0:
            del self._held[MAX_LINE_BYTES:]
            self._cut += surplus

    def _finish_line(self, newline: int) -> tuple[int, str]:
        """Return (offset after the finished line, its text), and begin the next line; `newline` is 1 if it ended with
        one.
        """
        text = text_of(bytes(self._held))
        if self._cut:
            text += f" … (and {self._cut} bytes more)"
        self.offset += self._length + newline
        self._held.clear()
        self._length = self._cut = 0
        self._drawn = False
        return self.offset, text
