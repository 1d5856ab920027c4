"""Steps at which a rank waits to be killed. `launch prove` sets them, so that steps follow each kill."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_MOST_S = 60.0  # whoever was to kill the rank may be gone
_LOOK_S = 0.05


class Holds:
    """The steps of one rank. Each counts once: a mark in `folder` has the start after the kill pass it."""

    def __init__(
        self,
        folder: Path,
        steps: Sequence[int],
        most_s: float = _MOST_S,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder, self._steps = folder, sorted(steps)
        self._most_s, self._now, self._sleep = most_s, now, sleep

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "Holds | None":
        """Read `STEP@RANK,...` of TRAINER_HOLDS; None if this rank waits nowhere."""
        pairs = [pair.partition("@") for pair in environ.get("TRAINER_HOLDS", "").split(",") if pair]
        mine = [int(step) for step, _, rank in pairs if rank == environ.get("RANK")]
        return cls(Path(environ["LAUNCH_RUN_DIR"]), mine) if mine else None

    def begins(self, step: int) -> bool:
        """Return whether the rank is to wait now that it has done `step`, and mark that it has come here."""
        while self._steps and step >= self._steps[0]:
            try:
                mark = os.open(
                    self._folder / f"held-{self._steps.pop(0)}", os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
                )
            except OSError:
                continue  # it is there: another start of this rank has waited here
            os.close(mark)
            return True
        return False

    def wait(self) -> None:
        """Wait to be killed, but not for ever."""
        until = self._now() + self._most_s
        while self._now() < until:
            self._sleep(_LOOK_S)
