"""Cut the connections of process groups when a rank is lost, so that no other rank keeps waiting in the group.

gloo cannot abort. A rank that waits for a live one, which itself has noticed that a third is gone, would wait until the
operation times out; when its connections are shut down it fails at once. NCCL can abort: operations on the GPU then end
without an error and leave meaningless numbers, so `check_arrived` must be called before results from other ranks are
used.

While gloo makes a group, one of two ranks listens until the other connects. If that one is killed first there is no
connection to cut, so a rank that gives up also connects to its own listeners in place of the missing ranks and closes
again.

gloo drops a message that it cannot send while its connection breaks, and its receiver waits until the operation times
out. A thread cannot be interrupted in there, so the process kills itself and launch replaces the rank.
"""

import logging
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")
_FDS = "/proc/self/fd"
_OTHERS = 64  # peers at most; a peer that connects to a listener of gloo sends its number first
_NUMBER = struct.Struct("<q")
_CALL_S = 1.0
log = logging.getLogger("trainer")
_OF_TORCH, _NOT = "torch.", "torch.utils.data"  # which waits for workers, and may do so for long
_WORK_S = 0.05  # of the processor, that is no work
_LOOK_S = 1.0  # that a look counts for at most: all of the process may have been stopped since the last one


class BlockedThread:
    """A thread that another one watches, to find out how long it has been blocked in a torch operation.

    `ident` is Python's number of the thread and `task` the kernel's. A threading.Thread has the wrong native_id in a
    forked process, as ranks are: that of the process it was forked from.
    """

    def __init__(self, ident: int, task: int, now: Callable[[], float] = time.monotonic) -> None:
        self._ident, self._now = ident, now
        self._stat = Path(f"/proc/self/task/{task}/stat")
        self._clock = time.pthread_getcpuclockid(self._ident)
        self._last, self._spent, self._waited = now(), self._processor_s(), 0.0

    def blocked_s(self) -> float:
        """Return for how many seconds the thread has been blocked in a torch operation without using the CPU.

        It measures from one call to the next, so call it about once a second or more often.
        """
        last, self._last = self._last, self._now()
        try:
            spent, sleeps = self._processor_s(), self._is_blocked_in_torch()
        except OSError:  # the thread has ended
            return 0.0
        if sleeps and spent - self._spent <= _WORK_S:
            self._waited += min(_LOOK_S, self._last - last)
        else:
            self._spent, self._waited = spent, 0.0
        return self._waited

    def end_process(self) -> None:
        """Log where the thread waits and kill this process with SIGKILL, so that launch replaces the rank."""
        frame = self._frame()
        where = "".join(traceback.format_stack(frame)) if frame is not None else ""
        text = "this process kills itself, to be replaced: for %.0f s it waited in an operation that was cut off\n%s"
        log.error(text, self._waited, where.rstrip())
        logging.shutdown()
        os.kill(os.getpid(), signal.SIGKILL)

    def _frame(self) -> FrameType | None:
        """Return the stack frame that the thread is executing, or None if it has ended."""
        return sys._current_frames().get(self._ident)  # noqa: SLF001 - as faulthandler does, there is no other way

    def _processor_s(self) -> float:
        """Return the CPU seconds that the thread has used."""
        return time.clock_gettime(self._clock)

    def _is_blocked_in_torch(self) -> bool:
        """Return whether the thread is in torch code and the kernel lets it sleep, not wait for a CPU or disk."""
        frame = self._frame()
        module = "" if frame is None else str(frame.f_globals.get("__name__", ""))
        in_torch = module.startswith(_OF_TORCH) and not module.startswith(_NOT)
        return in_torch and self._stat.read_text().rpartition(")")[2].split()[0] == "S"


