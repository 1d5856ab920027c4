"""Find the exception with which a rank ended, from its log's end, its error file and its parent's report."""

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
    """The `extraInfo` object of torch's error file, which holds the traceback."""

    py_callstack: str = ""


class _Message(msgspec.Struct, frozen=True):
    """The `message` object of torch's error file, with its traceback."""

    message: str = ""
    extraInfo: _MoreInfo = _MoreInfo()  # noqa: N815 - torch's name for it


class _ErrorFile(msgspec.Struct, frozen=True):
    """The content of an error file as `torch.distributed.elastic.multiprocessing.errors` writes it."""

    message: str | _Message = ""  # plain text in some cases, without a traceback of its own


def read_error_file(path: Path) -> ExceptionReport | None:
    """Return the exception in an error file of torch's format, as `@record` writes it, or None if it holds none."""
    try:
        if path.lstat().st_size > _MOST_BYTES:
            return None
        said = readable(path, _ErrorFile)
    except OSError:
        return None  # there is none, or it is empty
    if said is None:
        return None
    message = said.message if isinstance(said.message, _Message) else _Message(said.message)
    return _inner_exception(message.message, message.extraInfo.py_callstack)


def _inner_exception(text: str, traceback: str) -> ExceptionReport | None:
    """Return the exception in the message `text` of an error file, or None if `text` is empty.

    If `text` contains another process's traceback, return that process's exception. Otherwise return the first line of
    `text`, with its place from `traceback`.
    """
    if _BEGINS in text:
        return last_exception(text.splitlines())
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if not line:
        return None
    where, module = _place(traceback.splitlines())
    return ExceptionReport(line=line, where=where, raised=(Raised(line, module),))


def likeliest(reported: ExceptionReport | None, recorded: ExceptionReport | None) -> ExceptionReport | None:
    """Return the report of a rank's exception that is more likely right, or None if both are None.

    It is `reported`, from the parent process, if both have the same type and text or there is no `recorded`, from the
    error file; else `recorded`.
    """
    if reported is None or recorded is None:
        return reported or recorded
    return reported if _bare(reported.line) == _bare(recorded.line) else recorded


def _bare(line: str) -> str:
    """Return the line with the module of its exception type removed: `ReadTimeout: x` for `requests.ReadTimeout: x`."""
    kind, colon, text = line.partition(":")
    return kind.rpartition(".")[2] + colon + text.rstrip()


@dataclass(frozen=True, slots=True)
class Crash:
    """The end of a rank's log, divided where faulthandler began to write the stacks of a crash: the lines before that,
    and `stack`, which is empty if the log shows no crash.
    """

    before: Sequence[str]
    stack: Sequence[str]


def crash_in(lines: Sequence[str]) -> Crash:
    """Divide the lines of a log where faulthandler's last report of a crash begins, and return both parts; without a
    report, all lines and an empty `stack`.

    Only the report's first line and the stack of one thread are kept, without the launcher's frames: the thread marked
    as current or, if none is, the last one listed, which is the main thread.
    """
    begin = next((number for number in range(len(lines) - 1, -1, -1) if lines[number].startswith(_FATAL)), None)
    if begin is None:
        return Crash(lines, ())
    threads = [(number, found) for number in range(begin, len(lines)) if (found := _THREAD.match(lines[number]))]
    current = next((number for number, found in threads if found["current"]), threads[-1][0] if threads else len(lines))
    frames = takewhile(_CRASH_FRAME.match, lines[current + 1 :])
    theirs = [line for line in frames if _OURS not in line]
    return Crash(lines[:begin], (lines[begin], *lines[current : current + 1], *theirs[:_CRASH_FRAMES]))


def stacks_in(lines: Sequence[str]) -> list[str]:
    """Return the lines that faulthandler wrote about threads, for each thread a heading and its frames, without those
    of the zygote, which is below every rank's program.
    """
    found, inside = list[str](), False
    for line in lines:
        inside = _THREAD.match(line) is not None or (inside and line.startswith("  "))
        if inside and _OURS not in line:
            found.append(line)
    return found


