"""Ask a machine questions and get answers of declared types, one after the other, for `launch doctor`. Here the machine
runs a program that is sent as text, so nothing is installed on it.

The trial job of a batch queue is asked through a folder instead: see places.batch.trial.mailbox.
"""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from launcher.decoding import converted, within_bounds
from launcher.errors import Unreachable
from launcher.remote.connect import Line

T = TypeVar("T")
_HANG_UP_S = 5.0
_MOST_BYTES, _MOST_ITEMS, _LONGEST_WORD = 1_000_000, 1000, 4096


class Session(Protocol):
    """A machine that answers questions; only one thread at a time may ask."""

    name: str  # of the machine

    def ask(self, words: Mapping[str, object], answer: type[T], limit_s: float) -> T:
        """Send the request `words` and return its answer, decoded as `answer`; raise Unreachable if the machine's
        program has ended or does not answer within `limit_s`.
        """


def read_answer(data: bytes, kind: type[T]) -> T:
    """Return the answer in the JSON text `data`, decoded as `kind`; raise ValueError if it has another type or a text
    or list larger than any valid one.
    """
    try:
        found = msgspec.json.decode(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return converted(within_bounds(found, _LONGEST_WORD, _MOST_ITEMS), kind)  # hosts answer to a thread each


class Helper:
    """A program `NAME_there.py` of this folder, which Python on a host gets as text. It starts at once, and answers the
    requests of `ask` one after the other until `leave`.
    """

    def __init__(self, name: str, line: Line, python: str, program: str, flag: str = "-I") -> None:
        self.name = name
        text = (Path(__file__).parent / f"{program}_there.py").read_text(encoding="utf-8")
        self._running, self._said = line.start([python, flag, "-c", text]), b""

    def ask(self, words: Mapping[str, object], answer: type[T], limit_s: float) -> T:
        """Send the request `words` and return its answer, decoded as `answer`; other output is skipped. Raise
        Unreachable if the program has ended or does not answer within `limit_s`.
        """
        self._running.write(msgspec.json.encode(words) + b"\n", limit_s)
        until = time.monotonic() + limit_s
        while line := self._line(until):
            with contextlib.suppress(ValueError):  # msgspec's errors are some
                return read_answer(line, answer)
        said = self._running.finish(_HANG_UP_S).err.decode(errors="replace").strip().splitlines()
        raise Unreachable(said[-1][:200] if said else "it ended without a word")

    def _line(self, until: float) -> bytes:
        """Return the next line of the program's output, or b"" at its end. Raise Silent at the time `until` (by
        `time.monotonic`), and Unreachable if a line is too long.
        """
        while b"\n" not in self._said:
            more = self._running.read(_MOST_BYTES, max(0.0, until - time.monotonic()))
            if not more:
                break
            self._said += more
            if len(self._said) > _MOST_BYTES:
                raise Unreachable("it sends more than was requested")
        end = self._said.find(b"\n") + 1
        line, self._said = self._said[:end], self._said[end:]
        return line

    def leave(self) -> None:
        """Close the program's stdin, which ends it, and wait up to five seconds for the end; after that, close the
        connection without it.
        """
        try:
            self._running.finish(_HANG_UP_S)
        except Unreachable:
            self._running.close()  # it is not seen to end; its stdin has ended
