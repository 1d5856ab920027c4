"""The zygote: a process that imports once what ranks need and forks ranks on request (mode `serve` for one agent,
`lend` for an owner that starts many runs); or, in mode `run`, becomes one rank without a fork. A visitor is a user's
`launch debug` that is connected to a rank. An order describes the rank that a process becomes: its program,
environment, folder and log. A standby is a fork of the zygote that replaces it when it dies; a run's supervisor is the
process that opens its attempts. See ZYGOTE.md.

    PYTHON zygote.py serve FD AGENT_PID     FD: one end of a Unix stream socket pair, JSON lines both ways
    PYTHON zygote.py lend FD OWNER_PID      likewise, for many runs: it has a copy of itself in the agent of each
    PYTHON zygote.py run FD [AGENT_PID]     FD: a pipe with one order, a JSON line

The file is self-contained: it is run by path under the user's interpreter, which may lack `launcher` and be an older
Python. So it uses nothing but the standard library and the syntax of Python 3.9.
"""
# ruff: noqa: UP036, UP045 - Python 3.9 has neither sys.orig_argv nor `X | None`

import sys

if sys.version_info < (3, 9):
    sys.exit(f"Python {sys.version_info[0]}.{sys.version_info[1]} is too old: ranks need 3.9 or newer")

HAS_PATH_0 = not (sys.flags.isolated or getattr(sys.flags, "safe_path", False))
if __name__ == "__main__" and HAS_PATH_0:
    del sys.path[0]  # our own folder, put there by the interpreter: our neighbours must not shadow the user's modules

import atexit
import contextlib
import ctypes
import errno
import faulthandler
import fcntl
import functools
import gc
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import re
import resource
import select
import signal
import socket
import struct
import time
import traceback
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn, Optional

PR_SET_PDEATHSIG, PR_GET_TID_ADDRESS = 1, 40
SYS_CLONE = {"x86_64": 56, "aarch64": 220}
CLONE_PARENT, CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000
MAX_LINE_BYTES = 1 << 22
MAX_HANDED = 250  # descriptors that come with one message: the kernel passes no more
TAG, ROOM = "LAUNCH_RUN_DIR", "LAUNCH_TAG_ROOM"
# What of an environment has nothing to do with imports. CUDA reads its variable when it is first used.
OF_A_RUN = ("LAUNCH_", "TORCHELASTIC_", "PYTHONPATH", "CUDA_VISIBLE_DEVICES")
PROGRESS, RESERVE = "LAUNCH_PROGRESS", "LAUNCH_RESERVE"
PLACE, OFFERED = "LAUNCH_AGENT_PLACE", "LAUNCH_ZYGOTE"  # what a supervisor and an agent are told of theirs
REPORT_BYTES = 4000  # below PIPE_BUF, so that a report reaches the FIFO whole or not at all
CANNOT_START = 125  # exit code of a rank whose log, folder or environment could not be had
# The agent decides what ends. Blocked, not ignored: a signal that comes while a newborn rank is still getting ready
# waits for it instead of being lost. USR1 and USR2 because Slurm sends them to every process of a step.
BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# An open one of these means that a driver is initialised, which does not survive a fork.
DEVICES = ("/dev/nvidia", "/dev/kfd")
MAX_CHAIN = 8  # exceptions in one report
LOOK_S, MOST_STOPPED = 1.0, 3  # a stopped agent is seen so often, and so many times, before it is killed
# Variables that only a rank has: a process in reserve does not know them yet.
OF_A_RANK = {
    "RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT", PROGRESS,
}  # fmt: skip
# Modules whose `rank_zero_only.rank` is set at import, and from which variable.
NOTED_RANKS = {"lightning_utilities.core.rank_zero": "RANK", "torchmetrics.utilities.prints": "LOCAL_RANK"}

# Libraries loaded beside torch that do nothing at the end of a process (`may_act_at_exit`).
SILENT_PACKAGES = {
    "PIL", "cuda", "msgspec", "numpy", "numpy.libs", "nvidia", "pillow.libs", "torch", "torchvision",
    "torchvision.libs", "triton", "xxhash", "yaml",
}  # fmt: skip
SILENT_LIBRARIES = {
    "ld", "ld-linux-aarch64", "ld-linux-x86", "libbz2", "libc", "libcrypto", "libdl", "libexpat", "libffi",
    "libfribidi", "libgcc_s", "libgomp", "liblzma", "libm", "libnuma", "libpthread", "libpython3", "librt",
    "libsqlite3", "libssl", "libstdc++", "libutil", "libuuid", "libz",
}  # fmt: skip

FRAME = re.compile(r'\s+File "([^"]+)", line (\d+), in (.+)')  # as a traceback shows one

AT_START = dict(os.environ)
LIBC = ctypes.CDLL(None, use_errno=True)


class Order(NamedTuple):
    """The program that a rank process becomes, and everything that it starts with.

    `kind` is script, module or command; `unset` names variables to remove, `progress` the FIFO for reports,
    `dump_signal` the signal upon which it writes its stacks (0 for none), `debug` where a visitor reaches its debugger.
    """

    kind: str  # script, module or command
    target: str  # the script's path, the module's name, or the command's path or name
    args: Sequence[str]  # of the program, without its own name
    cwd: str
    env: dict[str, str]  # added to the present environment
    log: str  # path of the file for stdout and stderr
    unset: Sequence[str] = ()
    stdin: str = os.devnull
    progress: Optional[str] = None  # path of the FIFO for reports, such as that of an uncaught exception
    dump_signal: int = 0  # upon this signal, or a crash, all stacks are written into the log; 0: never
    debug: str = ""  # Unix socket on which a breakpoint() waits for a debugger; "": Python's own breakpoint()
    umask: Optional[int] = None  # the user's; None: as the agent has it
    limits: Sequence[tuple[int, int]] = ()  # (number as in `resource`, the user's soft limit) if the agent's differs


Frame = tuple[str, int, str]  # file, line, name of the function


class WorkerError(NamedTuple):
    """The exception of a child process: the last line of its traceback, and its frames, outermost first."""

    line: str
    frames: Sequence[Frame]


class Born(NamedTuple):
    """A forked rank that has not been reported to the agent yet, and the descriptor `go` whose writing lets it
    continue.
    """

    pid: int
    go: int  # the descriptor whose writing lets the rank continue


class NoFork(Exception):
    """Raised with the reason why this process cannot fork, or cannot become the rank."""


class Standby(Exception):
    """Raised in a forked process that is to serve an agent later.

    It carries the socket on which the agent will call it into service, the agent's pid, and the socket on which it
    receives the next agent's arguments if that agent dies, or -1.
    """


def order_from(words: Any) -> Order:
    """Return the order in a decoded JSON message, which says what program a rank is to run; raise NoFork if it is
    malformed.
    """
    try:
        order = Order(**words)
        texts = (order.target, order.cwd, order.log, order.stdin, *order.args, *order.unset, *order.env.values())
    except (TypeError, AttributeError) as error:
        raise NoFork(f"no order: {error}") from None
    if order.kind not in PROGRAMS or not all(isinstance(text, str) for text in texts):
        raise NoFork(f"no order: kind {order.kind!r}, or a value that is no text")
    return order


