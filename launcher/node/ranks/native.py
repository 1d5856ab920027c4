"""Read the native (C) stack of a rank's main thread with py-spy or gdb, if one of them is installed. A look (RankLook)
is the record of what one rank was doing when it was inspected, with its pid; the native stack is added to it.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path

from msgspec.structs import replace

from launcher.errors import said_by_the_system
from launcher.run.hangs import MOST_FRAMES, RankLook
from launcher.run.identity import process_id
from launcher.run.processes import signal_process

BOUND_S = 2.0  # both stop the process meanwhile: py-spy for a tenth of a second, gdb for a second or more
_MOST_AT_ONCE = 8  # each takes 100 MB
_LONGEST_LINE = 200
# gdb takes a dozen seconds to read the symbols of all that torch loads.
_LIBRARIES = r"/lib\(c\|python\|ffi\|gloo\|nccl\|cuda\)[^/]*$"
_GDB_SETTINGS = (  # arguments may be secrets
    "auto-load off", "debuginfod enabled off", "auto-solib-add off", "pagination off", "print frame-arguments none",
)  # fmt: skip
_GDB_FRAME = re.compile(r"#\d+ +(?:0x[0-9a-f]+ in )?(.*)")


def with_native(looks: Sequence[RankLook], bound_s: float = BOUND_S) -> list[RankLook]:
    """Return the looks, with the native stack added to each whose rank runs or sleeps. Take at most `bound_s` seconds.

    py-spy stops the rank for a moment. Without it gdb is used, but only for a rank that did not answer, because gdb
    stops the process for long. If a tool fails or may not trace the rank, the stack is one line that says why; without
    a tool it stays empty.
    """
    until = time.monotonic() + bound_s
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        found = {look.rank: pool.submit(_native, look, until) for look in sorted(looks, key=lambda one: one.answered)}
    return [replace(look, native=found[look.rank].result()) for look in looks]


def _native(look: RankLook, until: float) -> tuple[str, ...]:
    """Return the native stack of the main thread of the rank in `look`, found before the time `until` by
    `time.monotonic`. Return () if no tool is installed, or unless the kernel shows the rank as running or sleeping (R
    or S).
    """
    if look.ended or look.state not in ("R", "S"):
        return ()  # tracing would wait for the kernel, or take the process from what stopped it
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    if tool := shutil.which("py-spy", path=path):
        return _traced([tool, "dump", "--native", "--pid", str(look.pid)], look, until, _py_spy_frames)
    if not look.answered and (tool := shutil.which("gdb", path=path)):
        settings = [word for setting in _GDB_SETTINGS for word in ("-iex", f"set {setting}")]
        commands = ["-ex", f"sharedlibrary {_LIBRARIES}", "-ex", f"backtrace {MOST_FRAMES}"]
        argv = [tool, "-nx", "-nh", "-batch", *settings, "-p", str(look.pid), *commands]
        return _traced(argv, look, until, _gdb_frames)
    return ()


def _traced(
    argv: Sequence[str], look: RankLook, until: float, frames_in: Callable[[Sequence[str], int], list[str]]
) -> tuple[str, ...]:
    """Run the command line `argv`, a tracer that is to trace the rank of `look`, and return the frames in its output,
    or one line that says why there are none.

    `argv` contains the rank's pid. `frames_in` gets the output's lines and that pid, and returns the frames. Return ()
    if the rank's process has ended or no time is left before `until` by `time.monotonic`.
    """
    name, process, left_s = Path(argv[0]).name, process_id(look.pid), until - time.monotonic()
    if process is None or left_s <= 0:
        return ()
    try:
        tracer = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return (f"{name}: {said_by_the_system(error)}",)
    with tracer:
        try:
            said = tracer.communicate(timeout=left_s)[0].splitlines()
        except subprocess.TimeoutExpired:
            os.killpg(tracer.pid, signal.SIGKILL)  # with its children: gdb has one that is stopped, and has our pipe
            tracer.communicate()
            signal_process(process, signal.SIGCONT)  # the SIGSTOP of a tracer that has just begun outlives it
            return (f"{name}: took longer than {left_s:.2g} s",)
    if frames := frames_in(said, look.pid):
        return tuple(frame[:_LONGEST_LINE] for frame in frames[:MOST_FRAMES])
    return (f"{name}: {_why(said)}"[:_LONGEST_LINE],)


def _py_spy_frames(lines: Sequence[str], pid: int) -> list[str]:
    """Return the main thread's frames, native and Python ones, innermost first, from py-spy's output about the process
    `pid`.
    """
    begin = next((number for number, line in enumerate(lines) if line.startswith(f"Thread {pid} ")), len(lines))
    return [line.strip() for line in takewhile(lambda line: line.startswith(" "), lines[begin + 1 :])]


def _gdb_frames(lines: Sequence[str], _: int) -> list[str]:
    """Return the frames in gdb's output, innermost first, up to the first one for which gdb finds no function and no
    library; the frames after such a one are guesses. The pid is not used, as gdb prints no other thread.
    """
    found = [match[1] for line in lines if (match := _GDB_FRAME.match(line))]
    return [*takewhile(lambda frame: frame != "?? ()", found)]


def _why(said: Sequence[str]) -> str:
    """Return the first line of a tracer's output (py-spy or gdb) that reports an error or a denied permission. Return
    "it printed no stack" if none does.
    """
    return next((line.strip() for line in said if re.search("denied|not permitted|rror", line)), "it printed no stack")
