"""Run a training step that the user has written, with several losses and optimizers, as for GANs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from trainer.data import Batch
from trainer.errors import BadSettings
from trainer.loop.losses import Answer, answer_of
from trainer.loop.settings import Settings
from trainer.strategies import Turns, refuse_own_step

StepFunction = Callable[[nn.Module, Any, Turns], Any]  # returns what a loss function does, for the lines of metrics


@dataclass(frozen=True, slots=True)
class OwnStep:
    """The user's step function, and the object that it gets to train with.

    `run` calls the function for each micro-batch, and `end` is called once after the last one of the step.
    """

    function: StepFunction
    turns: Turns  # the object that the function calls for backward passes and steps of the optimizers

    def run(self, model: nn.Module, data: Any, batch: Batch, number: int) -> Answer:
        """Run the user's function on one micro-batch of step `number`: its content is `data`, its weight in `batch`.

        Return the loss and other values that the function returned, for metrics. All time of the function counts as the
        phase `forward`, also that of its backward passes. Raises TrainerError if it returned anything else.
        """
        self.turns.begin(number, batch.scale, ends_step=batch.ends_step)
        return answer_of(self.function(model, data, self.turns))

    def end(self) -> Tensor | None:
        """End the step after its last micro-batch, in which the user's function has stepped the optimizers.

        Gradients that no optimizer has used are dropped. Returns the norm of the gradients, or None if none were
        clipped.
        """
        return self.turns.end()


def refuse_beside_own_step(settings: Settings) -> None:
    """Raise BadSettings for a strategy or a setting, such as `lr_find`, that does not go with a user's own step."""
    refuse_own_step(settings.strategy)
    for name in ("spike_factor", "lr_find", "count_flops"):
        if getattr(settings, name):
            raise BadSettings(f"{name}: does not go with a training step of your own\nhint: leave out {name}, or step")
