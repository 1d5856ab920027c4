"""Hooks into the loop, and how their state is kept."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainer.loop.progress import Training

Line = Mapping[str, Any]  # what is written of a step
Values = Mapping[str, float]  # what a validation found
_OURS = "trainer."


class Callback:
    """Override what you need. All ranks call every hook, at the same step.

    What state_dict() gives is kept in each checkpoint (the first rank's word counts) and comes back by
    load_state_dict() before on_start().
    """

    def on_start(self, training: Training) -> None:
        """Everything is loaded; the first step of this start comes next."""

    def on_step(self, training: Training) -> None:
        """After each optimizer step."""

    def on_log(self, training: Training, line: Line) -> None:
        """Every `log_every` steps, with what is known of the step, in plain numbers."""

    def on_validation(self, training: Training, values: Values) -> None:
        """After each validation, with the means over all samples."""

    def on_test(self, training: Training, values: Values) -> None:
        """After Trainer.test(), which is no part of a training: `training.step` is that of the weights."""

    def on_epoch(self, training: Training) -> None:
        """After each epoch; `training.epoch` are done."""

    def on_done(self, training: Training) -> None:
        """Trained to the end, and saved; the ranks are still together."""

    def on_end(self, training: Training) -> None:
        """The loop has been left: done, stopped or failed; or, where ranks meet anew in their processes, to be gone on
        with: on_start follows then.
        """

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what state_dict() gave."""


class Callbacks:
    """Several as one, in their order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._named = _named(callbacks)
        # A hook that nobody overrides costs nothing: on_step is on the hot path.
        self._on_step = [one.on_step for one in callbacks if type(one).on_step is not Callback.on_step]

    @property
    def hear_of_ends(self) -> bool:
        """One of them, of a script's own, does something when the loop is left."""
        overriding = [type(one) for one in self._named.values() if type(one).on_end is not Callback.on_end]
        return any(not one.__module__.startswith(_OURS) for one in overriding)

    def on_start(self, training: Training) -> None:
        self._each(lambda one: one.on_start(training))

    def on_step(self, training: Training) -> None:
        for hook in self._on_step:
            hook(training)

    def on_log(self, training: Training, line: Line) -> None:
        self._each(lambda one: one.on_log(training, line))

    def on_validation(self, training: Training, values: Values) -> None:
        self._each(lambda one: one.on_validation(training, values))

    def on_test(self, training: Training, values: Values) -> None:
        self._each(lambda one: one.on_test(training, values))

    def on_epoch(self, training: Training) -> None:
        self._each(lambda one: one.on_epoch(training))

    def on_done(self, training: Training) -> None:
        self._each(lambda one: one.on_done(training))

    def on_end(self, training: Training) -> None:
        self._each(lambda one: one.on_end(training))

    def state_dict(self) -> dict[str, Any]:
        states = {name: one.state_dict() for name, one in self._named.items()}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, kept in state.items():
            if name in self._named:
                self._named[name].load_state_dict(kept)
            else:
                logging.getLogger("trainer").warning("the checkpoint has state of %s, which is not here now", name)

    def _each(self, call: Callable[[Callback], None]) -> None:
        for one in self._named.values():
            call(one)


def _named(callbacks: Sequence[Callback]) -> dict[str, Callback]:
    """By class; the second of a class as `Name#2`."""
    found: dict[str, Callback] = {}
    for one in callbacks:
        name = type(one).__name__
        count = sum(type(other).__name__ == name for other in found.values())
        found[f"{name}#{count + 1}" if count else name] = one
    return found
