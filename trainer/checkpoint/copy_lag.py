"""Decide how long a save waits until earlier checkpoints are copied to a second disk, if nodes share no disk."""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainer.checkpoint_files.retention import Stock, safest
from trainer.wire import Every

log = logging.getLogger("trainer")


class CopyLag:
    """Decides on rank 0, for all ranks, whether the next save waits for copies on a second disk.

    `limit` (steps or seconds) is how far the newest checkpoint may be ahead of the newest copied one; beyond it the
    next save waits. If no part of a copy arrives for `patience_s`, a warning is logged and saves no longer wait, until
    copies are within the limit again.
    """

    def __init__(self, limit: Every, patience_s: float = 60.0, now: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._patience_s, self._now = limit, patience_s, now
        self._seen: object = None
        self._moved_at: float | None = None  # None: no save waits
        self._gave_up = False

    def waits(self, disks: Sequence[Stock], copied_bytes: int, saved_at: Mapping[int, float]) -> bool:
        """Return whether the next save has to keep waiting: copies lag by more than the limit, and still arrive.

        The limit is how many steps or seconds the newest checkpoint may be ahead of the newest copied one. The caller
        asks again and again until the answer is False, which it always is with a single disk. `disks` has for each disk
        its checkpoint files, by save, and `copied_bytes` is the size of all copies so far. `saved_at` gives the time of
        each save by step, in seconds since 1970.
        """
        newest, safe = max(saved_at, default=0), safest(disks)
        if len(disks) < 2 or not self._is_exceeded(newest, safe, saved_at):
            self._gave_up, self._moved_at = False, None
            return False
        now, seen = self._now(), (safe, copied_bytes)
        where = "no checkpoint has a second copy" if safe is None else f"the newest second copy is of step {safe}"
        if self._moved_at is None or seen != self._seen:
            if self._moved_at is None and not self._gave_up:
                log.info("after step %d the next save waits for second copies: %s", newest, where)
            self._seen, self._moved_at = seen, now
        if not self._gave_up and now - self._moved_at >= self._patience_s:
            self._gave_up = True
            log.warning(
                "step %d: %s, and no part of one has arrived for %.0f s: saves no longer wait",
                newest,
                where,
                self._patience_s,
            )
        if self._gave_up:
            self._moved_at = None
        return not self._gave_up

    def _is_exceeded(self, newest: int, safe: int | None, saved_at: Mapping[int, float]) -> bool:
        """Return whether step `newest` is further ahead of the copied step `safe` than the limit, in steps or seconds.

        `safe` is the newest copied step; if it is None, steps are counted from 0, and seconds from the oldest save.
        `saved_at` gives the time of each save by step, in seconds since 1970.
        """
        if self._limit.steps is not None:
            return newest - (safe or 0) > self._limit.steps
        if self._limit.seconds is None or newest == safe:
            return False
        since = min(saved_at.values()) if safe is None else saved_at.get(safe, saved_at[newest])
        return saved_at[newest] - since > self._limit.seconds


def bytes_in(folder: Path) -> int:
    """Return the total size of the files in `folder`, including unfinished ones, which grows while a copy arrives."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # it has just got another name
                total += os.lstat(os.path.join(place, name)).st_size
    return total
