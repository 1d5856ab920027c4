"""Find and end processes that provably belong to a run: its descendants, or those whose environment names the run
(tagged); never by a bare pid.

A signal is sent through a pidfd, which is opened before the process's identity is checked, so that it never reaches
another process that got the pid in between.
"""

import contextlib
import ctypes
import errno
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.run.identity import alive, process_id, stat_fields
from launcher.run.layout import RunDir
from launcher.run.records import ProcessId

if TYPE_CHECKING:
    import subprocess

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

TAG = "LAUNCH_RUN_DIR"
_MOST_DESCRIPTORS = 65536
_EXEC_S = 1.0
_EXEC_LOOK_S = 0.001
_DEAD_WITHIN_S = 2.0
_LOOK_EVERY_S = 0.02  # at how much a program has written: enough for some megabytes
_CODE_TO, _ENVIRON_FROM, _ENVIRON_TO = 24, 47, 48  # of the words in /proc/PID/stat after the name
_GIVEN_UP_FIRST = "1000"
_before: dict[int, int] = {}  # soft limits as they were when this process was started


def name_this(name: str) -> None:
    """Show this process under `name` in `ps -o comm` and `top`, cut to 15 characters."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def become_subreaper() -> None:
    """Make the kernel give orphans below this process to it as children, so that no double fork escapes."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent `parent` ends; end at once if the parent has ended already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, "PR_SET_PDEATHSIG")
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int, name: str) -> None:
    """Call prctl with `option` and `value`; raise OSError, which names the option as `name`, if it fails."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({name})")


def forbid_core_dumps() -> None:
    """Forbid core dumps, which would hold the run's token and the user's secrets. The limit is one byte: with 0 a
    program may still be piped a dump.
    """
    _set(resource.RLIMIT_CORE, 1)


def raise_descriptors() -> None:
    """Raise this process's limit on open descriptors to the hard limit, at most 65536, because a coordinator has a
    connection to each node and some from unknown peers.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    _set(resource.RLIMIT_NOFILE, max(soft, most) if soft != resource.RLIM_INFINITY else soft)


def users_limits() -> list[tuple[int, int]]:
    """Return (resource, the soft limit that the user had before) for each resource limit that this process has changed;
    a resource is a constant of the module `resource`.
    """
    return list(_before.items())


@contextmanager
def core_dumps_as_before() -> Iterator[None]:
    """Within the body, restore the limit on core dumps that the user had set, if this process has lowered it
    (`forbid_core_dumps`); lower it again afterwards.

    A process of the launcher that is started in the body so inherits the user's limit. It then lowers its own, and so
    knows which limit to restore for the user's programs.
    """
    before = _before.get(resource.RLIMIT_CORE)
    if before is not None:
        _set(resource.RLIMIT_CORE, before)
    try:
        yield
    finally:
        if before is not None:
            forbid_core_dumps()


def _set(kind: int, soft: int) -> None:
    """Set the soft limit of resource `kind`, and remember the user's limit for `users_limits`."""
    now, hard = resource.getrlimit(kind)
    _before.setdefault(kind, now)
    if kind == resource.RLIMIT_CORE and hard != resource.RLIM_INFINITY:
        soft = min(soft, hard) if soft != resource.RLIM_INFINITY else hard
    resource.setrlimit(kind, (soft, hard))


