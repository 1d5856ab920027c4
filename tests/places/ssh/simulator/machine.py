"""Virtual time: processes, threads, event loops and clocks of simulated machines, all of them in one real process.

One thing happens at a time, in the order of a heap: so a run is a function of its seed. A thread is a greenlet, which
waits in virtual time alone.
"""

import asyncio
import heapq
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from unittest import mock

from greenlet import getcurrent, greenlet

TAKES_S = 1e-6  # anything takes as long, so that who looks at the clock again and again gets on


class Killed(BaseException):
    """Raised in a thread of a process that has been killed, where it waits or writes."""


class Process:
    """Something that is killed as a whole: its threads and the callbacks of its event loop."""

    def __init__(self, world, host, name):
        self.world, self.host, self.name = world, host, name
        self.pid, self.alive, self.threads, self.ends = next(world.pids), True, [], {}
        self.loop = Loop(self)
        world.processes.append(self)

    def kill(self):
        """End it at once: none of its code runs any more, and its machine closes its connections."""
        if self.alive:
            self.alive = False
            for thread in self.threads:
                thread.killed = True
                self.world.at(self.world.now, None, thread.resume)  # so that the real thread ends
            self.world.net.close_all(self)


class Thread:
    """A virtual thread, with as much of `threading.Thread` as supervisors use."""

    def __init__(self, target, name="", daemon=True, process=None):
        self.process = process or World.current.process
        self.world, self.killed, self.done, self._waits, self._joining = self.process.world, False, False, 0, []
        self._target, self._greenlet = target, greenlet(self._run, self.world.scheduler)

    def start(self):
        self.process.threads.append(self)
        self.world.at(self.world.now, self.process, self.resume)

    def join(self):
        while not self.done:
            thread = self.world.thread_here()
            self._joining.append(thread.waker())
            thread.wait()

    def _run(self):
        try:
            if not self.killed:
                self._target()
        except Killed:
            pass
        except BaseException as error:
            self.world.failed.append(error)
        self.done = True
        for wake in self._joining:
            wake()
        self.process.threads.remove(self)

    def resume(self):
        """Let it go on until it waits again or ends; called by the scheduler."""
        if not self.done:
            self.world.thread = self
            self._greenlet.switch()
            self.world.thread = None

    def waker(self):
        """Return a function that ends the next wait, and does nothing after that."""
        waits = self._waits

        def wake():
            if self._waits == waits:
                self._waits += 1
                self.world.at(self.world.now, self.process, self.resume)

        return wake

    def wait(self, timeout_s=None):
        """Wait for a waker that was taken before, or that long."""
        if self.killed:
            raise Killed
        if timeout_s is not None:
            self.world.at(self.world.now + max(0.0, timeout_s), self.process, self.waker())
        self.world.scheduler.switch()
        if self.killed:
            raise Killed


class SharedEvent:
    """An event of threads and processes, which pass it on without a descriptor."""

    fd = -1

    def __init__(self):
        self._rung, self._wake = False, lambda: None

    def close(self):
        pass

    def set(self):
        self._rung = True
        self._wake()

    def wait(self, timeout_s):
        thread = World.current.thread_here()
        if not self._rung:
            self._wake = thread.waker()
            thread.wait(timeout_s)
        self._rung = False


class Event:
    """As much of `threading.Event` as supervisors use."""

    def __init__(self):
        self._set, self._wakers = False, []

    def set(self):
        self._set = True
        for wake in self._wakers:
            wake()

    def wait(self, timeout_s):
        if not self._set:
            thread = World.current.thread_here()
            self._wakers = [thread.waker()]  # one thread waits for it
            thread.wait(timeout_s)
        return self._set


class Wakeup:
    """As much of a supervisor's `Wakeup` as it uses, without signals."""

    def __init__(self, world):
        self._world, self._wake, self._rung, self.stop_asked = world, None, False, False

    def wake(self):
        self._rung = True
        if self._wake is not None:
            self._wake()

    def sleep(self, timeout_s, also=()):
        thread = self._world.thread_here()
        if not self._rung:
            self._wake = thread.waker()
            thread.wait(timeout_s)
        self._rung = False

    def wait(self, timeout_s):
        deadline = time.monotonic() + timeout_s
        while not self.stop_asked and (left_s := deadline - time.monotonic()) > 0:
            self.sleep(left_s)


