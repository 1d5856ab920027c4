"""Step the user's learning-rate schedulers, one for each optimizer, once per optimizer step."""

import copy
import logging
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from trainer.errors import BadSettings
from trainer.loop.argument_checks import kind_of
from trainer.loop.monitors import monitored
from trainer.strategies import Optimizers

log = logging.getLogger("trainer")
MakeSchedule = Callable[[Optimizer, int | None], LRScheduler]
MakeSchedules = MakeSchedule | Mapping[str, MakeSchedule]


class Schedule:
    """The scheduler of one optimizer.

    The user's function makes it, and makes a new one if the learning-rate finder sets another rate, or if the script's
    options of the optimizer, such as its rate, replace those of the loaded checkpoint.
    """

    def __init__(self, make: MakeSchedule | None, optimizer: Optimizer, total_steps: int | None) -> None:
        self._make, self._optimizer, self._total_steps = make, optimizer, total_steps
        self._before = [{key: _value(value) for key, value in group.items()} for group in optimizer.param_groups]
        self._scheduler = make(optimizer, total_steps) if make is not None else None
        if make is not None and not hasattr(self._scheduler, "step"):
            raise BadSettings(
                f"schedule: expected a scheduler from the function, got {kind_of(self._scheduler)}\n"
                "hint: LambdaLR(optimizer, function) makes one of a function of the step"
            )
        self._stepped = False

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Copies of the optimizer's parameter groups from before the scheduler was made, without `params`.

        After `start_from(rate)`, which begins the schedule again at another rate, they have the rates that it has set.
        """
        return copy.deepcopy([{key: group[key] for key in group if key != "params"} for group in self._before])

    @property
    def rate(self) -> float:
        """The current learning rate of the first parameter group."""
        return float(self._optimizer.param_groups[0]["lr"])

    def step(self) -> None:
        """Step the scheduler after an optimizer step; a ReduceLROnPlateau is left to `validated`."""
        if self._scheduler is None or self.needs_validation:
            return
        if self._stepped:
            self._scheduler.step()
        else:
            self._step_quietly(1)
        self._stepped = True

    def _step_quietly(self, steps: int) -> None:
        """Step the scheduler so many times, without torch's warning that the optimizer was not stepped yet."""
        if self._scheduler is None or self.needs_validation:
            return
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            for _ in range(steps):
                self._scheduler.step()

    @property
    def needs_validation(self) -> bool:
        """Whether the scheduler is a ReduceLROnPlateau, which depends on a monitored validation value."""
        return isinstance(self._scheduler, ReduceLROnPlateau)

    def validated(self, values: Mapping[str, float], monitor: str) -> None:
        """Step a ReduceLROnPlateau by the value called `monitor`, after a validation; other schedulers do nothing.

        Raises BadSettings if a ReduceLROnPlateau is stepped and `values` has no such value.
        """
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(monitored(values, monitor))

    def start_from(self, rate: float) -> None:
        """Begin the schedule again, at its first step, with the learning rate `rate` for the first parameter group.

        Other groups keep the ratio of their rates to the first.
        """
        first = self._before[0]["lr"]
        for before in self._before:
            before["lr"] = rate * (before["lr"] / first if first else 1.0)
        self._make_again()

    @property
    def follows_the_rate(self) -> bool:
        """Whether the schedule begins at another rate if the optimizer's learning rate is another.

        OneCycleLR with a fixed `max_lr`, for one, does not.
        """
        if self._make is None:
            return True
        before, rates = self.groups, []
        for rate in (1.0, 2.0):
            self.start_from(rate)
            group = self._optimizer.param_groups[0]
            rates.append(float(group.get("initial_lr", group["lr"])))
        self._before = before
        self._make_again()
        return rates[0] != rates[1]

    def take_given(self) -> None:
        """Use the script's optimizer and schedule options instead of those loaded from the checkpoint.

        The position in the schedule stays the loaded one.
        """
        done = self._scheduler.last_epoch if self._scheduler is not None else 0
        if self.needs_validation:
            self._reset_groups()  # what it knows of the values before stays
        else:
            self._make_again()
            self._step_quietly(done)

    def _make_again(self) -> None:
        """Restore the optimizer's options from before there was a scheduler, and make the scheduler again."""
        self._reset_groups()
        self._scheduler = self._make(self._optimizer, self._total_steps) if self._make is not None else None

    def _reset_groups(self) -> None:
        """Restore the options of the optimizer's groups from before the scheduler was made; the parameters stay.

        If `start_from` was called, its learning rates are set. Options that the scheduler has added are removed.
        """
        for group, before in zip(self._optimizer.param_groups, self._before, strict=True):
            for key in set(group) - set(before) - {"params"}:
                del group[key]  # what the scheduler has noted, `initial_lr` above all
            set_group(group, before)

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's state, or an empty dict if there is no scheduler."""
        return self._scheduler.state_dict() if self._scheduler is not None else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the scheduler; do nothing for an empty state."""
        if self._scheduler is not None and state:
            self._scheduler.load_state_dict(dict(state))


def set_group(group: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Set options of a parameter group, except `params`; if its `lr` is a tensor, the tensor is filled."""
    for key, value in values.items():
        if key == "lr" and isinstance(group.get("lr"), Tensor):
            group["lr"].fill_(value)
        elif key != "params":
            group[key] = value