# --- becoming an ordinary process ---


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent `parent` ends; end at once if the parent has ended already."""
    signal_at_death_of_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def wait_until_ended(pid: int) -> None:
    """Wait until the process `pid`, a child of any process, has ended, without reaping it; return at once if there is
    none.
    """
    with contextlib.suppress(ProcessLookupError):  # it has ended, and was waited for
        handle = os.pidfd_open(pid)
        select.select([handle], [], [])
        os.close(handle)


def fork_sibling() -> int:
    """Fork and return as os.fork does, except that the child's parent is this process's own parent; raise OSError if
    that is impossible.

    A process between the two would have the same effect, but it costs a second fork, which takes 10 ms and more after
    torch is imported. The call does not go through glibc's fork, so handlers by pthread_atfork are not called; this
    process, with one thread, does not need them.
    """
    number = SYS_CLONE.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, "clone is not known on this machine")
    tid = ctypes.c_void_p()
    known = LIBC.prctl(PR_GET_TID_ADDRESS, ctypes.byref(tid), 0, 0, 0) == 0
    at = ctypes.c_long(tid.value if known and tid.value else 0)
    flags = CLONE_PARENT | signal.SIGCHLD | (CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID if at.value else 0)
    none, python = ctypes.c_long(0), ctypes.pythonapi
    with_gil = ctypes.PyDLL(None, use_errno=True)
    python.PyOS_BeforeFork()
    # The last two change places between machines; the one that is not the thread's id is ignored.
    pid = int(with_gil.syscall(ctypes.c_long(number), ctypes.c_long(flags), none, none, at, at))
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone")
    return pid


def fork_for_subreaper() -> int:
    """Fork a child whose parent is not this process but the next subreaper above it, and return as os.fork does: the
    child's pid, or 0 in the child.

    The process that forks the child is itself a fork, which ends at once. Raise NoFork or OSError if a fork fails.
    """
    pids, pid_of_it = os.pipe()
    try:
        between = os.fork()
    except OSError:
        close([pids, pid_of_it])
        raise
    if between == 0:
        between = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            os._exit(1)
        if pid:
            os.write(pid_of_it, b"%d" % pid)
            os._exit(0)
        close([pids, pid_of_it])
        wait_until_ended(between)
        return 0
    os.close(pid_of_it)
    pid = int(os.read(pids, 32) or 0)
    os.close(pids)
    os.waitpid(between, 0)
    if not pid:
        raise NoFork("the process between this one and the rank could not fork")
    return pid


def wait_for_input(fds: Sequence[int], agent: int) -> None:
    """Wait until one of the descriptors `fds` can be read. Kill the process `agent`, which is the parent of ranks, if a
    signal has stopped it for three seconds.

    A stopped agent renews no lease, and its ranks die with it. Its watchdog and its supervisor end them earlier, unless
    they are stopped or killed too.
    """
    poll, stopped = select.poll(), 0  # a descriptor of a coordinator of thousands of agents is beyond those of select
    for fd in fds:
        poll.register(fd, select.POLLIN)
    while not poll.poll(1000 * LOOK_S):
        stopped = stopped + 1 if is_stopped_by_signal(agent) else 0
        if stopped >= MOST_STOPPED:
            with contextlib.suppress(ProcessLookupError):
                os.kill(agent, signal.SIGKILL)


def is_stopped_by_signal(pid: int) -> bool:
    """Return whether a signal such as SIGSTOP has stopped the process `pid`; return False if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] == b"T"
    except OSError:
        return False


def name_this(name: str) -> None:
    """Show this process under `name` in `ps -o comm` and `top`, cut to 15 characters."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


def signal_at_death_of_parent(number: int) -> None:
    """Set the signal that the kernel sends at the parent's death; 0 means none."""
    if LIBC.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def open_fds() -> list[int]:
    """Return the open descriptors above 2."""
    return [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]


def close(fds: Sequence[int]) -> None:
    """Close the descriptors, ignoring -1 and those that are closed already."""
    for fd in fds:
        if fd >= 0:  # of a negative number os.closerange would close all
            os.closerange(fd, fd + 1)


def usual_signals() -> None:
    """Restore Python's own signal handlers, whatever the parent of the agent had ignored or blocked."""
    for number in (*BLOCKED, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def settle(order: Order) -> None:
    """Give this process the session, streams, environment, limits and folder of the rank that the order describes."""
    with contextlib.suppress(PermissionError):  # it leads a session already: it was started with one of its own
        os.setsid()
    redirect(os.open(order.stdin, os.O_RDONLY), 0)
    redirect(os.open(order.log, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW, 0o600), 1, 2)
    for stream in (sys.stdout, sys.stderr):  # whole lines, so that those of several processes do not mix in the log
        stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    for name in order.unset:
        os.environ.pop(name, None)
    os.environ.update(order.env)
    for kind, soft in order.limits:
        resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))
    if order.umask is not None:
        os.umask(order.umask)
    os.chdir(order.cwd)
    os.environ["PWD"] = order.cwd  # as a shell has it that came here by `cd`
    if order.dump_signal and order.kind != "command":
        faulthandler.enable(file=2, all_threads=True)  # at a crash too
        faulthandler.register(order.dump_signal, file=2, all_threads=True, chain=False)
    if order.debug and order.kind != "command" and "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = functools.partial(stop_here, Breakpoints(order))
    if "numpy.random" in sys.modules:  # siblings would draw the same numbers; `random` reseeds itself after a fork
        sys.modules["numpy.random"].seed()
    if "multiprocessing.process" in sys.modules:  # it noted at import where spawned children look for relative paths
        setattr(sys.modules["multiprocessing.process"], "ORIGINAL_DIR", os.getcwd())  # noqa: B010 - mypy
    for name, variable in NOTED_RANKS.items():
        only = getattr(sys.modules.get(name), "rank_zero_only", None)
        if hasattr(only, "rank") and variable in os.environ:
            setattr(only, "rank", int(os.environ[variable]))  # noqa: B010 - mypy
    if RESERVE in order.env:
        os.environ.encodekey = exit_if_asked_as_rank(os.environ.encodekey)
    FLIGHT.settle(order)
    END.born()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def redirect(source: int, *targets: int) -> None:
    """Make the target descriptors copies of `source`, and close `source` unless it is one of them."""
    for target in targets:
        os.dup2(source, target)
    if source not in targets:
        os.close(source)


def exit_if_asked_as_rank(encode: Callable[[str], bytes]) -> Callable[[str], bytes]:
    """Return a function in place of `encode`, with which os.environ encodes the name of a variable that is read. It
    ends the process if its program reads one that only a rank has, such as RANK, while the process is in reserve:
    started in advance, to become a rank later.

    With no value or a wrong one the program would go on as another rank than it becomes later.
    """

    def encoded(name: str) -> bytes:
        """Return the encoded name, or end the process if user code reads a rank's variable."""
        known = encode(name)
        if name in OF_A_RANK and RESERVE in os.environ and (place := place_that_asks(name)):
            said = (
                f"launch: {place} asks for {name} before the training begins, and a process in reserve is no rank yet"
            )
            print(said, file=sys.stderr, flush=True)
            os._exit(1)
        return known

    return encoded


def place_that_asks(name: str) -> str:
    """Return the line of code on the caller's stack that reads the environment variable `name`, such as `train.py:41`.
    Return "" if the trainer reads it, or a package does and it is not LAUNCH_PROGRESS: they do so mostly for logs.
    """
    frame = sys._getframe(2)  # noqa: SLF001 - as pdb itself does
    while frame.f_back is not None and is_standard(frame.f_code.co_filename):
        frame = frame.f_back
    path = frame.f_code.co_filename
    by_a_package = "-packages" in path and name != PROGRESS
    by_trainer = str(frame.f_globals.get("__name__")).partition(".")[0] == "trainer"
    return "" if by_a_package or by_trainer else f"{os.path.basename(path)}:{frame.f_lineno}"


# --- its end ---


class EndOfRank:
    """The end of a rank's interpreter, without the work of freeing what the zygote has imported.

    Call `born` in the new rank, and `left_by` with what its program gave to sys.exit; `finish` is an atexit handler.

    To free a few hundred thousand objects of torch, on pages that are shared until then, takes seconds of CPU time; the
    kernel frees them at once. Objects of the program itself are freed: its modules are emptied in the interpreter's own
    order, so that `__del__`, `finally` and unclosed files behave as at the end of any Python process.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._imported: dict[str, Any] = {}
        self.code: Optional[int] = None  # that the program ends with; None: the interpreter decides

    def born(self) -> None:
        """Record in a new rank which modules the zygote had imported, so that only later ones are freed."""
        self._pid, self._imported = os.getpid(), dict(sys.modules)

    def left_by(self, code: object) -> None:
        """Keep the exit code that the program gave to sys.exit, for `finish` to end the process with. For text, or a
        number too large for an exit code, `finish` leaves the end to the interpreter.
        """
        if code is None or (type(code) in (int, bool) and abs(int(code)) < 1 << 31):  # type: ignore[call-overload]
            self.code = int(code or 0)  # type: ignore[call-overload]

    def finish(self) -> None:
        """End the process with the program's exit code. The interpreter calls this after threads have ended and all
        other atexit handlers have run.

        Return, so that the interpreter ends the process as usual, if the exit code is not known, this is a fork of the
        rank, `needs_interpreters_end` is true (CUDA is in use, for example), or a stream cannot be flushed.
        """
        if self.code is None or os.getpid() != self._pid or needs_interpreters_end():
            gc.unfreeze()  # else its last collection misses what is frozen, and libraries complain about leaks
            return
        try:
            flush_streams()
            sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
            getattr(atexit, "_clear")()  # noqa: B009 - mypy: handlers that were called hold what they are of
            flush_files()
            empty([name for name, one in sys.modules.items() if self._imported.get(name) is not one])
            flush_files()
            flush_streams()
        except Exception:  # noqa: BLE001 - a stream can be anybody's; the interpreter says what is wrong, and gives 120
            gc.unfreeze()
            return
        # With the lock of the interpreter held: no thread runs Python while libraries clear up after themselves.
        libc = ctypes.PyDLL(None)
        if not may_act_at_exit():
            libc.fflush(None)
            os._exit(self.code & 0xFF)
        libc.exit(self.code)


END = EndOfRank()


def needs_interpreters_end() -> bool:
    """Return whether this process must end as Python usually does, by freeing everything in the interpreter's own
    order, and not by leaving that to the kernel: threads run, CUDA is in use, or a process group exists.
    """
    threads = len(sys._current_frames()) - FLIGHT.runs  # noqa: SLF001 - of threads of every kind
    if gc.get_freeze_count() == 0 or threads > 1:
        return True
    torch, cuda = sys.modules.get("torch.distributed"), sys.modules.get("torch.cuda")
    connected = torch is not None and torch.is_available() and torch.is_initialized()
    return connected or (cuda is not None and bool(cuda.is_initialized()))


def may_act_at_exit() -> bool:
    """Return whether a loaded library may have work to do at the process's exit, such as a profiler's.

    The exit handlers of torch have no such work, but running them takes half a second of CPU time. Return False only if
    every loaded library is in a list of those without such work.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.__file__ or "LD_PRELOAD" in AT_START or "LD_AUDIT" in AT_START:
        return True
    packages = os.path.dirname(os.path.dirname(torch.__file__)) + os.sep
    programs = {os.path.realpath(sys.executable), os.path.realpath("/proc/self/exe")}
    return not all(is_silent(path, packages) for path in mapped_code() if path not in programs)


