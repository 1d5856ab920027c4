"""Watch a monitored value: stop the training early, and keep the best model."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainer.errors import BadSettings
from trainer.loop.callbacks import Callback, Values
from trainer.loop.progress import Training


@dataclass(slots=True)
class Best:
    """The best value so far; NaN is never better.

    `mode` is min or max; a value is better only by more than `min_delta`.
    """

    mode: str  # min or max
    min_delta: float = 0.0
    value: float | None = None

    def take(self, value: float) -> bool:
        """Return whether `value` is better than the best so far, and if so store it."""
        if math.isnan(value):
            return False
        gain = math.inf if self.value is None else self.value - value if self.mode == "min" else value - self.value
        # Two infinities have no difference: NaN, which is no gain.
        better = self.value is None or gain > self.min_delta
        if better:
            self.value = value
        return better


class EarlyStopping(Callback):
    """A callback that ends the training after `patience` validations in a row without a better value of `monitor`.

    A value is better than the best so far if it is smaller (`mode` min) or larger (max) by more than `min_delta`; NaN
    never is. The count is saved in checkpoints, so that it continues after a restart.
    """

    def __init__(self, patience: int, monitor: str = "val_loss", mode: str = "min", min_delta: float = 0.0) -> None:
        self.patience, self.monitor = patience, monitor
        self.best = Best(mode, min_delta)
        self.bad = 0

    def on_start(self, training: Training) -> None:
        """End the training at once if the loaded state counts `patience` or more validations without a better value."""
        self._end_if_due(training)  # again: `patience` may have changed since

    def on_validation(self, training: Training, values: Values) -> None:
        """Count validations in a row without a better value, and end the training once there are `patience` of them.

        Raises BadSettings if the monitored value is missing.
        """
        self.bad = 0 if self.best.take(monitored(values, self.monitor)) else self.bad + 1
        self._end_if_due(training)

    def _end_if_due(self, training: Training) -> None:
        """End the training if `patience` validations in a row had no better value."""
        if self.bad >= self.patience:
            training.end(f"early stopping: {self.bad} validations without a better {self.monitor}", stays=False)

    def state_dict(self) -> dict[str, Any]:
        """Return the best value of `monitor` so far (`best`), and how many validations since were no better (`bad`)."""
        return {"best": self.best.value, "bad": self.bad}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the best value and the number of validations since."""
        self.best.value, self.bad = state["best"], state["bad"]


class BestModel(Callback):
    """A callback that calls `save(step, the validation's values)` whenever the monitored one is the best so far."""

    def __init__(
        self, save: Callable[[int, Mapping[str, float]], None], monitor: str = "val_loss", mode: str = "min"
    ) -> None:
        self.monitor = monitor
        self.best = Best(mode)
        self.step = -1
        self._save = save

    def on_start(self, training: Training) -> None:
        """Call `save` again if the loaded checkpoint is of the step with the best value.

        A kill may have come between that checkpoint and the first call. The only value passed is then the monitored
        one.
        """
        # The kill may have come when its checkpoint was committed, but not yet saved separately.
        if self.best.value is not None and self.step == training.step:
            self._save(self.step, {self.monitor: self.best.value})

    def on_validation(self, training: Training, values: Values) -> None:
        """Call `save` if the monitored value is better than all before.

        Raises BadSettings if it is missing.
        """
        value = monitored(values, self.monitor)
        if self.best.take(value):
            self.step = training.step
            self._save(training.step, values)

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and its step."""
        return {"best": self.best.value, "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the best value and its step, as `state_dict` returned them under "best" and "step"."""
        self.best.value, self.step = state["best"], state["step"]


def monitored(values: Values, name: str) -> float:
    """Return the monitored value. Raises BadSettings if there is none of that name."""
    check_name(values, name)
    return values[name]


def check_name(known: Iterable[str], name: str) -> None:
    """Raise BadSettings if the monitored value, `name`, is none of those that a validation reports (`known`)."""
    if name not in known:
        raise BadSettings(f"monitor: expected one of {', '.join(sorted(known))}, got {name!r}")
