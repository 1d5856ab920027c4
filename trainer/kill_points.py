"""Hold a rank after given steps until it is killed; `launch prove` chooses the steps of its kills this way."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_MOST_S = 60.0  # the process that kills the rank may be gone
_LOOK_S = 0.05


class KillPoints:
    """The steps after which one rank waits to be killed, at most for the seconds given as `most_s`.

    A file in `folder` marks each step that was reached, so that the rank does not wait there again after a restart.
    """

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
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "KillPoints | None":
        """Return the steps in TRAINER_HOLDS (`STEP@RANK,...`) for this rank, or None if there are none."""
        pairs = [pair.partition("@") for pair in environ.get("TRAINER_HOLDS", "").split(",") if pair]
        mine = [int(step) for step, _, rank in pairs if rank == environ.get("RANK")]
        return cls(Path(environ["LAUNCH_RUN_DIR"]), mine) if mine else None

    def is_reached(self, step: int) -> bool:
        """Return whether `step` is at or past a step to wait at that has no mark yet, and mark that step.

        If there are several, only the first is marked.
        """
        while self._steps and step >= self._steps[0]:
            try:
                mark = os.open(
                    self._folder / f"held-{self._steps.pop(0)}", os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
                )
            except OSError:
                continue  # it is there: an earlier process of this rank has waited here
            os.close(mark)
            return True
        return False

    def wait(self) -> None:
        """Wait to be killed, for at most `most_s` seconds."""
        until = self._now() + self._most_s
        while self._now() < until:
            self._sleep(_LOOK_S)
