"""Finding and ending processes that are provably ours: by descent, by tag, never by a bare pid.

A signal goes through a pidfd, taken first and checked second, so that a pid that was given to a stranger in between
is never hit.
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

from launcher.run.identity import alive, process_id, stat_fields
from launcher.run.records import ProcessId

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

TAG = "LAUNCH_RUN_DIR"
_MOST_DESCRIPTORS = 65536
_EXEC_S = 1.0
_EXEC_LOOK_S = 0.001
_CODE_TO, _ENVIRON_FROM, _ENVIRON_TO = 24, 47, 48  # of the words in /proc/PID/stat after the name
_GIVEN_UP_FIRST = "1000"
_before: dict[int, int] = {}  # soft limits as they were when this process was started


def name_this(name: str) -> None:
    """Show this process under that name in `ps -o comm` and `top`: at most 15 characters."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def become_subreaper() -> None:
    """Orphans below this process become its children, so that no double fork escapes it."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; end now where that has happened."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, "PR_SET_PDEATHSIG")
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int, name: str) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({name})")


def forbid_core_dumps() -> None:
    """They would hold the run's token and the user's secrets. One byte: with 0 a program may still be piped a dump."""
    _set(resource.RLIMIT_CORE, 1)


def raise_descriptors() -> None:
    """A coordinator has a connection to each node, beside those of whom it does not know yet."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    _set(resource.RLIMIT_NOFILE, max(soft, most) if soft != resource.RLIM_INFINITY else soft)


def users_limits() -> list[tuple[int, int]]:
    """Which of them, and the soft limit that the user had."""
    return list(_before.items())


@contextmanager
def core_dumps_as_before() -> Iterator[None]:
    """For a child that forbids its own, and has to know what the user had."""
    before = _before.get(resource.RLIMIT_CORE)
    if before is not None:
        _set(resource.RLIMIT_CORE, before)
    try:
        yield
    finally:
        if before is not None:
            forbid_core_dumps()


def _set(kind: int, soft: int) -> None:
    now, hard = resource.getrlimit(kind)
    _before.setdefault(kind, now)
    if kind == resource.RLIMIT_CORE and hard != resource.RLIM_INFINITY:
        soft = min(soft, hard) if soft != resource.RLIM_INFINITY else hard
    resource.setrlimit(kind, (soft, hard))


def open_process(pid: int) -> int | None:
    """A descriptor of it; None where there is none: a number from before a boot may be a thread's by now."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno not in (errno.ESRCH, errno.EINVAL, errno.ENOENT):
            raise
        return None


def signal_process(process: ProcessId, number: int) -> bool:
    """Send a signal to exactly this process; False where it is gone."""
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
    """All live processes below `root`. Those in `keep` are left out but not what is below them."""
    return [pid for pid in _below(root, lambda _: True) if pid not in keep]


def orphans(root: int, trees: Collection[int]) -> list[int]:
    """All live processes below `root` that are not in one of these subtrees."""
    return list(_below(root, lambda pid: pid not in trees))


def tagged(run_dir: str, uid: int) -> list[int]:
    """All processes of this user whose environment at exec names the run directory."""
    return tagged_any([run_dir], uid)[run_dir]


def tagged_any(run_dirs: Collection[str], uid: int) -> dict[str, list[int]]:
    """For each of several run directories, by one look."""
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
    """In the midst of an exec the kernel shows none for a moment, which is waited for."""
    deadline = time.monotonic() + _EXEC_S
    while True:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read()
        if environment or _has_none(pid) or time.monotonic() > deadline:
            return environment
        time.sleep(_EXEC_LOOK_S)


def _has_none(pid: int) -> bool:
    """Its environment is empty, and no exec is about to fill it: that says last where the code ends.

    What has no program raises OSError.
    """
    os.readlink(f"/proc/{pid}/exe")
    words = stat_fields(pid)
    return words[_CODE_TO] != b"0" and words[_ENVIRON_FROM] == words[_ENVIRON_TO] != b"0"


def end_all(find: Callable[[], list[int]], timeout_s: float = 10.0) -> tuple[list[ProcessId], list[ProcessId]]:
    """SIGKILL whatever `find` finds until it finds nothing; gives what was ended and what would not go.

    Repeated, because a process may fork between the look and the kill.
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
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return  # it went by itself, which is all that was wanted


def _wait_for(handles: list[int], deadline: float) -> bool:
    """True once every one of these processes has ended; a pidfd is readable from then on."""
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


def give_up(pid: int, *, first: bool) -> None:
    """Where memory is short, have the kernel end this process before all others; or no sooner than this one."""
    with contextlib.suppress(OSError):  # it is gone, or who runs us has forbidden it
        with open("/proc/self/oom_score_adj") as file:
            usual = file.read()
        with open(f"/proc/{pid}/oom_score_adj", "w") as file:
            file.write(_GIVEN_UP_FIRST if first else usual)


def is_stopped(pid: int) -> bool:
    """By a signal, or by who debugs it; of one that is gone its end is told by other means."""
    return _state(pid) in (b"T", b"t")


def runs(pid: int) -> bool:
    """It has not ended, which may have been told to nobody yet, and is not stopped."""
    return _state(pid) not in (b"T", b"t", b"Z", b"X", b"")


def parent_of(pid: int) -> int | None:
    """None where it is gone."""
    words = _stat(pid)
    return int(words[1]) if words else None


def _state(pid: int) -> bytes:
    words = _stat(pid)
    return words[0] if words else b""


def _stat(pid: int) -> list[bytes]:
    """What the kernel says of it after its name; nothing where it is gone."""
    try:
        return stat_fields(pid)
    except OSError:
        return []


def io_counts(pid: int) -> dict[bytes, int]:
    """Return the bytes and calls of /proc/PID/io by their names. Raises OSError where it cannot be read."""
    with open(f"/proc/{pid}/io", "rb", buffering=0) as file:
        return {name: int(count) for name, count in (line.split(b": ") for line in file.read().splitlines())}


def _below(root: int, enter: Callable[[int], bool]) -> Iterator[int]:
    children = _children_by_parent()
    stack = [root]
    while stack:
        for pid in children.get(stack.pop(), ()):
            if enter(pid):
                yield pid
                stack.append(pid)


def _children_by_parent() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for pid in pids():
        fields = _stat(pid)
        if fields and fields[0] not in (b"Z", b"X"):
            children.setdefault(int(fields[1]), []).append(pid)
    return children


def pids() -> Iterator[int]:
    """Of all processes that there are."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            yield int(name)