def _value(value: Any) -> Any:
    """Return a tensor of one element as a float, and anything else unchanged."""
    return float(value) if isinstance(value, Tensor) and value.numel() == 1 else value


class Schedules:
    """The learning-rate schedule of each optimizer.

    `make` is the user's function that makes a scheduler for (optimizer, number of all steps or None), or a dictionary
    of such functions by the optimizer's name. An optimizer without one keeps its rate.
    """

    def __init__(self, make: MakeSchedules | None, optimizers: Optimizers, total_steps: int | None) -> None:
        by_name = _by_name(make, optimizers)
        self.each = {name: Schedule(by_name[name], one, total_steps) for name, one in optimizers.items()}

    @property
    def needs_validation(self) -> bool:
        """Whether one of the schedulers is a ReduceLROnPlateau, which depends on a monitored validation value."""
        return any(one.needs_validation for one in self.each.values())

    @property
    def rates(self) -> dict[str, float]:
        """The learning rates for a line of metrics: `lr` of the first optimizer, and `lr_NAME` of each with a name."""
        rates = {name: one.rate for name, one in self.each.items()}
        return {"lr": next(iter(rates.values())), **{f"lr_{name}": rate for name, rate in rates.items() if name}}

    def step(self) -> None:
        """Step every scheduler after an optimizer step."""
        for one in self.each.values():
            one.step()

    def validated(self, values: Mapping[str, float], monitor: str) -> None:
        """Step the schedulers that depend on a monitored value (ReduceLROnPlateau); call it after each validation.

        `values` has the results of the validation by name, and `monitor` is the name of the monitored one.
        """
        for one in self.each.values():
            one.validated(values, monitor)

    def take_given(self) -> None:
        """Use the script's optimizer and schedule options instead of those loaded from the checkpoint.

        The position in the schedules stays the loaded one.
        """
        for one in self.each.values():
            one.take_given()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the only schedule, or the states of several by the optimizer's name."""
        return (
            self.each[""].state_dict()
            if "" in self.each
            else {name: one.state_dict() for name, one in self.each.items()}
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the schedulers; one that was not saved starts from step 0, with a warning."""
        saved = _saved_by_name(state)
        for name, one in self.each.items():
            mine = saved.get(name, {})
            if one.state_dict() and not mine:
                title = f"the schedule of {name!r}" if name else "the schedule"
                log.warning("schedule: nothing was saved for %s: it starts from step 0", title)
            one.load_state_dict(mine)


def _saved_by_name(state: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the saved scheduler states by the optimizer's name.

    With several optimizers `state` already has this form. With one, `state` is that scheduler's state itself, and the
    name is "".
    """
    several = bool(state) and all(isinstance(value, Mapping) for value in state.values())
    return state if several else {"": state}


def _by_name(make: MakeSchedules | None, optimizers: Optimizers) -> dict[str, MakeSchedule | None]:
    """Return {optimizer's name: the function that makes its scheduler, or None if it is to have none}.

    `make` is one function for all optimizers, None, or a dict by name, in which an optimizer may be missing. Raises
    BadSettings for names of no optimizer.
    """
    if not isinstance(make, Mapping):
        return dict.fromkeys(optimizers, make)
    if strange := sorted(make.keys() - optimizers.keys()):
        known = ", ".join(optimizers).strip() or "an optimizer without a name"
        raise BadSettings(f"schedule: expected names of optimizers, got {', '.join(strange)}, where there is {known}")
    return {name: make.get(name) for name in optimizers}
