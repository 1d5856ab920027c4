"""Run Python's garbage collection on all ranks at the same steps, so that ranks do not wait for it one by one."""

import gc

from trainer.loop.callbacks import Callback
from trainer.loop.progress import Training


class Collecting(Callback):
    """A callback that collects garbage after every `every` steps, instead of whenever Python would.

    Objects that exist before the first step are not examined until the training ends.
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
        """Collect garbage if the number of this step is a multiple of `every`."""
        if training.progress.step % self._every == 0:
            gc.collect()

    def on_end(self, training: Training) -> None:  # noqa: ARG002 - a hook
        """Let all objects be collected again, and turn automatic collection on if it was on before `on_start`."""
        gc.unfreeze()
        if self._was_on:
            gc.enable()
