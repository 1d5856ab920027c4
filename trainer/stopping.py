"""Handle requests to stop, and agree over ranks on the step at which to stop, without a message in every step."""

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
    """A stop requested by SIGTERM or SIGUSR1: the handler sets a flag, and the loop acts at the end of a step."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._listening = False
        self._before: dict[int, Any] = {}

    def listen(self) -> None:
        """Handle the signals from now on.

        Outside the main thread nothing is done, as Python allows no handlers there.
        """
        if threading.current_thread() is threading.main_thread():
            self._listening = True
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._on_signal)

    def unlisten(self) -> None:
        """Restore the handlers that were installed before."""
        if not self._listening:
            return
        self._listening = False
        for number, handler in self._before.items():
            # None: C code handled it (faulthandler), which nobody can put back.
            if handler is not None and signal.getsignal(number) == self._on_signal:
                signal.signal(number, handler)

    def ask(self) -> None:
        """Request a stop from within the process, as the signals do."""
        self._asked.set()

    @property
    def asked(self) -> bool:
        """Whether this rank was asked to stop."""
        return self._asked.is_set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Set the flag; or, after `unlisten`, do what the handler that was installed before would do.

        That is the case if another handler, installed later, has put this one back.
        """
        if self._listening:
            self._asked.set()
            return
        # A later handler has restored this one after `unlisten`: the signal is for the handler before it.
        before = self._before[number]
        if callable(before):
            before(number, frame)
        elif before == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


class Votes:
    """A vote of all ranks, after some steps, on whether any rank has set a flag; all learn it at the same step.

    An all-reduce at each step would cost a short step a tenth of its time, so ranks vote about ten times a second. Each
    vote also agrees on the number of steps until the next one.
    """

    def __init__(self, group: dist.ProcessGroup | None, now: Callable[[], float] = time.monotonic) -> None:
        self._group, self._now = group, now
        self._next_step: int | None = None
        self._last: tuple[int, float] | None = None
        self._interval = 1

    def due(self, step: int) -> bool:
        """Return whether all ranks vote after this step; the result is the same on all ranks.

        Each vote decides after how many steps the next one comes.
        """
        return self._group is None or self._next_step is None or step >= self._next_step

    def vote(self, step: int, flags: Sequence[bool]) -> list[bool]:
        """Return for each flag whether any rank has set it; all ranks call it after a step for which `due` is True.

        The flags are this rank's, in the same order on all ranks.
        """
        if self._group is None:
            return list(flags)
        steps = self._steps_until_vote(step) if self._group.rank() == 0 else 0
        votes = torch.tensor([*flags, steps], dtype=torch.int64)
        dist.all_reduce(votes, dist.ReduceOp.MAX, group=self._group)
        *up, self._interval = votes.tolist()
        self._next_step = step + self._interval
        return [bool(flag) for flag in up]

    def _steps_until_vote(self, step: int) -> int:
        """Return after how many steps to vote next: as many as take a tenth of a second at the present speed.

        The speed is that since the last vote. The number is at least 1, and at most 32 and twice the number that was
        agreed on at the last vote. `step` is the step of the present vote, whose time is noted.
        """
        now = self._now()
        steps = 1
        if self._last is not None:
            steps, seconds = step - self._last[0], now - self._last[1]
            if steps > 0 and seconds >= 0:
                steps = int(_VOTE_EVERY_S * steps / max(seconds, 1e-6))
        self._last = (step, now)
        return max(1, min(steps, 2 * self._interval, _MOST_STEPS))
