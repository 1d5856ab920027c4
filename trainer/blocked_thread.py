"""Watch a thread that may wait in torch for a message that never comes.

gloo drops a message that it cannot send while its connection breaks, and its receiver waits until the operation times
out. A thread cannot be interrupted in there, so the process kills itself and launch replaces the rank.
"""

import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

log = logging.getLogger("trainer")
_OF_TORCH, _NOT = "torch.", "torch.utils.data"  # which waits for workers, and may do so for long
_WORK_S = 0.05  # of the processor, that is no work
_LOOK_S = 1.0  # that a look counts for at most: all of the process may have been stopped since the last one


class BlockedThread:
    """Measures how long another thread has been blocked in a torch operation.

    `ident` is Python's number of the thread and `task` the kernel's. A threading.Thread has the wrong native_id in a
    forked process, as ranks are: that of the process it was forked from.
    """

    def __init__(self, ident: int, task: int, now: Callable[[], float] = time.monotonic) -> None:
        self._ident, self._now = ident, now
        self._stat = Path(f"/proc/self/task/{task}/stat")
        self._clock = time.pthread_getcpuclockid(self._ident)
        self._last, self._spent, self._waited = now(), self._processor_s(), 0.0

    def blocked_s(self) -> float:
        """Return how many of the watched seconds the thread has slept in a torch operation, using no CPU."""
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
        text = "killed by itself, to be replaced: for %.0f s it waited in what was cut off\n%s"
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
        """Return whether the thread is in torch and the kernel has it sleeping, not waiting for a CPU or a disk."""
        frame = self._frame()
        module = "" if frame is None else str(frame.f_globals.get("__name__", ""))
        in_torch = module.startswith(_OF_TORCH) and not module.startswith(_NOT)
        return in_torch and self._stat.read_text().rpartition(")")[2].split()[0] == "S"
