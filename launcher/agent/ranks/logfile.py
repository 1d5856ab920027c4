"""What an agent reads and notes of a rank's log: how far it has grown, when, and its last lines."""

import os
import re
import time
from pathlib import Path

from launcher.agent.ranks.progress import ExceptionReport
from launcher.rundir.layout import times_of
from launcher.rundir.records import Raised

TAIL_LINES = 20
_TAIL_BYTES = 8192
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning)\b.*")
_RANK = re.compile(r"^\[rank\d+\]:\s?")  # torch's own prefix to a traceback, once there is a process group
_TERMINATED = re.compile(r"^terminate called after throwing an instance of '(?P<kind>[^']+)'")
_WHAT = re.compile(r"^\s*what\(\):\s*(?P<text>.*)")
_STANDARD_LIBRARY = re.compile(r"^<frozen |/lib(?:64)?/python3\.\d+/")
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')


class LogFile:
    """One rank's log, seen from outside: the rank itself writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._times = times_of(path)

    def grew(self) -> bool:
        """True where it has grown since the last look; then the time is noted beside it for the merged view."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return False  # the rank has not opened it yet
        if size == self.size:
            return False
        self.size = size
        note = f"{time.time_ns() // 1_000_000} {size}\n".encode()
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._times, flags, 0o600)
        try:
            os.write(fd, note)
        finally:
            os.close(fd)
        return True

    def tail(self) -> tuple[str, ...]:
        """Its last lines, without control characters, for people."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
                text = file.read(_TAIL_BYTES).decode(errors="replace")
        except OSError:
            return ()
        lines = [_plain(line) for line in text.splitlines()]
        return tuple(line for line in lines if line.strip())[-TAIL_LINES:]


def last_exception(tail: tuple[str, ...]) -> ExceptionReport | None:
    """The last exception of a log's tail and the frames before it; for ranks that did not report one."""
    lines = [_RANK.sub("", line) for line in tail]
    for number in range(len(lines) - 1, -1, -1):
        if thrown := _TERMINATED.match(lines[number]):
            return _of_cpp(thrown["kind"], lines[number + 1 :])
        if _EXCEPTION.match(lines[number]):
            frames = [frame for line in reversed(lines[:number]) if (frame := _FRAME.match(line))]
            where = next((f"{Path(one['file']).name}:{one['line']} in {one['name']}" for one in frames), "")
            module = next((name for one in frames if (name := _module(one["file"]))), "")
            return ExceptionReport(line=lines[number], where=where, raised=(Raised(lines[number], module),))
    return None


def _of_cpp(kind: str, after: list[str]) -> ExceptionReport:
    """What the C++ library says of an exception that nobody caught, before it aborts."""
    what = next((said["text"] for line in after if (said := _WHAT.match(line))), "")
    line = f"{kind}: {what}" if what else kind
    return ExceptionReport(line=line, raised=(Raised(line),))


def _module(path: str) -> str:
    """The dotted name of what lies in this file, as far as its path shows it; "" for the standard library's."""
    outside, packages, inside = path.rpartition("-packages/")
    if packages:
        return inside.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return "" if _STANDARD_LIBRARY.search(outside or path) else Path(path).stem


def _plain(line: str) -> str:
    return "".join(char if char.isprintable() or char == "\t" else " " for char in line)[:2000]
