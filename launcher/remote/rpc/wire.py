"""The form of messages between this machine and a program on another: a greeting, then JSON lines, and raw bytes where
a line announces them.

The parts that all requests have in common are here: the greeting, trees of code, the form of an answer.
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

WIRE = 6  # version of the messages; increase it if older versions of launch cannot read a changed message
_MARK = b"launch-far "
_OLD_MARK = b"launch-there"  # the only greeting of a host's server up to wire 3
_LONGEST_LINE = 64 << 20
_CHUNK = 1 << 16
_MOST_NOISE = 1 << 20  # what a login shell may print before the greeting

T = TypeVar("T")

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Greeting(msgspec.Struct, frozen=True):
    """The first message on a connection: the versions of the protocol and of the launcher."""

    wire: int  # the protocol's version
    launch: str  # the launcher's version


class Have(msgspec.Struct, frozen=True, tag="have"):
    """A request that asks whether the receiver has the tree of this digest completely in `folder`; the answer is a
    bool.
    """

    folder: str
    digest: str


class Tree(msgspec.Struct, frozen=True, tag="tree"):
    """A request to store a tree of code in `folder` under its digest; the contents of its regular files follow, in
    order. The answer is True.
    """

    folder: str
    digest: str
    files: tuple[FileEntry, ...]

    @property
    def follows(self) -> int:
        """Return the number of bytes that follow the message."""
        return bytes_of(self.files)


class Made(msgspec.Struct, frozen=True):
    """A run that exists on the machine of the server: its id and its folder there."""

    run: RunId
    path: str


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a request to start runs: the runs that were started, or the lines and exit code of the error."""

    runs: tuple[Made, ...] = ()
    error: tuple[str, ...] = ()
    exit_code: int = 0


class Reply(msgspec.Struct, frozen=True):
    """The answer to a request: its value, or the lines and exit code of an error. `follows` is the number of bytes
    after it.
    """

    value: msgspec.Raw = msgspec.Raw(b"null")
    error: tuple[str, ...] = ()
    exit_code: int = 0
    follows: Size = 0  # number of bytes that follow the line


class Garbled(LaunchError):
    """Raised when a message does not follow this protocol."""


class OtherVersion(Garbled):
    """Raised when the peer's greeting names another version of the protocol."""


def bytes_of(files: Iterable[FileEntry]) -> int:
    """Return the total size of the regular files in the list, whose contents follow it on the wire."""
    return sum(max(0, file.size) for file in files if file.link is None)


def greeting() -> bytes:
    """Return the greeting that this process sends, as a line: the versions of the protocol and of the launcher."""
    return _MARK + encoded(Greeting(WIRE, VERSION))


def read_greeting(line: bytes) -> Greeting | None:
    """Return the peer's greeting in the line, or None if the line is something else, such as a login shell's output.
    Raise Garbled for a malformed greeting.
    """
    return decoded(line.removeprefix(_MARK), Greeting) if line.startswith(_MARK) else None


def encoded(message: object) -> bytes:
    """Return the message as one line; raise UnicodeEncodeError if a text in it is not valid Unicode."""
    return msgspec.json.encode(message) + b"\n"


def decoded(line: bytes, kind: type[T] | msgspec.json.Decoder[T]) -> T:
    """Return the message in a line, of the type `kind`; raise Garbled if it is malformed."""
    try:
        return (kind if isinstance(kind, msgspec.json.Decoder) else decoder_of(kind)).decode(line)
    except NOT_JSON as error:
        raise Garbled(f"not of this wire: {error}") from error


Read = Callable[[float | None, int], bytes]  # until when, and how many bytes at most; none at the end


def reading(fd: int) -> Read:
    """Return a function that takes a deadline by `time.monotonic` (None for none) and a number of bytes; it returns at
    most so many of the next bytes from the descriptor, b"" at the end, and raises Silent at the deadline.
    """

    def read(deadline: float | None, most: int) -> bytes:
        """Return at most `most` of the next bytes; raise Silent at the deadline."""
        if deadline is not None and not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise Silent("nothing more was said in time")
        return os.read(fd, most)

    return read


class Incoming:
    """A reader of lines and bytes from a connection. Each method may have a deadline by `time.monotonic` (None for
    none), at which it raises Silent.
    """

    def __init__(self, read: Read) -> None:
        self._from = read
        self._held = bytearray()

    def line(self, deadline: float | None = None, most: int = _LONGEST_LINE) -> bytes:
        """Return the next line without its newline; raise Garbled if it is longer than `most` bytes, and EOFError if
        the input ends first.
        """
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
        """Return the peer's greeting; other lines before it are skipped. Raise Garbled if these exceed a mebibyte or
        the greeting is malformed, OtherVersion if the peer is an older version, and EOFError if the input ends first.
        """
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