def open_process(pid: int) -> int | None:
    """Return a pidfd of the process, or None if no process has this pid (a thread may have)."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno not in (errno.ESRCH, errno.EINVAL, errno.ENOENT):
            raise
        return None


def signal_process(process: ProcessId, number: int) -> bool:
    """Send a signal to exactly the process `process`; return False if it has ended."""
    handle = open_process(process.pid)
    if handle is None:
        return False
    try:
        if alive(process) is not True:
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def descendants(root: int, keep: Collection[int] = ()) -> list[int]:
    """Return the pids of all live processes below `root`, without those in `keep`; the descendants of `keep` are
    included.
    """
    return [pid for pid in _below(root, lambda _: True) if pid not in keep]


def orphans(root: int, trees: Collection[int]) -> list[int]:
    """Return the pids of all live processes below `root` that are outside the process trees with the roots `trees`."""
    return list(_below(root, lambda pid: pid not in trees))


def tagged(run_dir: str, uid: int) -> list[int]:
    """Return the pids of all processes of the user `uid` that are tagged with the run directory: their environment at
    exec names it.
    """
    return tagged_any([run_dir], uid)[run_dir]


def tagged_of_run(run_dir: Path, uid: int) -> list[int]:
    """Return the pids of all processes of the user `uid` that are tagged with the run's directory or with that of one
    of its roles.
    """
    roles = RunDir(run_dir).roles
    folders = [run_dir, *(roles.iterdir() if roles.is_dir() else ())]
    found = tagged_any([str(folder) for folder in folders], uid)
    return list(dict.fromkeys(pid for pids in found.values() for pid in pids))


def tagged_any(run_dirs: Collection[str], uid: int) -> dict[str, list[int]]:
    """Return, by run directory, the pids of the processes of the user `uid` that are tagged with it, in one pass over
    /proc.
    """
    wanted = {f"{TAG}={one}".encode(): one for one in run_dirs}
    found: dict[str, list[int]] = {one: [] for one in run_dirs}
    for pid in pids():
        try:
            if os.stat(f"/proc/{pid}").st_uid != uid:
                continue
            environment = set(_environment_of(pid).split(b"\0"))
        except OSError:
            continue  # gone, or not ours to read: then it is not ours to end either
        if pid != os.getpid():
            for entry in wanted.keys() & environment:
                found[wanted[entry]].append(pid)
    return found


def _environment_of(pid: int) -> bytes:
    """Return the environment of a process as the bytes of /proc/PID/environ; raise OSError if it has ended or belongs
    to another user.

    During an exec the kernel shows no environment: wait up to _EXEC_S (one) second until it shows one again, and return
    b"" if it has not.
    """
    deadline = time.monotonic() + _EXEC_S
    while True:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read()
        if environment or _has_empty_environment(pid) or time.monotonic() > deadline:
            return environment
        time.sleep(_EXEC_LOOK_S)


def _has_empty_environment(pid: int) -> bool:
    """Return whether the process was started with an empty environment, as opposed to being in the middle of an exec.

    Raise OSError for a process without a program, such as a kernel thread.
    """
    os.readlink(f"/proc/{pid}/exe")
    words = stat_fields(pid)
    return words[_CODE_TO] != b"0" and words[_ENVIRON_FROM] == words[_ENVIRON_TO] != b"0"


def end_all(find: Callable[[], list[int]], timeout_s: float = 10.0) -> tuple[list[ProcessId], list[ProcessId]]:
    """Send SIGKILL to the processes that `find` returns until it returns none, or `timeout_s` has passed; return
    (processes that ended, processes that did not).

    The search is repeated because a process may fork between the search and the kill.
    """
    ended: dict[ProcessId, None] = {}
    deadline = time.monotonic() + timeout_s
    while True:
        targets = [identity for identity in map(process_id, find()) if identity is not None]
        targets = [identity for identity in targets if alive(identity)]
        if not targets:
            return list(ended), []
        ended.update(dict.fromkeys(targets))
        if not _kill_and_wait(targets, deadline):
            return [one for one in ended if not alive(one)], targets


def _kill_and_wait(targets: Collection[ProcessId], deadline: float) -> bool:
    """Kill the processes and return True once they have ended, or False at the time `deadline` by `time.monotonic`."""
    handles: dict[int, ProcessId] = {}
    try:
        for target in targets:
            handle = open_process(target.pid)
            if handle is None:
                continue
            handles[handle] = target
            if alive(target):
                _send(handle, signal.SIGKILL)
                _send(handle, signal.SIGCONT)
        return _wait_for(list(handles), deadline)
    finally:
        for handle in handles:
            os.close(handle)


def _send(handle: int, number: int) -> None:
    """Send the signal `number` to the process behind the pidfd, unless it has ended."""
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return  # it went by itself, which is all that was wanted


def _wait_for(handles: list[int], deadline: float) -> bool:
    """Return True once all processes behind the pidfds have ended, or False at the time `deadline` by
    `time.monotonic`.
    """
    poll = select.poll()
    waiting = set(handles)
    for handle in handles:
        poll.register(handle, select.POLLIN)
    while waiting:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        for handle, _ in poll.poll(left_s * 1000):
            poll.unregister(handle)
            waiting.discard(handle)
    return True


def set_oom_priority(pid: int, *, first: bool) -> None:
    """Make the kernel's OOM killer choose this process before all others, or, if not `first`, rank it like the caller.
    Ignore a refusal.
    """
    with contextlib.suppress(OSError):  # it is gone, or who runs us has forbidden it
        with open("/proc/self/oom_score_adj") as file:
            usual = file.read()
        with open(f"/proc/{pid}/oom_score_adj", "w") as file:
            file.write(_GIVEN_UP_FIRST if first else usual)


def is_stopped(pid: int) -> bool:
    """Return whether the process is stopped by a signal or a debugger; return False if it has ended."""
    return _state(pid) in (b"T", b"t")


def is_stopped_by_signal(pid: int) -> bool:
    """Return whether a signal such as SIGSTOP has stopped the process; return False if a debugger has, or if it has
    ended.
    """
    return _state(pid) == b"T"


def runs(pid: int) -> bool:
    """Return whether the process exists and is neither stopped nor a zombie."""
    return _state(pid) not in (b"T", b"t", b"Z", b"X", b"")


def parent_of(pid: int) -> int | None:
    """Return the pid of the parent, or None if the process has ended."""
    words = _stat(pid)
    return int(words[1]) if words else None


def _state(pid: int) -> bytes:
    """Return the kernel's state letter of the process, or b"" if it has ended."""
    words = _stat(pid)
    return words[0] if words else b""


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat after the name, or an empty list if the process has ended."""
    try:
        return stat_fields(pid)
    except OSError:
        return []


def io_counts(pid: int) -> dict[bytes, int]:
    """Return the counters of /proc/PID/io by their names there, such as `read_bytes`. Raise OSError if it cannot be
    read.
    """
    with open(f"/proc/{pid}/io", "rb", buffering=0) as file:
        return {name: int(count) for name, count in (line.split(b": ") for line in file.read().splitlines())}


def _below(root: int, enter: Callable[[int], bool]) -> Iterator[int]:
    """Yield the pids of the descendants of the process `root`, without itself. A process for which `enter` returns
    False is left out together with its own descendants.
    """
    children = _children_by_parent()
    stack = [root]
    while stack:
        for pid in children.get(stack.pop(), ()):
            if enter(pid):
                yield pid
                stack.append(pid)


def _children_by_parent() -> dict[int, list[int]]:
    """Return the pids of the children of every process, by the parent's pid."""
    children: dict[int, list[int]] = {}
    for pid in pids():
        fields = _stat(pid)
        if fields and fields[0] not in (b"Z", b"X"):
            children.setdefault(int(fields[1]), []).append(pid)
    return children


def pids() -> Iterator[int]:
    """Yield the pids of all processes."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            yield int(name)


def ends_in_time(child: "subprocess.Popen[bytes]", limit_s: float, is_too_much: Callable[[], bool]) -> bool:
    """Return whether a child that leads a session exits by itself before `limit_s` seconds have passed and before
    `is_too_much`, which is called again and again (to limit the child's output, for instance), returns True; if not,
    kill its process group.
    """
    end = os.pidfd_open(child.pid)  # readable when it ends: no step of a polling loop is lost on a quick one
    deadline = time.monotonic() + limit_s
    try:
        while not (ended := _ends_within(end, max(0.0, min(_LOOK_EVERY_S, deadline - time.monotonic())))):
            if is_too_much() or time.monotonic() >= deadline:
                break
        return ended and child.poll() is not None
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            if _ends_within(end, _DEAD_WITHIN_S):
                child.wait()
        os.close(end)


def _ends_within(handle: int, timeout_s: float) -> bool:
    """Wait up to `timeout_s` for the process behind the pidfd to end, and return whether it has ended."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
