"""Run Python's garbage collection on all ranks at the same steps, so that ranks do not wait for it one by one."""

import gc

from trainer.loop.callbacks import Callback
from trainer.loop.progress import Training


class Collecting(Callback):
    """A callback that collects garbage every so many steps, instead of whenever Python would.

    Objects that exist before the first step are not examined again.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._was_on = False

    def on_start(self, training: Training) -> None:  # noqa: ARG002 - a hook
        """Turn off automatic collection and exempt existing objects from all collections."""
        self._was_on = gc.isenabled()
        gc.collect()
        gc.freeze()
        gc.disable()

    def on_step(self, training: Training) -> None:
        """Collect garbage if this step is one of those to collect after."""
        if training.progress.step % self._every == 0:
            gc.collect()

    def on_end(self, training: Training) -> None:  # noqa: ARG002 - a hook
        """Undo what `on_start` did."""
        gc.unfreeze()
        if self._was_on:
            gc.enable()