class Connections:
    """The sockets that process groups opened while `watching` was active, which `cut` shuts down.

    `cut_on` cuts them when a descriptor becomes readable, and again every `again_ms` milliseconds; if the thread that
    called it is still blocked in torch `stuck_s` seconds later, the process is ended. `given_up` is True from the first
    such cut until the cutting is over and ranks make another group.
    """

    def __init__(self, *, again_ms: int = 20, stuck_s: float = 2.0) -> None:
        self._again_ms, self._stuck_s = again_ms, stuck_s
        self._made: dict[int, str] = {}
        self._before: dict[int, str] | None = None  # what there was, while it is watching
        self.given_up = False  # ranks meet elsewhere by now
        self._stores: set[str] = set()  # listeners that are none of gloo's
        self._called: set[str] = set()
        self._group: dist.ProcessGroup | None = None  # over GPUs
        self._aborting = threading.Lock()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the sockets that are opened in this context.

        Nothing is recorded outside of a run of launch, where nobody asks the ranks to connect anew without a lost one.
        """
        if "LAUNCH_CONTROL" not in os.environ:
            yield
            return
        self._before = _sockets()
        self._called.clear()
        try:
            yield
        finally:
            self._made |= self._made_since()
            self._before = None

    @contextmanager
    def giving_up_on(self, fd: int) -> Iterator[None]:
        """Cut all connections, also those made in this context, if `fd` becomes readable before the context ends.

        The cut is repeated until it ends. A thread that waits in it for other ranks then gets an error instead of
        waiting for ever; if it stays blocked in torch nevertheless, the process is ended.
        """
        watch = self.cut_on(fd)
        try:
            yield
        finally:
            watch.close()

    def cut_on(self, fd: int, leave: Callable[[], None] = lambda: None) -> "ConnectionCutter":
        """Start and return a thread that cuts all connections once the descriptor `fd` is readable.

        Until its `close` is called, the thread cuts again and again, for connections made meanwhile. It calls `leave`
        after each cut, so that the caller can end work of its own.
        """
        caller = threading.get_ident(), threading.get_native_id()
        return ConnectionCutter(partial(self._cut_on, leave=leave, caller=caller), self._clear_given_up, fd)

    def _clear_given_up(self) -> None:
        """Reset `given_up`, which says that a group was cut because ranks are to meet in another one.

        It is called once cutting has stopped, before the ranks make that other group.
        """
        self.given_up = False

    def abort_with_others(self, group: dist.ProcessGroup) -> None:
        """Have the next `cut` also abort this GPU group, in place of the group of an earlier call.

        Do nothing if launch cannot ask this process to connect anew, as outside of a run (LAUNCH_CONTROL is not set).
        """
        if "LAUNCH_CONTROL" in os.environ:
            self._group = group

    def check_arrived(self, device: torch.device) -> None:
        """Wait for the device's queued work, which includes the collectives.

        Raises DistNetworkError if the connections have been cut because launch asked the ranks to connect anew:
        messages of other ranks are missing then.
        """
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        self.check()

    def check(self) -> None:
        """Raise DistNetworkError if connections were cut because launch has asked the ranks to connect anew.

        It does so until the cutting is stopped (`ConnectionCutter.close`), before the ranks make new groups.
        """
        if self.given_up:
            raise dist.DistNetworkError("cut off: the other ranks have connected again without this group")

    def exclude_listener(self, listener: socket.socket) -> None:
        """Exclude the listening socket of a store, which gloo does not own, from being cut."""
        self._stores.add(os.readlink(f"{_FDS}/{listener.fileno()}"))

    def cut(self, how: int = socket.SHUT_RDWR) -> None:
        """Abort the GPU group, if any, and shut down all recorded connections.

        `how` is the direction of socket.shutdown; with SHUT_RD, what this rank sends still reaches the others.
        """
        with self._aborting:  # the second thread continues when the first is done
            group, self._group = self._group, None
            if group is not None:
                group.abort()
        for fd, name in (self._made | self._made_since()).items():
            _act_on(fd, name, partial(_shut_down, how=how))
        if how == socket.SHUT_RDWR:
            self._made.clear()

    def connect_for_missing_ranks(self) -> None:
        """Connect once to each new listening socket in place of the ranks that it waits for, and close again.

        A thread of torch that waits there for a lost rank then wakes, instead of waiting for ever.
        """
        for fd, name in self._made_since().items():
            if name not in self._called | self._stores and _act_on(fd, name, _connect_as_others):
                self._called.add(name)

    def _made_since(self) -> dict[int, str]:
        """Return the sockets that were opened since `watching` began: their names in /proc by descriptor."""
        before = self._before
        return {} if before is None else {fd: name for fd, name in _sockets().items() if before.get(fd) != name}

    def _cut_on(self, fd: int, over: int, leave: Callable[[], None], caller: tuple[int, int]) -> None:
        """Wait until the descriptor `fd` is readable, then call `cut` again and again until `over` is readable.

        If the descriptor `over` is readable first, `cut` is not called. One cut is not enough, as a rank that has not
        noticed the loss yet may make new connections. `leave` is called after each cut, for the caller's own work.
        `caller` is the thread that asked for the cuts (its numbers in Python and in the kernel): if it stays blocked in
        torch for too long, this process is ended, unless there is a GPU group to abort, which may take its time.
        """
        waiting = select.poll()
        waiting.register(fd, select.POLLIN)
        waiting.register(over, select.POLLIN)
        ready = waiting.poll()
        waiting.unregister(fd)
        stuck = (
            None if self._group is not None else BlockedThread(*caller)
        )  # what a GPU takes its time for is no work of it
        again = False
        while over not in dict(ready):
            self.given_up = True
            self.cut(socket.SHUT_RDWR if again else socket.SHUT_RD)
            if again:  # a rank that was only in a pass is through by now
                self.connect_for_missing_ranks()
            leave()  # only now: whatever is made of a pass that was left half-way can go to nobody
            if stuck is not None and stuck.blocked_s() > self._stuck_s:
                stuck.end_process()
            ready, again = waiting.poll(self._again_ms), True


class ConnectionCutter:
    """A thread that cuts connections once a descriptor is readable; `close` ends it.

    The thread runs `act(fd, over)`, which waits for `fd`, cuts, and returns once the descriptor `over` is readable.
    `close` makes `over` readable, waits until the thread has ended, and then calls `reset`.
    """

    def __init__(self, act: Callable[[int, int], None], reset: Callable[[], None], fd: int) -> None:
        self._over, self._end = os.pipe()
        self._clear_given_up = reset
        self._thread = threading.Thread(target=act, args=(fd, self._over), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and wait for it."""
        os.write(self._end, b".")  # forked processes have this end too, so closing it would not be noticed
        self._thread.join()
        os.close(self._end)
        os.close(self._over)
        self._clear_given_up()