class Loop(asyncio.AbstractEventLoop):
    """The event loop of one process, whose callbacks the scheduler calls."""

    def __init__(self, process):
        self._process, self._world = process, process.world
        self._tasks = []  # kept: what is collected is closed at any moment, and would still act

    def time(self):
        return self._process.host.monotonic()

    def get_debug(self):
        return False

    def call_at(self, when, callback, *args, context=None):
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._world.at(self._world.now + max(0.0, when - self.time()), self._process, lambda: self._run(handle))
        return handle

    def call_later(self, delay, callback, *args, context=None):
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_soon(self, callback, *args, context=None):
        handle = asyncio.Handle(callback, args, self, context)
        self._world.at(self._world.now, self._process, partial(self._run, handle))
        return handle

    def call_soon_threadsafe(self, callback, *args, context=None):
        return self.call_soon(callback, *args, context=context)

    def _run(self, handle):
        if not handle.cancelled():
            asyncio._set_running_loop(self)
            try:
                handle._run()
            finally:
                asyncio._set_running_loop(None)

    def _timer_handle_cancelled(self, handle):
        pass

    def create_future(self):
        return asyncio.Future(loop=self)

    def create_task(self, work, *, name=None, context=None):
        self._tasks.append(asyncio.Task(work, loop=self, context=context))
        return self._tasks[-1]

    def close(self):
        """Close what has not ended, of a process that is over with its world."""
        for task in self._tasks:
            if not task.done():
                with suppress(BaseException):
                    task.get_coro().close()

    def run_in_executor(self, executor, work, *args):
        """Do the work at once: no disk is slow."""
        done = self.create_future()
        try:
            done.set_result(work(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def call_exception_handler(self, context):
        error = context.get("exception")
        if error is not None and self._process.alive and not isinstance(error, Killed):
            self._world.failed.append(error)

    def wait_for(self, work):
        """Have the calling thread wait for the result of this coroutine."""
        task, thread = self.create_task(work), self._world.thread_here()
        while not task.done():
            wake = thread.waker()
            task.add_done_callback(lambda _, wake=wake: wake())
            thread.wait()
        return task.result()


class World:
    """The scheduler, and the moment that it is."""

    current: "World"

    def __init__(self):
        self.now, self.process, self.thread, self.failed = 0.0, None, None, []
        self.processes: list[Process] = []
        self.pids, self.scheduler = count(1 << 23), getcurrent()
        self._heap, self._order = [], count()

    def at(self, when, process, act):
        """Have this done at that moment, by a process if that is alive and awake then."""
        heapq.heappush(self._heap, (when, next(self._order), process, act))

    def run_until(self, until, over=lambda: False):
        """Do all that is due until then, or until it is over."""
        while self._heap and self._heap[0][0] <= until:
            if over():
                return
            when, _, process, act = heapq.heappop(self._heap)
            if process is not None and not process.alive:
                continue
            if process is not None and process.host.asleep:
                process.host.postponed.append((process, act))
                continue
            self.now, self.process = max(self.now + TAKES_S, when), process
            with suppress(Killed):  # in a callback: its machine has lost power while it wrote
                act()
            self.process = None
            if self.failed:
                raise self.failed[0]
        self.now = max(self.now, until)

    def thread_here(self):
        if self.thread is None:
            raise AssertionError("a callback may not wait")
        return self.thread

    def end(self):
        """Kill all processes, and let nothing of them act any more."""
        for process in self.processes:
            process.kill()
        self.failed.clear()
        self.run_until(self.now)
        for process in self.processes:
            process.loop.close()
        self.processes.clear()
        self._heap.clear()

    def _clock(self, kind):
        host = self.process.host if self.process is not None else None
        return self.now if host is None else getattr(host, kind)()

    @contextmanager
    def clocks(self) -> Iterator[None]:
        """Set all clocks of this real process to those of whichever machine's turn it is."""
        World.current = self

        def boottime(_):
            return self._clock("boottime")

        with (
            mock.patch.object(time, "monotonic", partial(self._clock, "monotonic")),
            mock.patch.object(time, "time", partial(self._clock, "wall")),
            mock.patch.object(time, "clock_gettime", boottime),
            mock.patch.object(time, "sleep", lambda seconds: self.thread_here().wait(seconds)),
        ):
            yield