def is_silent(path: str, packages: str) -> bool:
    """Return whether the library at `path` is in a fixed list of those that do nothing at exit but free memory;
    `packages` is the folder of installed packages.
    """
    if path.startswith(packages):
        return path[len(packages) :].partition(os.sep)[0] in SILENT_PACKAGES
    folder, name = os.path.split(path)
    return os.path.basename(folder) == "lib-dynload" or re.split(r"[-.]\d|\.so", name)[0] in SILENT_LIBRARIES


def mapped_code() -> set[str]:
    """Return the paths of the files with machine code, programs and shared libraries, that are mapped into this
    process.
    """
    with open("/proc/self/maps") as file:
        found = (line.rstrip("\n").split(None, 5) for line in file)
        return {words[5] for words in found if len(words) == 6 and "x" in words[1] and words[5][0] == "/"}


def flush_streams() -> None:
    """Flush stdout and stderr, except one that is closed or does not exist."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()


def empty(names: Sequence[str]) -> None:
    """Free the modules with these names in sys.modules, as the interpreter does at its end. Objects that only the
    modules' entries there kept alive go first, while their destructors still find the globals that they use; then each
    module's globals are set to None.
    """
    there = []
    for name in names:
        with contextlib.suppress(TypeError):  # what stands there may be anything
            there.append(weakref.ref(sys.modules[name]))
        sys.modules[name] = None  # type: ignore[assignment] - as the interpreter does: it cannot be imported anew
    gc.collect()
    for reference in reversed(there):
        values = getattr(reference(), "__dict__", {})
        own = [name for name in values if name.startswith("_") and not name.startswith("__")]
        for name in (*own, *(name for name in [*values] if name not in own and name != "__builtins__")):
            values[name] = None
    gc.collect()


def flush_files() -> None:
    """Flush all open files, for a rank that is about to end without the interpreter's last garbage collection, which
    would do it.
    """
    for one in gc.get_objects():
        if type(one) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
            with contextlib.suppress(OSError, ValueError):
                one.flush()


# --- becoming the user's program: each gives what is left to call ---


def script(order: Order) -> Callable[[], Any]:
    """Prepare this process to run a Python file, the order's target, as `python TARGET ARGS` would, with that sys.argv;
    return the function that then runs it. If the file cannot be read, print why and exit with code 2, as Python does.
    """
    path = os.path.join(os.getcwd(), order.target)
    set_argv([order.target], order.args, os.path.dirname(os.path.realpath(path)))
    main = fresh_main(importlib.machinery.SourceFileLoader("__main__", path), __file__=path)
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        print(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        sys.exit(2)
    return functools.partial(exec, compile(source, path, "exec", dont_inherit=True), main)


def module(order: Order) -> Callable[[], Any]:
    """Prepare this process to run a module, the order's target, as `python -m TARGET ARGS` would, with that sys.argv;
    return the function that then runs it, the one of runpy that the interpreter itself calls.
    """
    import runpy  # here, because a script has no use for the modules that it brings along

    set_argv(["-m", order.target], order.args, os.getcwd())
    main = fresh_main(importlib.machinery.BuiltinImporter)
    for name in ("__file__", "__cached__"):
        main.pop(name, None)
    return functools.partial(getattr(runpy, "_run_module_as_main"), order.target)  # noqa: B009 - mypy


def command(order: Order) -> Callable[[], Any]:
    """Return a call that replaces this process by the order's command as a shell would start it: with default signals,
    exit code 127 if it is not found and 126 if it is not executable.
    """
    return functools.partial(execute, order.target, [order.target, *order.args])


PROGRAMS = {"script": script, "module": module, "command": command}


def set_argv(start: Sequence[str], args: Sequence[str], folder: str) -> None:
    """Set the command line that the user's program sees, `start` (as after `python`) and then `args`, and the folder
    from which it imports first.
    """
    if sys.version_info >= (3, 10):
        interpreter_and_options = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv)]
        sys.orig_argv[:] = [*interpreter_and_options, *start, *args]
    sys.argv[:] = [start[0], *args]
    if HAS_PATH_0:
        unload_hiding_modules(folder)
        sys.path.insert(0, folder)


def unload_hiding_modules(folder: str) -> None:
    """Remove from sys.modules every module that has the name of one in `folder`, the folder of the user's script, but
    was loaded from elsewhere. With a `code.py` in `folder`, for example, the standard library's `code` is removed, so
    that `import code` finds the user's file.
    """
    for name in {entry.partition(".")[0] for entry in os.listdir(folder)} & set(sys.modules) - {"__main__"}:
        loaded = getattr(sys.modules[name], "__spec__", None)
        beside = importlib.machinery.PathFinder.find_spec(name, [folder])
        # Built-in and frozen modules win over files anyway, a regular package over a mere folder.
        if loaded and loaded.has_location and beside and beside.has_location and loaded.origin != beside.origin:
            for hidden in [other for other in sys.modules if other == name or other.startswith(f"{name}.")]:
                del sys.modules[hidden]


def fresh_main(loader: Any, **more: str) -> dict[str, Any]:
    """Return the globals of a new __main__ module that `loader` loads, with the names that this Python version itself
    puts there and those in `more`.
    """
    main = types.ModuleType("__main__")
    own = {name: value for name, value in globals().items() if name.startswith("__")}
    main.__dict__.update({**own, "__doc__": None, "__loader__": loader, **more})
    if "__annotations__" in own:
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    return main.__dict__


def execute(target: str, argv: list[str]) -> NoReturn:
    """Replace this process by the program `target`; exit with 127 or 126 if that fails."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(target, argv)  # noqa: S606 - the user's command, as a list, is what this is for
    except OSError as error:
        print(f"launch: cannot run {target!r}: {error.strerror}", file=sys.stderr)
        sys.exit(127 if isinstance(error, (FileNotFoundError, NotADirectoryError)) else 126)


# --- a breakpoint() ---


