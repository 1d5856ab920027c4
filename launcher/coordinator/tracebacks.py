"""Which exception a rank ended with: from the end of its log, its error file, and what its starter has reported."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import msgspec

from launcher.run.durable import readable
from launcher.run.hangs import MOST_FRAMES, Frame
from launcher.run.records import Raised
from launcher.wire.progress import ExceptionReport

_MOST_BYTES = 1 << 20
_BEGINS = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning)\b.*")
_RANK = re.compile(r"^\[rank\d+\]:\s?")  # torch's own prefix to a traceback, once there is a process group
_TERMINATED = re.compile(r"^terminate called after throwing an instance of '(?P<kind>[^']+)'")
_WHAT = re.compile(r"^\s*what\(\):\s*(?P<text>.*)")
_STANDARD_LIBRARY = re.compile(r"^<|/lib(?:64)?/python3\.\d+/")
_FATAL = "Fatal Python error: "
_THREAD = re.compile(r"^(?P<current>Current thread|Stack)?.*\(most recent call first\):$")
_CRASH_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)$')
_CRASH_FRAMES = 8
_OURS = "/launcher/node/zygote.py"
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')


class _MoreInfo(msgspec.Struct, frozen=True):
    py_callstack: str = ""


class _Message(msgspec.Struct, frozen=True):
    message: str = ""
    extraInfo: _MoreInfo = _MoreInfo()  # noqa: N815 - torch's name for it


class _ErrorFile(msgspec.Struct, frozen=True):
    """As `torch.distributed.elastic.multiprocessing.errors` writes it."""

    message: str | _Message = ""


def error_file_says(path: Path) -> ExceptionReport | None:
    """The exception that torch's `@record` has written there, or the rank itself in its form."""
    try:
        if path.lstat().st_size > _MOST_BYTES:
            return None
        said = readable(path, _ErrorFile)
    except OSError:
        return None  # there is none, or it says nothing
    if said is None:
        return None
    message = said.message if isinstance(said.message, _Message) else _Message(said.message)
    return _told(message.message, message.extraInfo.py_callstack)


def _told(text: str, traceback: str) -> ExceptionReport | None:
    """An exception by its text; where that is another process's traceback, the exception of that process."""
    if _BEGINS in text:
        return last_exception(text.splitlines())
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if not line:
        return None
    where, module = _place(traceback.splitlines())
    return ExceptionReport(line=line, where=where, raised=(Raised(line, module),))


def likeliest(reported: ExceptionReport | None, recorded: ExceptionReport | None) -> ExceptionReport | None:
    """An error file names the cause; where the rank's starter has reported the same one, it knows more of it."""
    if reported is None or recorded is None:
        return reported or recorded
    return reported if _bare(reported.line) == _bare(recorded.line) else recorded


def _bare(line: str) -> str:
    """Without the module of its type."""
    kind, colon, text = line.partition(":")
    return kind.rpartition(".")[2] + colon + text.rstrip()


@dataclass(frozen=True, slots=True)
class Crash:
    """The end of a log, cut in two where faulthandler began to write: `stack` is empty where it did not."""

    before: Sequence[str]
    stack: Sequence[str]


def crash_in(lines: Sequence[str]) -> Crash:
    """What faulthandler wrote last, as far as it tells of the thread that crashed, or of the first one."""
    begin = next((number for number in range(len(lines) - 1, -1, -1) if lines[number].startswith(_FATAL)), None)
    if begin is None:
        return Crash(lines, ())
    threads = [(number, found) for number in range(begin, len(lines)) if (found := _THREAD.match(lines[number]))]
    current = next((number for number, found in threads if found["current"]), threads[-1][0] if threads else len(lines))
    frames = takewhile(_CRASH_FRAME.match, lines[current + 1 :])
    theirs = [line for line in frames if _OURS not in line]
    return Crash(lines[:begin], (lines[begin], *lines[current : current + 1], *theirs[:_CRASH_FRAMES]))


def stacks_in(lines: Sequence[str]) -> list[str]:
    """What faulthandler wrote of threads among these lines, without our own frames."""
    found, inside = list[str](), False
    for line in lines:
        inside = _THREAD.match(line) is not None or (inside and line.startswith("  "))
        if inside and _OURS not in line:
            found.append(line)
    return found


def stuck_at(tail: Sequence[str]) -> str:
    """Where a rank was when its stacks were written into its log: the innermost frame of the user's own code."""
    stacks = stacks_in(tail)
    heads = [number for number, line in enumerate(stacks) if _THREAD.match(line)]
    current = next((number for number in reversed(heads) if stacks[number].startswith("Current")), None)
    begin = current if current is not None else heads[0] if heads else len(stacks)
    frames = takewhile(lambda frame: frame is not None, map(_CRASH_FRAME.match, stacks[begin + 1 :]))
    return _where([frame for frame in frames if frame is not None])


def main_stack(lines: Sequence[str]) -> tuple[Frame, ...]:
    """Return where the main thread is by what faulthandler wrote, which has it last: the innermost frame first."""
    stacks = stacks_in(lines)
    heads = [number for number, line in enumerate(stacks) if _THREAD.match(line)]
    found = map(_CRASH_FRAME.match, stacks[heads[-1] + 1 :] if heads else ())
    return tuple(Frame(one["file"][-300:], int(one["line"]), one["name"][:200]) for one in found if one)[:MOST_FRAMES]


def last_exception(tail: Sequence[str]) -> ExceptionReport | None:
    """What the end of a log says of a rank's end, for ranks that did not report it themselves."""
    crash = crash_in(tail)
    found = _last_raised(crash.before)
    if not crash.stack:
        return found
    frames = [frame for line in crash.stack if (frame := _CRASH_FRAME.match(line))]
    # What was raised before a crash may long be dealt with; an abort is often the end of what it was raised for.
    aborted = found is not None and crash.stack[0].startswith(f"{_FATAL}Aborted")
    line, raised = (found.line, found.raised) if found is not None and aborted else ("", ())
    return ExceptionReport(line=line, where=_where(frames), raised=raised)


def _last_raised(tail: Sequence[str]) -> ExceptionReport | None:
    """The last exception of a log's tail and the frames before it."""
    lines = [_RANK.sub("", line) for line in tail]
    for number in range(len(lines) - 1, -1, -1):
        if thrown := _TERMINATED.match(lines[number]):
            return _of_cpp(thrown["kind"], lines[number + 1 :])
        if _EXCEPTION.match(lines[number]):
            where, module = _place(lines[:number])
            return ExceptionReport(line=lines[number], where=where, raised=(Raised(lines[number], module),))
    return None


def _place(before: Sequence[str]) -> tuple[str, str]:
    """Of the last traceback in these lines: the innermost frame of the user's own, and the module that raised."""
    frames = []
    for line in reversed(before):
        if line.strip() == _BEGINS:
            break
        if frame := _FRAME.match(line):
            frames.append(frame)
    module = next((name for one in frames if (name := _module(one["file"]))), "")
    return _where(frames), module


def _where(frames: Sequence[re.Match[str]]) -> str:
    """Of frames, the innermost first: the first of the user's own, else the first."""
    own = next((one for one in frames if _is_own(one["file"])), frames[0] if frames else None)
    return f"{Path(own['file']).name}:{own['line']} in {own['name']}" if own else ""


def _is_own(path: str) -> bool:
    """No library's."""
    return "-packages/" not in path and not _STANDARD_LIBRARY.search(path)


def _of_cpp(kind: str, after: Sequence[str]) -> ExceptionReport:
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
