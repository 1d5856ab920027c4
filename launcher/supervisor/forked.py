"""Start a supervisor as a fork of a server, which has imported most of what a supervisor needs.

`/proc` shows the process as if its command had been executed: its environment names its run, and `ps` its command.
"""

import ctypes
import os
import sys
import threading
import traceback
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from launcher.run.identity import stat_fields
from launcher.run.processes import TAG

_ARGUMENTS_FROM, _ENVIRON_TO = 45, 48  # of the words in /proc/PID/stat after the name: from, to; from, to


def fork_supervisor(
    argv: Sequence[str], env: Mapping[str, str], run_dir: Path, stderr: int, fds: Sequence[int]
) -> bool:
    """Start the supervisor of the run in `run_dir` as a fork of this process, with the command `argv`, in the
    environment `env`; return True once it has detached itself, or has failed before. It gets the descriptors `fds`, and
    writes its errors to `stderr`.

    Return False without a fork if this process has other threads, which a fork would lack, or too little memory behind
    its arguments for the command line that `ps` is to show.
    """
    start, shown = _shown(argv, run_dir)
    if not shown or len(os.listdir("/proc/self/task")) > 1:
        return False
    child = os.fork()
    if child == 0:
        try:
            os.environ.clear()
            os.environ.update(env)
            ctypes.memmove(start, shown, len(shown))  # nothing refers to the first environment any more
            _become(argv, stderr, fds)
        finally:
            os._exit(1)
    os.waitpid(child, 0)  # it detaches itself by a fork of its own
    return True


def _become(argv: Sequence[str], stderr: int, fds: Collection[int]) -> NoReturn:
    """Run the supervisor with the command `argv` in this process, in a session of its own, and exit with its exit code.
    Its errors go to the descriptor `stderr`. All other descriptors of the server are closed except `fds`, whose numbers
    are in the command.
    """
    os.setsid()
    os.chdir("/")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd, wanted in ((nowhere, 0), (nowhere, 1), (stderr, 2)):
        os.dup2(fd, wanted)
    for fd in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *fds}:
        try:
            os.close(fd)
        except OSError:
            continue  # of the list itself
    code = 1
    try:
        from launcher.supervisor.__main__ import main  # late: the server itself needs none of it

        code = main(argv[argv.index("launcher.supervisor") + 1 :])
    except BaseException:  # noqa: BLE001 - the interpreter would print it, too; nothing of the server may go on here
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - waits for threads, as multiprocessing does
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _shown(argv: Sequence[str], run_dir: Path) -> tuple[int, bytes]:
    """Return (address, bytes): where this process's arguments lie in its memory, and what a fork of it has to write
    there, so that /proc shows it as a supervisor. Return (0, b"") if there is too little room.

    The bytes replace the arguments and the first environment, which lies behind them, by the command `argv` and the
    variable that marks processes of the run. The command may be longer than the arguments were: the kernel shows it
    whole if the byte at which they ended is no NUL.
    """
    words = stat_fields(os.getpid())
    start, end, environ, environ_end = map(int, words[_ARGUMENTS_FROM : _ENVIRON_TO + 1])
    command = b" ".join(map(os.fsencode, (Path(argv[0]).name, *argv[1:]))) + b"\0"
    shown = command.ljust(end - start, b"\0") + f"{TAG}=".encode() + os.fsencode(run_dir) + b"\0"
    is_enough = start > 0 and end == environ and len(shown) <= environ_end - start
    return (start, shown.ljust(environ_end - start, b"\0")) if is_enough else (0, b"")
