"""Record how far a training is, for its checkpoints and callbacks."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer.loop.settings import Settings
from trainer.strategies import Strategy
from trainer.world import World


class Progress:
    """The position of the loop (steps, epochs, seconds, last validation), which is saved in each checkpoint."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.step = 0  # optimizer steps done
        self.epoch = 0  # epochs done, their validation included
        self.validated = -1  # the step of the last validation
        self.values: dict[str, float] = {}  # what it found
        self.ending = ""  # the reason given to `Training.end`, if it was called
        self.float_metrics = "mean"  # what a plain number of a metrics function is; in trainings from before, a sum
        self.ending_stays = True  # after a restart too; else the callback decides again
        self._seconds = 0.0
        self._clock = clock
        self._began = clock()

    @property
    def seconds(self) -> float:
        """The seconds of training since its beginning, over all restarts, without work that was lost to kills."""
        return self._seconds + self._clock() - self._began

    @property
    def seconds_before(self) -> float:
        """The seconds of training up to the state that was loaded, 0 if none was; the same on all ranks."""
        return self._seconds

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, and the reason for which a callback has ended the training.

        The reason is "" if none has, or if the training was ended with `stays=False`, so that it may go on after a
        restart.
        """
        return {
            "step": self.step,
            "epoch": self.epoch,
            "validated": self.validated,
            "values": dict(self.values),
            "ending": self.ending if self.ending_stays else "",
            "seconds": self.seconds,
            "float_metrics": self.float_metrics,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counters of a checkpoint."""
        self.step, self.epoch = state["step"], state["epoch"]
        self.validated, self.values, self.ending = state["validated"], dict(state["values"]), state["ending"]
        self._seconds, self._began = state["seconds"], self._clock()
        self.float_metrics = state.get("float_metrics", "sum")


@dataclass(slots=True)
class Training:
    """A running training as callbacks see it.

    `say` logs a line on rank 0; `total_steps` is the number of steps of the whole training, None if unknown.
    """

    settings: Settings
    world: World
    strategy: Strategy
    say: Callable[[str], None]  # a line of the log, from the first rank
    progress: Progress = field(default_factory=Progress)
    total_steps: int | None = None  # None: unknown

    @property
    def step(self) -> int:
        """The number of optimizer steps done since the training began, with those before a restart."""
        return self.progress.step

    @property
    def epoch(self) -> int:
        """The number of epochs done since the training began, with those before a restart."""
        return self.progress.epoch

    def end(self, reason: str, *, stays: bool = True) -> None:
        """Make this step the last, for the reason `reason`; every rank has to call it at the same step.

        The training stays ended after a restart, unless `stays` is False: then the caller decides again in `on_start`.
        """
        if not self.progress.ending:
            self.progress.ending, self.progress.ending_stays = reason, stays
