"""What this machine and a login node say to each other: a greeting, then JSON lines, and bytes where a line says so.

near                                          far: `launch _far`
    ◄───────────── launch-far {wire, launch}
    Have ────────►                            is this code there already?
    Tree, contents of its files ────────►     kept under its digest
    Submit ──────►                            one run, however often this token is sent
    Statuses, Settle ────────►
    Command ─────►                            from here on frames of its output, until it ends
"""

import os
import select
import struct
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from launcher import __version__
from launcher.clusters.protocol import Preview
from launcher.errors import LaunchError
from launcher.hostlink.shipping.tree import FileEntry
from launcher.plan.model import Plan

WIRE = 2
_MARK = b"launch-far "
_LONGEST_LINE = 64 << 20
_CHUNK = 1 << 16
_MOST_NOISE = 1 << 20  # what a login shell may print before the greeting

T = TypeVar("T")


class Greeting(msgspec.Struct, frozen=True):
    wire: int
    launch: str  # the version of the whole


class Have(msgspec.Struct, frozen=True, tag="have"):
    """Is this tree there, whole? → bool"""

    folder: str
    digest: str


class Tree(msgspec.Struct, frozen=True, tag="tree"):
    """Keep this tree; the contents of its regular files follow, in order. → None"""

    folder: str
    digest: str
    files: tuple[FileEntry, ...]


class Job(msgspec.Struct, frozen=True):
    """What is asked for: a spec and the tree that it is to run in."""

    folder: str
    digest: str
    spec_name: str
    spec: bytes
    overrides: tuple[str, ...]
    defaults: tuple[tuple[str, str], ...]  # of the cluster, as the user's clusters file has them
    on: str
    called: tuple[str, str]  # what spec and project are called where the user is, for messages


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """What would be done? → Prepared"""

    job: Job


class Prepared(msgspec.Struct, frozen=True):
    plan: Plan
    preview: Preview | None


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Start a run, or `repeat` runs, unless this token has started any. → Outcome"""

    job: Job
    repeat: int | None
    token: str
    secrets: dict[str, str]
    taken: tuple[str, ...]  # run ids that mean something else where the user is

    def __repr__(self) -> str:
        return f"Submit({self.token[:8]}…)"  # never the secrets


class Made(msgspec.Struct, frozen=True):
    """A run that exists there."""

    run: str
    path: str


class Outcome(msgspec.Struct, frozen=True):
    """What came of a token."""

    runs: tuple[Made, ...] = ()
    error: tuple[str, ...] = ()
    exit_code: int = 0


class Settle(msgspec.Struct, frozen=True, tag="settle"):
    """Nobody asks for these tokens any more: what came of each? Nothing will, after this. → dict of Outcome"""

    folder: str
    tokens: tuple[str, ...]


class Statuses(msgspec.Struct, frozen=True, tag="statuses"):
    """→ dict of RunStatus; a run that is not known there is not in it"""

    runs: tuple[str, ...]


class Terminal(msgspec.Struct, frozen=True):
    """What the user looks at."""

    columns: int
    rows: int
    environment: dict[str, str]  # TERM and the like
    out: bool  # stdout is it
    err: bool  # and stderr


class Command(msgspec.Struct, frozen=True, tag="command"):
    """Run `launch` with these arguments. What follows are frames: its output, and its exit code at the end."""

    argv: tuple[str, ...]
    terminal: Terminal | None = None


EXIT_CODE, STDOUT, STDERR = range(3)  # the channels of frames
_FRAME = struct.Struct(">BI")

Request = Have | Tree | Prepare | Submit | Settle | Statuses | Command


class Reply(msgspec.Struct, frozen=True):
    """The answer to a request, or why there is none, with the exit code that goes with it."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    error: tuple[str, ...] = ()
    exit_code: int = 0


class Confused(LaunchError):
    """What came is not of this wire."""


def greeting() -> bytes:
    return _MARK + encoded(Greeting(WIRE, __version__))


def read_greeting(line: bytes) -> Greeting | None:
    """None for what a login shell prints before it."""
    return decoded(line.removeprefix(_MARK), Greeting) if line.startswith(_MARK) else None


def encoded(message: object) -> bytes:
    """One line. Raises UnicodeEncodeError for text that is none."""
    return msgspec.json.encode(message) + b"\n"


def decoded(line: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Confused(f"not of this wire: {error}") from error


def frame(channel: int, data: bytes) -> bytes:
    return _FRAME.pack(channel, len(data)) + data


def read_request(line: bytes) -> Request:
    try:
        request: Request = msgspec.json.decode(line, type=Request)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Confused(f"not a request of this wire: {error}") from error
    return request


class Incoming:
    """Lines and bytes from a descriptor. Every reading may have a deadline (`time.monotonic`)."""

    def __init__(self, fd: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._fd = fd
        self._clock = clock
        self._held = bytearray()

    def fileno(self) -> int:
        return self._fd

    def line(self, deadline: float | None = None) -> bytes:
        """The next line without its end. Raises EOFError, also in the middle of one, and TimeoutError."""
        seen = 0
        while (end := self._held.find(b"\n", seen)) < 0:
            seen = len(self._held)
            if seen > _LONGEST_LINE:
                raise Confused(f"a line of more than {_LONGEST_LINE >> 20} MiB")
            self._held += self._read(deadline)
        line = bytes(self._held[:end])
        del self._held[: end + 1]
        return line

    def greeting(self, deadline: float | None = None) -> Greeting:
        """The greeting, behind whatever was printed before it."""
        noise = 0
        while (found := read_greeting(line := self.line(deadline))) is None:
            noise += len(line)
            if noise > _MOST_NOISE:
                raise Confused("no greeting, but a megabyte of something else")
        return found

    def frame(self, deadline: float | None = None) -> tuple[int, bytes]:
        """Channel and data of the next frame. Raises EOFError and TimeoutError."""
        head = _FRAME.size
        self._hold(head, deadline)
        channel, size = _FRAME.unpack_from(self._held)
        if size > _LONGEST_LINE:
            raise Confused(f"a frame of {size} bytes")
        self._hold(head + size, deadline)
        data = bytes(self._held[head : head + size])
        del self._held[: head + size]
        return channel, data

    def some(self, most: int, deadline: float | None = None) -> bytes:
        """At least one byte of those that come next. Raises EOFError."""
        if not self._held:
            self._held += self._read(deadline)
        piece = bytes(self._held[:most])
        del self._held[:most]
        return piece

    def _hold(self, size: int, deadline: float | None) -> None:
        while len(self._held) < size:
            self._held += self._read(deadline)

    def _read(self, deadline: float | None) -> bytes:
        if deadline is not None:
            ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - self._clock()))
            if not ready:
                raise TimeoutError
        data = os.read(self._fd, _CHUNK)
        if not data:
            raise EOFError
        return data