group_connections = Connections()  # by this process, for all of its groups


def _sockets() -> dict[int, str]:
    """Return this process's open sockets by descriptor, each with its name in /proc, such as `socket:[48213]`."""
    found = {}
    for name in os.listdir(_FDS):
        try:
            target = os.readlink(f"{_FDS}/{name}")
        except OSError:
            continue  # the folder itself, or closed since
        if target.startswith("socket:"):
            found[int(name)] = target
    return found


def _act_on(fd: int, name: str, act: Callable[[socket.socket], T]) -> T | None:
    """Return the result of `act` for the socket that the descriptor `fd` had when its name in /proc was `name`.

    Return None if that socket has been closed since, also if the number stands for another file now, or if `act` raises
    OSError.
    """
    try:
        copy = os.dup(fd)  # gloo's own threads may close it at any moment
    except OSError:
        return None
    try:
        if os.readlink(f"{_FDS}/{copy}") != name:
            return None
        with socket.socket(fileno=os.dup(copy)) as one:
            return act(one)
    except OSError:
        return None
    finally:
        os.close(copy)


def _shut_down(one: socket.socket, how: int) -> None:
    """Shut down a connected socket in the direction `how`, as socket.shutdown does.

    A socket without a peer is left as it is, and OSError is raised: it may be one on which gloo listens, and gloo ends
    the process when such a socket fails.
    """
    one.getpeername()  # no listener: gloo ends the process where one of its own fails
    one.shutdown(how)


def _connect_as_others(listener: socket.socket) -> bool:
    """Connect to gloo's listening socket as each other rank would and close again, so that gloo waits for none of them.

    The ranks have the numbers 0 to 63 at most; all of these are tried. Return False if the socket does not listen.
    """
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False
    for number in range(_OTHERS):
        with socket.create_connection(listener.getsockname()[:2], _CALL_S) as caller:
            caller.sendall(_NUMBER.pack(number))
    return True
