"""A program of ours on another host for as long as the connection is open: asked by JSON lines, told to leave by none.

Nothing is installed for it and nothing of it is left: its text goes over the connection.
"""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from launcher.doctor.programs import text_of
from launcher.errors import Unreachable
from launcher.hostlink.connect import Line

T = TypeVar("T")
_HANG_UP_S = 5.0


@dataclass(frozen=True, slots=True)
class Member:
    """A host, how to talk with it, and by which address the others reach it."""

    name: str
    line: Line
    python: str
    address: str


class Helper:
    """The program on one host, asked by one thread at a time."""

    def __init__(self, member: Member, program: str, flag: str) -> None:
        self.member, self.name = member, member.name
        self._running = member.line.start([member.python, flag, "-c", text_of(program)])

    def ask(self, words: Mapping[str, object], answer: type[T], limit_s: float) -> T:
        """Raises Unreachable where it has ended or says nothing in time; what libraries print there is passed over."""
        self._running.write(msgspec.json.encode(words) + b"\n", limit_s)
        until = time.monotonic() + limit_s
        while line := self._running.readline(max(0.0, until - time.monotonic())):
            with contextlib.suppress(msgspec.DecodeError):
                return msgspec.json.decode(line, type=answer)
        said = self._running.finish(_HANG_UP_S).err.decode(errors="replace").strip().splitlines()
        raise Unreachable(said[-1][:200] if said else "it ended without a word")

    def leave(self) -> None:
        """With its stdin it ends there."""
        try:
            self._running.finish(_HANG_UP_S)
        except Unreachable:
            self._running.close()  # it is not seen to end; its stdin has ended