class Breakpoints:
    """A file object for pdb, connected to a visitor (`launch debug`) who debugs this rank; reads wait until a visitor
    is connected.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._pid = os.getpid()
        self._listener: Optional[socket.socket] = None
        self._visitor: Optional[socket.socket] = None
        self._unread = b""
        self._debugger: Any = None
        self.place = ""

    @property
    def here(self) -> bool:
        """Return whether this process is the rank, to which the socket belongs, and not a child that the script
        forked.
        """
        return os.getpid() == self._pid

    def debugger(self) -> Any:
        """Return a debugger that uses this object as its file; raise OSError if the socket cannot be created."""
        if self._listener is None:
            path = self._path
            folder, name = os.path.split(path)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            listener = socket.socket(socket.AF_UNIX)
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                listener.bind(f"/proc/self/fd/{fd}/{name}")  # a whole path may be too long for a socket
            finally:
                os.close(fd)
            os.chmod(path, 0o600)
            listener.listen(1)
            self._listener = listener
        if self._debugger is None:
            self._debugger = debugger_over(self)
        return self._debugger

    @property
    def _path(self) -> str:
        """Return the path of the debugger's socket, beside the rank's FIFO."""
        return os.path.splitext(fifo_of(self._order))[0] + os.path.splitext(self._order.debug)[1]

    def stops(self, place: str) -> None:
        """Report to the agent that the rank stands at a debugger's prompt at `place`, or with "" that it continues."""
        self.place = place
        tell(self._order, json.dumps({"breakpoint": place[:500]}).encode() + b"\n")

    def readline(self) -> str:
        """Return the next line that a visitor types; if the visitor disconnects, wait for another."""
        while b"\n" not in self._unread:
            if self._visitor is None:
                self._let_in()
                continue
            try:
                data = self._visitor.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                self._let_go()
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace") + "\n"

    def write(self, text: str) -> int:
        """Send the text to the visitor, or drop it if none is connected; return its length, as file objects do."""
        if self._visitor is not None:
            try:
                self._visitor.sendall(text.encode(errors="replace"))
            except OSError:
                self._let_go()
        return len(text)

    def flush(self) -> None:
        """Do nothing, as `write` buffers nothing."""

    def _let_in(self) -> None:
        """Wait for a visitor to connect; refuse processes of users other than this one and root."""
        if self._listener is None:
            raise EOFError
        visitor, _ = self._listener.accept()
        uid = struct.unpack("3i", visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if uid not in (0, os.getuid()):
            visitor.close()
            return
        self._visitor = visitor
        self.write(f"> {self.place}\n(Pdb) ")

    def _let_go(self) -> None:
        """Close the connection to the visitor."""
        if self._visitor is not None:
            self._visitor.close()
        self._visitor, self._unread = None, b""


def debugger_over(breakpoints: Breakpoints) -> Any:
    """Return a pdb whose terminal is the visitor connected to `breakpoints`; it reports to the agent where it stops."""
    import pdb  # noqa: T100 - what this is for; here, because hardly any rank has a breakpoint

    class Debugger(pdb.Pdb):
        """A pdb that reports where it stops."""

        def interaction(self, frame: Any, *more: Any, **named: Any) -> Any:
            """Report the place while the debugger is at its prompt."""
            if frame is not None:
                breakpoints.stops(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            try:
                return super().interaction(frame, *more, **named)
            finally:
                breakpoints.stops("")

    found = Debugger(stdin=breakpoints, stdout=breakpoints)  # type: ignore[arg-type]
    found.use_rawinput = False
    return found


def stop_here(breakpoints: Breakpoints, *args: Any, **named: Any) -> Any:
    """Stop the rank in the debugger, which waits for a visitor at the socket of `breakpoints`; ranks have this in place
    of `breakpoint()`, because they have no terminal.

    In a child that the script forked, call Python's own `breakpoint()` with `args` and `named`. In a process that waits
    to be a rank, or if the socket cannot be created, print that the breakpoint is passed over.
    """
    if not breakpoints.here:
        return sys.__breakpointhook__(*args, **named)  # noqa: T100 - the script's own
    if RESERVE in os.environ:  # a rank stops there, too
        print("launch: breakpoint() is passed over: this process waits to be a rank", file=sys.stderr)
        return None
    try:
        debugger = breakpoints.debugger()
    except OSError as error:
        print(f"launch: breakpoint() is passed over: {error}", file=sys.stderr)
        return None
    return debugger.set_trace(sys._getframe(1))  # noqa: SLF001 - as pdb itself does


# --- an uncaught exception ---


def report(error: BaseException, order: Order) -> None:
    """Report the exception that ended the program to the agent, in one line on the rank's FIFO. The line is dropped if
    the agent does not read the FIFO.
    """
    words: dict[str, Any] = {"type": type(error).__name__, "message": message_of(error), "line": last_line(error)}
    words["where"] = where(frames_of(error), order)
    words |= {"raised": [{"line": last_line(one), "module": raised_in(one)} for one in chain(error)]}
    failed_rank = getattr(error, "failed_rank", None)
    if type(failed_rank) is int and 0 <= failed_rank < 1 << 31:  # another number would void the report
        words["failed_rank"] = failed_rank
    worker = worker_exception(error)
    if worker is not None:
        words |= {"line": worker.line, "where": where(worker.frames, order)}
        words["raised"].insert(0, {"line": worker.line, "module": module_of(worker.frames)})
    tell(order, fitting(words))


def tell(order: Order, line: bytes) -> None:
    """Write a line to the rank's FIFO for its agent; drop the line if the FIFO has no reader or no room."""
    with contextlib.suppress(OSError):
        fd = os.open(fifo_of(order), os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)


def fifo_of(order: Order) -> str:
    """Return the path of the FIFO to which this process, which carries out `order`, writes its reports now; "" if it
    has none. A process in reserve (begun in advance, to become a rank later) uses the order's FIFO until it becomes a
    rank, and from then on the rank's, which LAUNCH_PROGRESS names.
    """
    if RESERVE in order.env and RESERVE not in os.environ:
        return os.environ.get(PROGRESS, "")
    return order.progress or ""


def message_of(error: BaseException) -> str:
    """Return the error's text, or a substitute if its `__str__` itself fails."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a user's own __str__ can raise anything
        return "<exception str() failed>"


def last_line(error: BaseException) -> str:
    """Return the last line of the error's traceback, such as `ValueError: text`, without further lines of the
    message.
    """
    kind = type(error)
    prefix = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    first_line = message_of(error).partition("\n")[0]
    return f"{prefix}{kind.__qualname__}" + (f": {first_line}" if first_line else "")


def chain(error: Optional[BaseException]) -> list[BaseException]:
    """Return the exception, then the one that it was raised from or while handling, then that one's and so on.

    Exceptions that a traceback does not show are left out, and so are all after the first eight.
    """
    found: list[BaseException] = []
    while error is not None and not any(error is one for one in found) and len(found) < MAX_CHAIN:
        found.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found


def raised_in(error: BaseException) -> str:
    """Return the name of the module in whose code the error was raised: that of the innermost frame of its traceback
    outside the standard library, without this file's outermost frames; or "" if there is no such frame.
    """
    stack = [frame for frame, _ in traceback.walk_tb(without_our_frames(error.__traceback__))]
    theirs = [frame for frame in stack if not is_standard(frame.f_code.co_filename)]
    return str(theirs[-1].f_globals.get("__name__", "")) if theirs else ""


def is_standard(path: str) -> bool:
    """Return whether the path is that of a file of the standard library."""
    inside = path.startswith(os.path.dirname(os.__file__) + os.sep) and "-packages" not in path
    return inside or path.startswith("<frozen ")


def cut(value: Any, length: int) -> Any:
    """Return the JSON value `value` with every text in it, at any depth, cut to `length` characters; keys stay."""
    if isinstance(value, str):
        return value[:length]
    if isinstance(value, dict):
        return {name: cut(one, length) for name, one in value.items()}
    return [cut(one, length) for one in value] if isinstance(value, list) else value


def fitting(words: dict[str, Any]) -> bytes:
    """Return the report `words`, the description of an exception, as a line of JSON of at most REPORT_BYTES; if it
    would be longer, every text in it is cut to one length at which it fits.
    """
    length = REPORT_BYTES
    while True:
        line = json.dumps({"exception": cut(words, length)}).encode() + b"\n"
        if len(line) <= REPORT_BYTES:
            return line
        length //= 2


def worker_exception(error: BaseException) -> Optional[WorkerError]:
    """Return the exception of a child process, such as a DataLoader worker, whose traceback is in the text or the cause
    of `error`; None if there is no such traceback, so that `error` is this process's own.
    """
    cause = error.__cause__
    remote = [cause] if cause is not None and type(cause).__name__.endswith("RemoteTraceback") else []
    for one in (error, *remote):
        frames: list[Frame] = []
        for line in message_of(one).rpartition("Traceback (most recent call last):\n")[2].splitlines():
            found = FRAME.match(line)
            if found:
                frames.append((found[1], int(found[2]), found[3]))
            elif frames and line.strip() and not line[0].isspace():
                return WorkerError(line.strip(), frames)
    return None


def module_of(frames: Sequence[Frame]) -> str:
    """Return the module of the innermost frame outside the standard library, derived from that frame's path; "" if
    there is no such frame.
    """
    path = next((path for path, _, _ in reversed(frames) if not is_standard(path)), "")
    inside = path.rpartition("-packages/")[2] if "-packages/" in path else os.path.basename(path)
    return os.path.splitext(inside)[0].replace("/", ".")


def frames_of(error: BaseException) -> list[Frame]:
    """Return (file, line, function) of each frame of the error's traceback, outermost first.

    The outermost frames, if they are this file's, are left out. The last frame of a SyntaxError is the line with the
    wrong syntax.
    """
    stack = traceback.walk_tb(without_our_frames(error.__traceback__))
    frames = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in stack]
    if isinstance(error, SyntaxError):
        frames.append((error.filename or "", error.lineno or 0, "<module>"))
    return frames


def where(frames: Sequence[Frame], order: Order) -> str:
    """Return the innermost frame of the user's own code as text, such as `train.py:41 in step`.

    If there is none, take the innermost frame of code that is not an installed library, or else the innermost of all.
    """
    cwd = os.path.realpath(order.cwd)
    roots = (cwd + os.sep, os.path.dirname(os.path.realpath(order.target)) + os.sep)
    users = [one for one in frames if os.path.isabs(one[0]) and "-packages" not in one[0] and not is_standard(one[0])]
    own = [
        (os.path.relpath(os.path.realpath(path), cwd), line, name)
        for path, line, name in users
        if os.path.realpath(path).startswith(roots)
    ]
    path, line, name = (own or users or frames or [("", 0, "")])[-1]
    return f"{path}:{line} in {name}"


def without_our_frames(trace: Optional[types.TracebackType]) -> Optional[types.TracebackType]:
    """Return the traceback without its outermost frames from this file."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def hide_our_frames() -> None:
    """Wrap the script's excepthook so that it gets the traceback as under `python`, without frames of this file."""
    users_hook = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Optional[types.TracebackType]) -> None:
        """Call the user's excepthook with the shortened traceback."""
        trace = without_our_frames(trace)
        users_hook(kind, error.with_traceback(trace), trace)

    sys.excepthook = hook


# --- what torch's Flight Recorder has noted ---


class FlightReader(importlib.abc.MetaPathFinder):
    """The thread of a rank that answers where the rank is and which collectives it has entered, even while the main
    thread waits. It is an import hook as well, so that it can start with the first process group of torch.

    A question is a line in a FIFO that the thread creates, beside the one for the rank's reports. It is a number that
    the asker chooses; the answer, a JSON file beside the FIFO, repeats it. With `times` before the number the line asks
    only when collectives were entered, and that answer is in a file of its own.
    """

    # A module of torch, and the function in it that torch calls once a process group exists.
    OF, AFTER = "torch.distributed.distributed_c10d", "_update_default_pg"

    def __init__(self) -> None:
        self._order: Optional[Order] = None
        self._pid = 0
        self.runs = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find torch's module of process groups as the usual finder does, with a loader that wraps its functions after
        the import. Return None for any other module.
        """
        if name != self.OF:
            return None
        sys.meta_path.remove(self)
        found = importlib.machinery.PathFinder.find_spec(name, path, target)
        if found is not None and found.loader is not None:
            execute = found.loader.exec_module

            def exec_module(module: Any) -> None:
                """Execute the module, then wrap its function."""
                execute(module)
                self._follow(module)

            setattr(found.loader, "exec_module", exec_module)  # noqa: B010 - mypy
        return found

    def settle(self, order: Order) -> None:
        """Let this process, which has become the rank that `order` describes, answer questions of its agent once it has
        a process group. The questions arrive on a FIFO of their own, beside the one named in the order. Processes that
        the rank forks do not answer, nor does a rank without that FIFO, or one whose program is a command, which
        replaces this process.
        """
        if order.kind != "command" and order.progress is not None:
            self._order, self._pid = order, os.getpid()

    def _follow(self, c10d: Any) -> None:
        """Wrap the function that torch calls once a process group exists, so that its first call starts the thread; do
        nothing if this version of torch has no such function. `c10d` is the module torch.distributed.distributed_c10d.
        """
        known = getattr(c10d, self.AFTER, None)
        if known is None:
            return  # a version of torch that we do not know

        @functools.wraps(known)
        def followed(*args: Any, **named: Any) -> Any:
            """Start the thread, then call the wrapped function."""
            self._start(c10d)
            return known(*args, **named)

        setattr(c10d, self.AFTER, followed)

    def _start(self, c10d: Any) -> None:
        """Start the thread that answers. Do nothing if it runs already, or in a process that the rank has forked.

        `c10d` is the module torch.distributed.distributed_c10d.
        """
        if self._order is None or self._pid != os.getpid() or self.runs:
            return
        import threading  # here, because a rank without process groups has no use for it

        self.runs = True
        path = os.path.splitext(fifo_of(self._order))[0]
        threading.Thread(target=self._answer, args=(c10d, path), name="launch-flight", daemon=True).start()

    def _answer(self, c10d: Any, path: str) -> None:
        """Create the FIFO `path`.look, read questions from it, one a line, and answer each by a JSON file.

        A question is a number, which its answer repeats. The number alone asks for stacks and collectives, written to
        the file `path`.flight; with a word before it, it asks only when the newest collectives were entered, written to
        `path`.entered. This goes on until an OSError, which ends the thread. `c10d` is torch.distributed's module.
        """
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        asked = f"{path}.look"
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(asked)
            os.mkfifo(asked, 0o600)
            questions = os.open(asked, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            while True:
                for question in os.read(questions, 1024).splitlines():
                    words = question.split()
                    number = words[-1] if words and words[-1].isdigit() else b"0"  # of thousands one may be cut off
                    if len(words) > 1:
                        self._tell(f"{path}.entered", {"number": int(number)}, lambda: times_of(c10d))
                    else:
                        self._tell(f"{path}.flight", {"number": int(number), **stacks_now()}, lambda: flight_of(c10d))
        except OSError as error:  # such as a removed folder: no question can come any more
            print(f"launch: what this rank waits for cannot be asked any more: {error}", file=sys.stderr)
        finally:
            self.runs = False

    def _tell(self, path: str, answer: dict[str, Any], read: Callable[[], dict[str, Any]]) -> None:
        """Write `answer` to the file at `path`, extended by what `read` returns or by the reason why `read` failed."""
        try:
            answer |= read()
        except (AttributeError, LookupError, TypeError) as error:
            answer["problem"] = f"the Flight Recorder of this version of torch cannot be read: {error}"[:400]
        with open(f"{path}.new", "w") as file:
            json.dump(answer, file)
        os.replace(f"{path}.new", path)


FLIGHT = FlightReader()
# In an answer: frames are of a collective, of a rank's main thread, and of all its threads together.
MOST_GROUPS, MOST_COLLECTIVES, MOST_FRAMES, MOST_STACK, MOST_LINES = 16, 48, 6, 16, 300
MOST_TIMES = 512  # of a group: ranks are asked within a tenth of a second, and their newest ones are to overlap


def stacks_now() -> dict[str, Any]:
    """Return `stack`, the main thread's frames as (file, line, function), innermost first, and `threads`, the stacks of
    all other threads but the calling one as lines of text. A long `stack` keeps its innermost frames, and of the others
    the outermost ones of the user's code.
    """
    import threading  # here, as it is loaded by now

    main, names = threading.main_thread().ident, {one.ident: one.name for one in threading.enumerate()}
    stacks = sys._current_frames()  # noqa: SLF001 - as faulthandler does, there is no other way
    threads: list[str] = []
    for ident, frame in stacks.items():
        if ident not in (main, threading.get_ident()):
            threads.append(f"Thread {names.get(ident, ident)} (most recent call first):"[:200])
            threads += [f'  File "{path[-300:]}", line {line} in {name[:100]}' for path, line, name in frames_in(frame)]
    stack = frames_in(stacks.get(main))
    rest = [one for one in stack[MOST_STACK:] if "-packages" not in one[0] and not is_standard(one[0])]
    return {"stack": stack[:MOST_STACK] + rest[-MOST_STACK:], "threads": threads[:MOST_LINES]}


def frames_in(frame: Optional[types.FrameType]) -> list[Frame]:
    """Return the frames of a stack, innermost first, without those of this file."""
    found: list[Frame] = []
    while frame is not None:
        if frame.f_code.co_filename != __file__:
            found.append((frame.f_code.co_filename[-300:], frame.f_lineno, frame.f_code.co_name[:200]))
        frame = frame.f_back
    return found


def flight_of(c10d: Any) -> dict[str, Any]:
    """Return a dict with `groups`: this rank's process groups with the newest collectives of each, as `group_of`
    returns them, those with an unfinished collective first and only as many as a report has room for.

    If they cannot be read, the dict has `problem`, the reason, instead. `c10d` is torch.distributed's module.
    """
    found = recorded_by_group(c10d, with_frames=True)
    if found is None:
        return {"problem": "this version of torch has no Flight Recorder for the CPU"}
    world = c10d._world  # noqa: SLF001 - nothing else knows of all groups
    groups = [group_of(world, process_group, key, own) for key, (process_group, own) in found.items()]
    groups.sort(key=lambda group: (all(one["done"] for one in group["last"]), -group["entered"]))
    return {"groups": groups[:MOST_GROUPS]}


def times_of(c10d: Any) -> dict[str, Any]:
    """Return a dict with `groups`: a list with a JSON object for each of the two largest process groups of this rank,
    as `times_of_group` makes it, with the times at which this rank entered the group's newest collectives. The list is
    empty if nothing was recorded, or if torch has no Flight Recorder. `c10d` is torch.distributed's module.
    """
    found = recorded_by_group(c10d, with_frames=False) or {}
    world = c10d._world  # noqa: SLF001 - nothing else knows of all groups
    groups = [times_of_group(world, group, key, own) for key, (group, own) in found.items()]
    groups = sorted((one for one in groups if one["entered_us"]), key=lambda one: -len(one["ranks"]))
    return {"groups": groups[:2]}


def times_of_group(world: Any, process_group: Any, key: tuple[str, str], entries: Sequence[dict[str, Any]]) -> Any:
    """Return when each collective of one process group was entered, as a JSON object with the fields of `GroupTimes`
    (launcher/run/hangs.py): the times are in microseconds, the newest last. They go back to the first gap in the
    collectives' sequence numbers, and are at most 512.

    `world` is torch's record of all groups, `key` is (the group's name, its backend), `entries` are its entries of the
    Flight Recorder.
    """
    newest = max(one["pg_id"] for one in entries)
    times = {
        one["collective_seq_id"]: one["time_created_ns"] // 1000
        for one in entries
        if one["pg_id"] == newest and not one["is_p2p"]
    }
    last = max(times, default=0)
    first = last
    while first - 1 in times and first > last - MOST_TIMES + 1:
        first -= 1
    known = [times[seq] for seq in range(first, last + 1)] if times else []
    return {
        "name": "/".join(key)[:200],
        "ranks": sorted(world.pg_group_ranks.get(process_group, ())),
        "first": first,
        "since_us": known[0] if known else 0,
        "entered_us": [one - known[0] for one in known],
    }


def recorded_by_group(c10d: Any, *, with_frames: bool) -> Optional[dict[tuple[str, str], tuple[Any, Any]]]:
    """Return the entries of torch's Flight Recorder by (name, backend) of each existing process group, or None if torch
    has no recorder.

    Each value is (process group, entries). With `with_frames` the entries have their source lines, which takes far
    longer to read.
    """
    core = sys.modules["torch"]._C._distributed_c10d  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other
    cuda = sys.modules.get("torch.cuda")
    names = ["_dump_fr_trace"]
    if cuda is not None and cuda.is_initialized():
        names.append("_dump_nccl_trace")
    readers = [getattr(core, name) for name in names if hasattr(core, name)]
    if not readers:
        return None
    import pickle  # here, because hardly any rank is ever asked

    dumps = [pickle.loads(read(True, with_frames, False)) for read in readers]  # noqa: S301 # nosec B301 - this process wrote it
    entries = [one for dump in dumps for one in dump.get("entries", ())]
    by_group: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in entries:
        backend = one["profiling_name"].partition(":")[0]
        by_group.setdefault((one["process_group"][0], backend), []).append(one)
    world = c10d._world  # noqa: SLF001 - nothing else knows of all groups
    known = {name: process_group for process_group, name in [*world.pg_names.items()]}
    return {key: (known[key[0]], own) for key, own in by_group.items() if key[0] in known}


def group_of(world: Any, process_group: Any, key: tuple[str, str], entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a process group as a JSON object with `name` (its name and backend, as NAME/BACKEND), `description`,
    `ranks` (sorted), `entered` (how many collectives this rank has entered in it) and `last`, a list of up to 48
    collectives (`collective_of`) in the order in which they were entered. The list ends with the 24 newest, complete or
    pending; before these come the oldest ones that are pending.

    `world` is torch's record of all groups, `key` is (the group's name, its backend), `entries` are its entries of the
    Flight Recorder.
    """
    newest = max(one["pg_id"] for one in entries)  # one of this name may have been destroyed before
    own = [one for one in entries if one["pg_id"] == newest]
    pending = [one for one in own if not is_done(one)][: MOST_COLLECTIVES // 2]
    shown = [one for one in own[: -(MOST_COLLECTIVES // 2)] if one in pending] + own[-(MOST_COLLECTIVES // 2) :]
    return {
        "name": "/".join(key)[:200],
        "description": str(getattr(process_group, "group_desc", ""))[:200],
        "ranks": sorted(world.pg_group_ranks.get(process_group, ())),
        "entered": max((one["collective_seq_id"] for one in own if not one["is_p2p"]), default=0),
        "last": [collective_of(one) for one in shown],
    }


def is_done(entry: dict[str, Any]) -> bool:
    """Return whether a collective has completed. `entry` is its entry in the Flight Recorder of torch's process groups,
    where a completed one has `retired` True or `state` "completed".
    """
    return bool(entry.get("retired")) or entry.get("state") == "completed"


def collective_of(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of the flight recorder of torch's process group as a dict for JSON, with the fields of
    `Collective` in launcher/run/hangs.py as keys: the collective's number, operation, sizes, types, source lines and
    age, whether it is complete, and whether it is a send or receive.
    """
    calls = [one for one in entry.get("frames", ()) if one["filename"] != __file__]
    frames = [(one["filename"][-300:], one["line"], one["name"][:200]) for one in calls]
    own = [one for one in frames if "-packages" not in one[0] and not is_standard(one[0])]
    return {
        "seq": entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"],
        "op": entry["profiling_name"].partition(":")[2][:200] or entry["profiling_name"][:200],
        "done": is_done(entry),
        "sizes": [list(size)[:16] for size in entry["input_sizes"][:16]],
        "dtypes": list(entry["input_dtypes"][:16]),
        "frames": (own or frames)[:MOST_FRAMES],
        "age_s": max(0.0, time.time() - entry["time_created_ns"] / 1e9),
        "p2p": entry["is_p2p"],
    }


# --- one zygote for many runs ---


class Supervisor(NamedTuple):
    """A run's supervisor to be started by exec: its command line, environment, run directory, and the numbers under
    which it expects its descriptors.

    The process that becomes the supervisor is a zygote with all imports done. It first forks a child, which becomes
    the supervisor's agent, and whose own child becomes the agent's zygote.
    """

    argv: Sequence[str]
    env: dict[str, str]
    run_dir: str
    fds: Sequence[int]  # the numbers that the supervisor expects for the descriptors sent with this message


def become_supervisor(words: Supervisor, fds: Sequence[int], room: "TagRoom") -> NoReturn:
    """Become the run's supervisor that `words` describe, with the descriptors `fds`, by exec. Before that, fork a child
    that waits to become the supervisor's agent, and whose own child becomes the agent's zygote. `room` writes the run's
    folder into the child's environment as `/proc` shows it.

    An exec keeps children, so the agent is the supervisor's child, as if the supervisor had started it itself.
    """
    os.setsid()
    supervisors_end, agents_end = (one.detach() for one in socket.socketpair())
    supervisor = os.getpid()
    place = os.fork()
    if place == 0:
        die_with(supervisor)
        close([fd for fd in open_fds() if fd != agents_end])
        room.name(words.run_dir)
        become_agent(agents_end)
    gate = renumber(words.fds, fds, supervisors_end)
    replace_program(words.argv, {**words.env, PLACE: f"{gate} {place}"})


def become_agent(supervisors_end: int) -> NoReturn:
    """Wait at the socket `supervisors_end` for the supervisor's command line for its agent, and become that agent by
    exec. Before that, fork the agent's zygote, which leaves this call by raising Standby and then serves the agent. End
    this process if the supervisor closes the socket instead.
    """
    supervisor, data, fds = socket.socket(fileno=supervisors_end), b"", []
    with contextlib.suppress(ConnectionError):  # it ended without having read this process's message
        data, fds, _, _ = socket.recv_fds(supervisor, MAX_LINE_BYTES, MAX_HANDED)
    while data and not data.endswith(b"\n"):
        more = supervisor.recv(1 << 16)
        data = data + more if more else b""
    supervisor.detach()
    if not data:
        os._exit(0)  # the supervisor has no use for it
    words = json.loads(data)
    os.setsid()
    agents_end, ours = (one.detach() for one in socket.socketpair())
    agent = os.getpid()
    if os.fork() == 0:
        os.setsid()
        close([fd for fd in open_fds() if fd != ours])
        raise Standby(ours, agent, -1)
    signal_at_death_of_parent(0)  # an agent that has lost its supervisor finds out by itself
    offered = renumber(words["fds"], fds, agents_end)
    replace_program(words["argv"], {**words["env"], OFFERED: f"{offered} {sys.executable}"})


def stand_by(agent: int, agents_end: int, gate: int) -> None:
    """Wait as the standby of the process `agent`. `agents_end` is the fd of a socket from the agent, and `gate` that of
    a socket from its supervisor.

    Return, to serve the agent as its zygote, once the agent sends a message or the supervisor closes the gate. If the
    agent dies before, wait for the supervisor: become the next agent when it sends that agent's arguments, or exit when
    it closes the gate. Raise Standby in the zygote of that next agent.
    """
    wait_for_input([agents_end, gate], agent)
    if select.select([agents_end], [], [], 0)[0]:
        with socket.socket(fileno=os.dup(agents_end)) as wire:
            try:
                gone = not wire.recv(1, socket.MSG_PEEK)
            except ConnectionError:
                gone = True
        if gone:
            os.close(agents_end)
            become_agent(gate)
    os.close(gate)


def renumber(numbers: Sequence[int], fds: Sequence[int], more: int) -> int:
    """Give the descriptors `fds`, which came over a socket, the `numbers` that the next program expects, in order. Move
    `more` to another number, which is returned, and close every other descriptor above 2.
    """
    free = max([*numbers, *fds, more, 2]) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, free) for fd in (more, *fds)]
    close([fd for fd in open_fds() if fd not in moved])
    for number, fd in zip(numbers, moved[1:]):  # noqa: B905 - Python 3.10 has strict=
        redirect(fd, number)
        os.set_inheritable(number, True)
    return moved[0]


def replace_program(argv: Sequence[str], env: dict[str, str]) -> NoReturn:
    """Replace this process by the program `argv`, with the environment `env`, default signals and the folder `/`; exit
    with 127 if that fails.
    """
    signal.set_wakeup_fd(-1)
    usual_signals()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.chdir("/")
    try:
        os.execve(argv[0], list(argv), env)  # noqa: S606 - the launcher's own words
    finally:
        os._exit(127)


class TagRoom:
    """The space that holds this process's run directory (LAUNCH_RUN_DIR) and a filler (LAUNCH_TAG_ROOM) in its initial
    environment, which the process that started it has put there. `name` overwrites both with the directory of another
    run, so that `/proc` shows to which run the process belongs.

    The constructor only finds the space; without the two variables nothing fits.
    """

    def __init__(self) -> None:
        with open("/proc/self/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
        self._start, end = int(words[47]), int(words[48])
        first, second, _ = ctypes.string_at(self._start, end - self._start).split(b"\0", 2)
        there = first.startswith(f"{TAG}=".encode()) and second.startswith(f"{ROOM}=".encode())
        self._bytes = len(first) + len(second) + 1 if there else 0
        os.environ.pop(ROOM, None)

    def fits(self, run_dir: str) -> bool:
        """Return whether LAUNCH_RUN_DIR with the value `run_dir` fits into the space."""
        return len(self._line(run_dir)) <= self._bytes

    def name(self, run_dir: str) -> None:
        """Set LAUNCH_RUN_DIR to the run directory, both in the space that `/proc` shows and in `os.environ`. The caller
        has checked by `fits` that there is enough space.
        """
        ctypes.memmove(self._start, self._line(run_dir).ljust(self._bytes, b"\0"), self._bytes)
        os.environ[TAG] = run_dir

    def _line(self, run_dir: str) -> bytes:
        """Return the variable LAUNCH_RUN_DIR with the value `run_dir` as it is in memory and in `/proc`: `NAME=value`
        and a zero byte.
        """
        return f"{TAG}={run_dir}".encode() + b"\0"


def settle_in(home: dict[str, Any]) -> None:
    """Take over the environment (`env`), working folder (`cwd`) and log (`log`) in `home`, which are those of an agent
    that did not start this process.

    Raise NoFork if imports could have had another result there: if a variable differs that is neither one of the run's
    own nor named in the list `may_differ`, or if a module came from a folder that PYTHONPATH now lacks.
    """
    redirect(os.open(home["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW, 0o600), 1, 2)
    env: dict[str, str] = home["env"]
    names = {name for name in {*env, *AT_START} if env.get(name) != AT_START.get(name)}  # modules set some themselves
    others = {name for name in names if not name.startswith(OF_A_RUN) and name not in home["may_differ"]}
    before, after = (part.get("PYTHONPATH", "").split(os.pathsep) for part in (AT_START, env))
    gone = tuple(folder + os.sep for folder in before if folder and folder not in after)
    files = [getattr(one, "__file__", None) or "" for one in [*sys.modules.values()]]
    others |= {file for file in files if file.startswith(gone)} if gone else set()
    if others:
        raise NoFork(f"{', '.join(sorted(others))[:500]} is not what it was when modules were imported")
    sys.path[:] = [*filter(None, after), *(path for path in sys.path if path not in before)]
    for name in names:
        os.environ.pop(name, None)
    os.environ.update((name, env[name]) for name in names if name in env)
    os.chdir(home["cwd"])


# --- the zygote ---


class Zygote:
    """The server that forks ranks for one agent over one socket.

    In mode `lend` it serves an owner that starts many runs, and forks a supervisor with a zygote for each. `room` is
    then the space in this process's environment where a supervisor puts its run's name, which `/proc` shows.
    """

    def __init__(
        self,
        fd: int,
        serves: int,
        inherited: Sequence[int],
        tried: dict[str, Optional[str]],
        room: Optional[TagRoom] = None,
    ) -> None:
        self._serves = serves  # the pid of who has the other end, and is our parent
        self._room = room
        os.set_inheritable(fd, False)
        self._agent = socket.socket(fileno=fd)
        self._agent.setblocking(True)
        self._not_for_ranks = (*inherited, fd)
        self._thread_starters: list[str] = []
        self._tried = tried  # modules, and why one cannot be imported
        self._handed: list[int] = []  # descriptors that came with the agent's messages
        self._unread = b""
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
        self._say(op="began")

    def serve(self) -> Order:
        """Answer messages until the agent closes the connection, and then end the process; return only in a forked
        rank, with its order.
        """
        while True:
            for line in self._lines():
                order = self._answer(line)
                if order is not None:
                    return order

    def _lines(self) -> Iterator[bytes]:
        """Wait until the agent sends something, and yield the lines that are complete then; file descriptors that come
        with them are kept in `_handed`. End this process if the agent has closed the connection.
        """
        if self._room is None:  # an owner of many runs is no agent: its user may stop it
            wait_for_input([self._agent.fileno()], self._serves)
        try:
            data, fds, _, _ = socket.recv_fds(self._agent, 1 << 16, MAX_HANDED, socket.MSG_CMSG_CLOEXEC)
            self._handed += fds
        except ConnectionError:
            data = b""
        if not data:
            self._end()
        *lines, self._unread = (self._unread + data).split(b"\n")
        if len(self._unread) > MAX_LINE_BYTES:
            self._unread = b""
            self._say(op="error", reason="a line beyond the size limit")
        yield from lines

    def _answer(self, line: bytes) -> Optional[Order]:
        """Carry out a message of the agent, such as to fork a rank; in that rank, return its order, else None."""
        try:
            words = json.loads(line)
            op = words["op"]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            op = error
        if op == "fork":
            return self._fork(words)
        if op == "supervisor":
            self._start_supervisor(words)
        elif op == "preload" and isinstance(words.get("modules"), list):
            if "home" in words:
                self._settle_in(words["home"], words["modules"])
            name_this("launch-zygote")
            self._preload(words["modules"])
            if self._handed:
                fds, self._handed = self._handed, []
                self._leave_standby(*fds)
        else:
            self._say(op="error", reason=f"expected a preload or a fork, got {op!r:.100}")
        return None

    def _preload(self, names: Sequence[Any]) -> None:
        """Import the modules `names`, and send the agent a list of all modules that this process has loaded so far for
        ranks, and one of those that cannot be imported, with reasons. A rank that imports one of the latter meets the
        error itself.
        """
        began = time.monotonic()
        ours = "OPENBLAS_NUM_THREADS" not in os.environ
        if ours:  # else numpy starts a thread per core
            os.environ["OPENBLAS_NUM_THREADS"] = "1"
        gc.disable()  # it would look again and again, and in vain, through all that is being imported
        for name in map(str, names):
            if name not in self._tried:
                self._tried[name] = self._import(name)
        gc.freeze()  # the collector of a rank then leaves these pages alone, and they stay shared
        gc.enable()
        if ours:
            del os.environ["OPENBLAS_NUM_THREADS"]
        loaded = [name for name, reason in self._tried.items() if reason is None]
        failed = [(name, reason) for name, reason in self._tried.items() if reason is not None]
        self._say(op="ready", seconds=round(time.monotonic() - began, 3), loaded=loaded, failed=failed)

    def _leave_standby(self, fd: int, gate: int = -1) -> None:
        """Fork a standby: a process with all imports done that serves the agent over socket `fd` once this process is
        gone.

        With `gate`, the descriptor of a connection to the supervisor, the standby outlives the agent too, and can
        become the next one (`stand_by`). It is a child of the agent, because a child of this process would die with
        this process; so the fork goes through a process that ends at once. If the fork fails, nothing is raised: `fd`
        is closed, by which the agent notices.
        """
        with contextlib.suppress(NoFork, OSError):  # then that socket ends, and the agent knows
            self._check_fitness()
            between = os.fork()
            if between == 0:
                self._fork_from_between(fd, gate)
            os.waitpid(between, 0)
        close([fd, gate])

    def _fork_from_between(self, fd: int, gate: int) -> NoReturn:
        """Run in the process between this zygote and its standby: fork the standby, and end, so that the agent becomes
        the standby's parent. In the standby, raise Standby with `fd`, the socket to the agent, and `gate`, the one to
        the supervisor (-1: none).
        """
        between = os.getpid()
        try:
            if os.fork():
                os._exit(0)
        except OSError:
            os._exit(1)
        wait_until_ended(between)
        self._agent.close()
        raise Standby(fd, self._serves, gate)

    def _settle_in(self, home: dict[str, Any], modules: Sequence[Any]) -> None:
        """Begin to serve an agent that did not start this process: take over the agent's environment (`env`), folder
        (`cwd`) and log, which are in `home`.

        Exit if this process was asked to import other modules than `modules`, which the agent wants, or if imports
        could have had another result in the agent's environment. Its variables must be those of this process, except
        the names in `home["may_differ"]` and those with a prefix in OF_A_RUN.
        """
        try:
            settle_in(home)
            if list(self._tried) != modules:
                raise NoFork("other modules were imported")
        except (NoFork, OSError) as error:
            print(f"launch: this zygote cannot be shared: {error}", file=sys.stderr, flush=True)
            self._end()

    def _start_supervisor(self, words: dict[str, Any]) -> None:
        """Fork a run's supervisor, through a process that ends at once, so that the supervisor is not a child of this
        process. Answer that it was forked, or why not.

        `words` are those of the request: the fields of `Supervisor` (command line, environment, run directory, numbers
        of descriptors), and `op`. The descriptors came with the request.
        """
        fds, self._handed = self._handed, []
        del words["op"]
        try:
            supervisor, room = Supervisor(**words), self._room
            self._check_fitness()
            if room is None or not room.fits(supervisor.run_dir):
                raise NoFork("there is no room for the name of the run")
            between = os.fork()
        except (TypeError, NoFork, OSError) as error:
            self._say(op="refused", id=0, reason=str(error))
            close(fds)
            return
        if between == 0:
            self._become_supervisor(supervisor, fds, room)
        _, status = os.waitpid(between, 0)
        close(fds)
        if status == 0:
            self._say(op="forked", id=0, pid=between)
        else:
            self._say(op="refused", id=0, reason="it cannot fork")

    def _become_supervisor(self, words: Supervisor, fds: Sequence[int], room: TagRoom) -> NoReturn:
        """Become the run's supervisor that `words` describe, in a child of this process, which itself exits, so that
        the supervisor is no child of the zygote. `fds` are descriptors for it, and `room` is the space in the
        environment where the run's folder is written, so that `/proc` shows to which run the process belongs.
        """
        try:
            if os.fork():
                os._exit(0)
        except OSError:
            os._exit(1)
        self._agent.detach()
        become_supervisor(words, fds, room)

    def _import(self, name: str) -> Optional[str]:
        """Import a module; return why it cannot be imported, as one line, or None if it was. Unless it just does not
        exist, the traceback is printed as well.
        """
        threads = len(os.listdir("/proc/self/task"))
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a module can raise anything
            if not (isinstance(error, ModuleNotFoundError) and error.name == name):
                traceback.print_exc()
            return traceback.format_exception_only(type(error), error)[-1].strip()
        finally:
            if len(os.listdir("/proc/self/task")) > threads:
                self._thread_starters.append(name)
        return None

    def _fork(self, words: dict[str, Any]) -> Optional[Order]:
        """Fork a rank by the agent's message `words`, which has its `order` and a number, `id`, for the answer: the
        rank's pid, or why no rank was forked. Return the order in the rank, and None in this process.
        """
        number = words.get("id")
        try:
            order = order_from(words.get("order"))
            self._check_fitness()
            # What is still buffered would come out once more in each rank.
            sys.stdout.flush()
            sys.stderr.flush()
            LIBC.fflush(None)
            born = self._fork_rank()
        except (NoFork, OSError) as error:
            self._say(op="refused", id=number, reason=str(error))
            return None
        if born is None:
            self._leave()
            return order
        self._say(op="forked", id=number, pid=born.pid)
        with contextlib.suppress(BrokenPipeError):  # it was killed meanwhile: its parent, the agent, sees that
            os.write(born.go, b"!")
        os.close(born.go)
        return None

    def _fork_rank(self) -> Optional[Born]:
        """Fork a rank as a child of the agent, so that it outlives this process. Return its pid with a pipe as a Born,
        or None in the rank itself.

        The rank waits for a byte from the pipe, which the caller writes once the agent has been informed; if this
        process is killed before that, the rank ends. Raise NoFork or OSError if the fork is impossible.
        """
        waits, go = os.pipe()
        try:
            pid = self._fork_for_agent()
        except (NoFork, OSError):
            close([waits, go])
            raise
        if pid:
            os.close(waits)
            return Born(pid, go)
        os.close(go)
        name_this(os.path.basename(sys.executable))
        die_with(self._serves)
        if not os.read(waits, 1):
            os._exit(1)
        os.close(waits)
        return None

    def _fork_for_agent(self) -> int:
        """Fork this process so that the child's parent is the agent; return the child's pid, or 0 in the child. Raise
        NoFork or OSError if that is impossible.
        """
        if os.getppid() == self._serves:
            with contextlib.suppress(OSError):
                return fork_sibling()
        return fork_for_subreaper()

    def _check_fitness(self) -> None:
        """Raise NoFork if a forked rank would inherit locks that no thread can release, or a CUDA driver that it cannot
        use.
        """
        tasks = os.listdir("/proc/self/task")
        if len(tasks) != 1:
            raise NoFork(f"{len(tasks)} threads where one was expected{self._suspects()}")
        cuda = sys.modules.get("torch.cuda")
        if cuda is not None and cuda.is_initialized():
            raise NoFork("the preloaded modules have initialised CUDA")
        for fd in open_fds():
            with contextlib.suppress(FileNotFoundError):  # the one through which they were listed
                device = os.readlink(f"/proc/self/fd/{fd}")
                if device.startswith(DEVICES):
                    raise NoFork(f"the preloaded modules have opened {device}")

    def _suspects(self) -> str:
        """Return the end of the message that refuses a fork because other threads run in this process: their names, and
        the modules whose import started threads; "" if neither is known.
        """
        threading = sys.modules.get("threading")
        names = [thread.name for thread in threading.enumerate()[1:]] if threading is not None else []
        called = f" ({', '.join(names)})" if names else ""
        return called + (f", started by importing {', '.join(self._thread_starters)}" if self._thread_starters else "")

    def _leave(self) -> None:
        """Close, in a forked process, the connection and descriptors that belong to the zygote alone."""
        self._agent.detach()
        close(self._not_for_ranks)

    def _say(self, **words: Any) -> None:
        """Send a message with the fields `words` to the agent; end this process if the agent is gone."""
        try:
            self._agent.sendall(json.dumps(words).encode() + b"\n")
        except OSError:
            self._end()

    def _end(self) -> NoReturn:
        """Exit at once and without cleanup, because the agent has closed the connection or cannot use this process.

        The forked ranks continue: their parent is the agent.
        """
        os._exit(0)


def order_for_this_process(mode: str, fd: int, agent_pid: int) -> Order:
    """Return the order of the rank that this process becomes. In mode `run` it is read from the pipe `fd`. In the modes
    `serve` and `lend`, `fd` is a socket with requests to fork: this process serves them, and only in a fork does the
    call return, with the fork's order.

    The process ends when its parent `agent_pid` does.
    """
    inherited = open_fds()
    usual_signals()
    die_with(agent_pid)
    tried: dict[str, Optional[str]] = {}
    room = TagRoom() if mode == "lend" else None
    atexit.register(END.finish)  # before what modules register: the last one that is called
    sys.meta_path.insert(0, FLIGHT)
    gate = -1
    while mode in ("serve", "lend"):
        try:
            if gate != -1:
                stand_by(agent_pid, fd, gate)
            die_with(agent_pid)
            return Zygote(fd, agent_pid, inherited, tried, room).serve()
        except Standby as standby:
            fd, agent_pid, gate = standby.args
            room = None  # of the owner of many runs: this process serves the agent of one
        name_this("launch-standby")
        for one in (gate, fd) if gate != -1 else (fd,):
            with contextlib.suppress(BrokenPipeError), socket.socket(fileno=os.dup(one)) as whom:  # nobody wants it now
                whom.sendall(json.dumps({"op": "standby", "pid": os.getpid()}).encode() + b"\n")
    with open(fd, "rb", closefd=False) as pipe:
        line = pipe.readline()
    if not line:
        os._exit(1)  # the agent ended before it sent anything
    close(inherited)
    return order_from(json.loads(line))


if __name__ == "__main__":
    _agent_pid = int(sys.argv[3]) if len(sys.argv) > 3 else os.getppid()
    _order = order_for_this_process(sys.argv[1], int(sys.argv[2]), _agent_pid)
    _pid = os.getpid()
    try:
        settle(_order)
    except Exception as _error:  # noqa: BLE001 - whatever it is, it is not the user's program that failed
        os.close(0)  # where descriptors have run out, the report needs one
        _reason = f"{type(_error).__name__}: {_error}"[: REPORT_BYTES // 8]
        tell(_order, json.dumps({"start_failed": _reason}).encode() + b"\n")
        print(f"launch: cannot start this rank: {_error}", file=sys.stderr)
        sys.exit(CANNOT_START)
    # On the user's stack is nothing of ours but this module's frame, and it ends as the user's program does.
    try:
        PROGRAMS[_order.kind](_order)()
        END.code = 0
    except SystemExit as _error:
        END.left_by(_error.code)
        if os.getpid() == _pid and _error.code not in (None, 0):
            tell(_order, b'{"called_exit": true}\n')
        raise
    except BaseException as _error:
        if os.getpid() == _pid:  # not in a child that the script has forked
            report(_error, _order)
        hide_our_frames()
        raise
