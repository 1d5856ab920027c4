"""Requests to stop, and votes: how ranks agree on the step at which they act, without asking each other every step."""

import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_VOTE_EVERY_S = 0.1
_MOST_STEPS = 32  # between two votes: a bound for a loop whose steps suddenly become slow


class StopRequest:
    """SIGTERM or SIGUSR1 to this rank. The handler only sets a flag: the loop acts at a step's end."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._listening = False
        self._before: dict[int, Any] = {}

    def listen(self) -> None:
        """From now on. Only the main thread may handle signals; elsewhere `ask` is what is left."""
        if threading.current_thread() is threading.main_thread():
            self._listening = True
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._on_signal)

    def unlisten(self) -> None:
        """Put back what handled the signals before."""
        if not self._listening:
            return
        self._listening = False
        for number, handler in self._before.items():
            # None: C code handled it (faulthandler), which nobody can put back.
            if handler is not None and signal.getsignal(number) == self._on_signal:
                signal.signal(number, handler)

    def ask(self) -> None:
        self._asked.set()

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._listening:
            self._asked.set()
            return
        # Somebody who listened after us has put us back, although we listen no more: it is for whoever was before us.
        before = self._before[number]
        if callable(before):
            before(number, frame)
        elif before == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


class Votes:
    """Flags that go up on any rank are seen by all ranks at the same step.

    An all-reduce at each step would cost a short step a tenth of its time. So ranks vote about ten times a second: each
    vote also says after how many steps the next one is, so that all take part in the same ones.
    """

    def __init__(self, group: dist.ProcessGroup | None, now: Callable[[], float] = time.monotonic) -> None:
        self._group, self._now = group, now
        self._next_step: int | None = None
        self._last: tuple[int, float] | None = None
        self._interval = 1

    def due(self, step: int) -> bool:
        """Whether all ranks vote after this step."""
        return self._group is None or self._next_step is None or step >= self._next_step

    def vote(self, step: int, flags: Sequence[bool]) -> list[bool]:
        """For each flag, whether it is up on some rank."""
        if self._group is None:
            return list(flags)
        wish = self._wish(step) if self._group.rank() == 0 else 0
        votes = torch.tensor([*flags, wish], dtype=torch.int64)
        dist.all_reduce(votes, dist.ReduceOp.MAX, group=self._group)
        *up, self._interval = votes.tolist()
        self._next_step = step + self._interval
        return [bool(flag) for flag in up]

    def _wish(self, step: int) -> int:
        now = self._now()
        wish = 1
        if self._last is not None:
            steps, seconds = step - self._last[0], now - self._last[1]
            if steps > 0 and seconds >= 0:
                wish = int(_VOTE_EVERY_S * steps / max(seconds, 1e-6))
        self._last = (step, now)
        return max(1, min(wish, 2 * self._interval, _MOST_STEPS))
