"""Define the hooks of the training loop (`Callback`), and call those of several callbacks in order (`Callbacks`)."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainer.loop.progress import Training

Line = Mapping[str, Any]  # what is written of a step
Values = Mapping[str, float]  # what a validation found
_OURS = "trainer."


class Callback:
    """Base class of callbacks: override what you need; all ranks call every hook, at the same step.

    The result of state_dict() on rank 0 is saved in each checkpoint and passed to load_state_dict() before on_start().
    """

    def on_start(self, training: Training) -> None:
        """Act when everything is loaded, before the first step; after a restart it is called again."""

    def on_step(self, training: Training) -> None:
        """Act after each optimizer step."""

    def on_log(self, training: Training, line: Line) -> None:
        """Act every `log_every` steps; `line` is a dict of the step's losses, learning rate, speed and times."""

    def on_validation(self, training: Training, values: Values) -> None:
        """Act after each validation; `values` are means over all samples by name."""

    def on_test(self, training: Training, values: Values) -> None:
        """Act after Trainer.test(); `values` are means by name, `training.step` is the step of the tested weights."""

    def on_epoch(self, training: Training) -> None:
        """Act after each epoch; `training.epoch` is the number of finished epochs."""

    def on_done(self, training: Training) -> None:
        """Act when the training has ended and is saved, while the ranks are still together."""

    def on_end(self, training: Training) -> None:
        """Act when the loop ends: done, stopped or failed.

        If it failed because another rank was lost and training continues in this process, on_start is called again.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the callback's state, which each checkpoint contains; by default it is empty."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that state_dict() returned on rank 0; called on all ranks, before on_start()."""


class Callbacks:
    """Several callbacks as one: each hook calls the same hook of every callback, in their order.

    `Callback` says when each hook is called. An exception in one callback is raised, and ends the call.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._named = _named(callbacks)
        # A hook that nobody overrides costs nothing: on_step is on the hot path.
        self._on_step = [one.on_step for one in callbacks if type(one).on_step is not Callback.on_step]

    @property
    def acts_on_end(self) -> bool:
        """Whether a callback from outside of the trainer package overrides `on_end`."""
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
        """Return the callbacks' states by class name (`Name#2` for the second of a class), without empty ones."""
        states = {name: one.state_dict() for name, one in self._named.items()}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the callbacks' states, by the names that `state_dict` gave them.

        For a name that no callback has now, only a warning is logged; a callback without a state in `state` stays as it
        is.
        """
        for name, kept in state.items():
            if name in self._named:
                self._named[name].load_state_dict(kept)
            else:
                logging.getLogger("trainer").warning("the checkpoint has state of %s, which is not here now", name)

    def _each(self, call: Callable[[Callback], None]) -> None:
        """Call `call` with each callback."""
        for one in self._named.values():
            call(one)


def _named(callbacks: Sequence[Callback]) -> dict[str, Callback]:
    """Return the callbacks by class name, in their order; the second of a class is named `Name#2`."""
    found: dict[str, Callback] = {}
    for one in callbacks:
        name = type(one).__name__
        count = sum(type(other).__name__ == name for other in found.values())
        found[f"{name}#{count + 1}" if count else name] = one
    return found
