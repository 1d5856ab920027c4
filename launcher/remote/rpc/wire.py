"""Messages between this machine and a program on another: a greeting, then JSON lines, and bytes where a line announces
them.

This module has what all requests have in common: the greeting, trees of code, the form of an answer.
"""

import os
import select
import time
from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

import msgspec

from launcher.decoding import decoder_of
from launcher.errors import LaunchError
from launcher.ids import RunId
from launcher.remote.failures import Silent
from launcher.remote.shipping.tree import FileEntry
from launcher.run.durable import NOT_JSON
from launcher.states import VERSION

WIRE = 6
_MARK = b"launch-far "
_OLD_MARK = b"launch-there"  # the only greeting of a host's server up to wire 3
_LONGEST_LINE = 64 << 20
_CHUNK = 1 << 16
_MOST_NOISE = 1 << 20  # what a login shell may print before the greeting

T = TypeVar("T")

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Greeting(msgspec.Struct, frozen=True):
    """The first message on a connection: the versions of the protocol and of the launcher."""

    wire: int
    launch: str  # the version of the whole


class Have(msgspec.Struct, frozen=True, tag="have"):
    """Ask whether the other side has this tree, complete. → bool"""

    folder: str
    digest: str


class Tree(msgspec.Struct, frozen=True, tag="tree"):
    """Send a tree to keep; the contents of its regular files follow, in order. → None"""

    folder: str
    digest: str
    files: tuple[FileEntry, ...]

    @property
    def follows(self) -> int:
        """Return the number of bytes that follow the message."""
        return bytes_of(self.files)


class Made(msgspec.Struct, frozen=True):
    """A run that exists on the other side."""

    run: RunId
    path: str


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of the request with a token: the runs that were started, or the error."""

    runs: tuple[Made, ...] = ()
    error: tuple[str, ...] = ()
    exit_code: int = 0


class Reply(msgspec.Struct, frozen=True):
    """The answer to a request, or the error with its exit code."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    error: tuple[str, ...] = ()
    exit_code: int = 0
    follows: Size = 0  # bytes behind the line


class Garbled(LaunchError):
    """Raised when a message does not follow this protocol."""


class OtherVersion(Garbled):
    """Raised when the greeting is that of another version of the protocol."""


def bytes_of(files: Iterable[FileEntry]) -> int:
    """Return how many bytes follow a list of files: the contents of the regular ones."""
    return sum(max(0, file.size) for file in files if file.link is None)


def greeting() -> bytes:
    """Return the greeting as a line."""
    return _MARK + encoded(Greeting(WIRE, VERSION))


def read_greeting(line: bytes) -> Greeting | None:
    """Return the greeting, or None for a line that a login shell prints before it."""
    return decoded(line.removeprefix(_MARK), Greeting) if line.startswith(_MARK) else None


def encoded(message: object) -> bytes:
    """Return the message as one line; raise UnicodeEncodeError for invalid text."""
    return msgspec.json.encode(message) + b"\n"


def decoded(line: bytes, kind: type[T] | msgspec.json.Decoder[T]) -> T:
    """Return the message in a line; raise Garbled if it is malformed."""
    try:
        return (kind if isinstance(kind, msgspec.json.Decoder) else decoder_of(kind)).decode(line)
    except NOT_JSON as error:
        raise Garbled(f"not of this wire: {error}") from error


Read = Callable[[float | None, int], bytes]  # until when, and how many bytes at most; none at the end


def reading(fd: int) -> Read:
    """Return a function that reads from a descriptor until a deadline."""

    def read(deadline: float | None, most: int) -> bytes:
        """Return at most `most` of the next bytes; raise Silent at the deadline."""
        if deadline is not None and not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise Silent("nothing more was said in time")
        return os.read(fd, most)

    return read


class Incoming:
    """A reader of lines and bytes as they come; every method may have a deadline (`time.monotonic`)."""

    def __init__(self, read: Read) -> None:
        self._from = read
        self._held = bytearray()

    def line(self, deadline: float | None = None, most: int = _LONGEST_LINE) -> bytes:
        """Return the next line without its end; raise EOFError if the input ends before or within the line."""
        seen = 0
        while (end := self._held.find(b"\n", seen)) < 0:
            seen = len(self._held)
            if seen > most:
                raise Garbled(f"a line of more than {most >> 20} MiB")
            self._held += self._read(deadline)
        line = bytes(self._held[:end])
        del self._held[: end + 1]
        return line

    def greeting(self, deadline: float | None = None) -> Greeting:
        """Return the greeting, skipping what was printed before it."""
        noise = 0
        while (found := read_greeting(line := self.line(deadline, _MOST_NOISE))) is None:
            if line == _OLD_MARK:
                raise OtherVersion(f"another version of launch is there, which {VERSION} here does not understand")
            noise += len(line) + 1
            if noise > _MOST_NOISE:
                raise Garbled("no greeting, but a megabyte of something else")
        return found

    def some(self, most: int, deadline: float | None = None) -> bytes:
        """Return at least one and at most `most` of the next bytes; raise EOFError at the end of the input."""
        if not self._held:
            self._held += self._read(deadline)
        piece = bytes(self._held[:most])
        del self._held[:most]
        return piece

    def _read(self, deadline: float | None) -> bytes:
        """Return the next bytes; raise EOFError at the end of the input."""
        data = self._from(deadline, _CHUNK)
        if not data:
            raise EOFError
        return data