def stuck_at(tail: Sequence[str]) -> str:
    """Return where a rank was when its stacks were logged, as `file:line in name`; "" if `tail`, its last log lines,
    contains no stacks.

    It is the innermost frame of the user's own code, or of all code if none is the user's.
    """
    stacks = stacks_in(tail)
    heads = [number for number, line in enumerate(stacks) if _THREAD.match(line)]
    current = next((number for number in reversed(heads) if stacks[number].startswith("Current")), None)
    begin = current if current is not None else heads[0] if heads else len(stacks)
    frames = takewhile(lambda frame: frame is not None, map(_CRASH_FRAME.match, stacks[begin + 1 :]))
    return _where([frame for frame in frames if frame is not None])


def main_stack(lines: Sequence[str]) -> tuple[Frame, ...]:
    """Return the main thread's frames, innermost first, from the lines that faulthandler wrote; () if it wrote none.
    faulthandler lists the main thread last.
    """
    stacks = stacks_in(lines)
    heads = [number for number, line in enumerate(stacks) if _THREAD.match(line)]
    found = map(_CRASH_FRAME.match, stacks[heads[-1] + 1 :] if heads else ())
    return tuple(Frame(one["file"][-300:], int(one["line"]), one["name"][:200]) for one in found if one)[:MOST_FRAMES]


def last_exception(tail: Sequence[str]) -> ExceptionReport | None:
    """Return the exception or crash that the end of a log shows, or None if it shows neither."""
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
    """Return the last exception that the lines `tail`, the end of a log, show, and where in the code it was raised if
    they tell it; None if they show no exception.
    """
    lines = [_RANK.sub("", line) for line in tail]
    for number in range(len(lines) - 1, -1, -1):
        if thrown := _TERMINATED.match(lines[number]):
            return _cpp_exception(thrown["kind"], lines[number + 1 :])
        if _EXCEPTION.match(lines[number]):
            where, module = _place(lines[:number])
            return ExceptionReport(line=lines[number], where=where, raised=(Raised(lines[number], module),))
    return None


def _place(before: Sequence[str]) -> tuple[str, str]:
    """Return (the user's innermost frame as `file:line in name`, the module that raised the exception) of the last
    traceback in the log's lines `before` the exception's own line. Each is "" if it is not found.
    """
    frames = []
    for line in reversed(before):
        if line.strip() == _BEGINS:
            break
        if frame := _FRAME.match(line):
            frames.append(frame)
    module = next((name for one in frames if (name := _module(one["file"]))), "")
    return _where(frames), module


def _where(frames: Sequence[re.Match[str]]) -> str:
    """Return as `file:line in name` the innermost frame of the user's own code, or the innermost of all if none is; ""
    without frames. `frames` are a traceback's lines as matched, the innermost frame first.
    """
    own = next((one for one in frames if _is_own(one["file"])), frames[0] if frames else None)
    return f"{Path(own['file']).name}:{own['line']} in {own['name']}" if own else ""


def _is_own(path: str) -> bool:
    """Return whether the source file at `path` belongs to the user: it is neither in site-packages nor in Python's own
    library.
    """
    return "-packages/" not in path and not _STANDARD_LIBRARY.search(path)


def _cpp_exception(kind: str, after: Sequence[str]) -> ExceptionReport:
    """Return the exception of type `kind` that the C++ runtime reported before it aborted the process.

    Its message is taken from the lines of the log `after` that report; if none has it, only the type is returned.
    """
    what = next((said["text"] for line in after if (said := _WHAT.match(line))), "")
    line = f"{kind}: {what}" if what else kind
    return ExceptionReport(line=line, raised=(Raised(line),))


def _module(path: str) -> str:
    """Return the module's name for a source path: dotted for an installed package, only the file's stem for other code,
    "" for the standard library.
    """
    outside, packages, inside = path.rpartition("-packages/")
    if packages:
        return inside.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return "" if _STANDARD_LIBRARY.search(outside or path) else Path(path).stem
