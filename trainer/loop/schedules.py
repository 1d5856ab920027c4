"""The schedules of all optimizers, one each."""

import logging
from collections.abc import Mapping
from typing import Any

from trainer.errors import BadSettings
from trainer.loop.schedule import MakeSchedule, Schedule
from trainer.strategies import Optimizers

log = logging.getLogger("trainer")
MakeSchedules = MakeSchedule | Mapping[str, MakeSchedule]


class Schedules:
    """One schedule per optimizer, made by one function or by those of the same names."""

    def __init__(self, make: MakeSchedules | None, optimizers: Optimizers, total_steps: int | None) -> None:
        by_name = _by_name(make, optimizers)
        self.each = {name: Schedule(by_name[name], one, total_steps) for name, one in optimizers.items()}

    @property
    def needs_validation(self) -> bool:
        """Whether one of them goes by a monitored value."""
        return any(one.needs_validation for one in self.each.values())

    @property
    def rates(self) -> dict[str, float]:
        """The rates for a line of metrics: the first optimizer's first group, and each named optimizer's."""
        rates = {name: one.rate for name, one in self.each.items()}
        return {"lr": next(iter(rates.values())), **{f"lr_{name}": rate for name, rate in rates.items() if name}}

    def step(self) -> None:
        """Step all of them after an optimizer step."""
        for one in self.each.values():
            one.step()

    def validated(self, values: Mapping[str, float], monitor: str) -> None:
        """Step those that go by a monitored value."""
        for one in self.each.values():
            one.validated(values, monitor)

    def take_given(self) -> None:
        """Use the script's settings instead of the loaded ones, at the loaded position."""
        for one in self.each.values():
            one.take_given()

    def state_dict(self) -> dict[str, Any]:
        return (
            self.each[""].state_dict()
            if "" in self.each
            else {name: one.state_dict() for name, one in self.each.items()}
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them; one that was not saved begins anew, with a warning."""
        saved = _saved_by_name(state)
        for name, one in self.each.items():
            mine = saved.get(name, {})
            if one.state_dict() and not mine:
                title = f"the schedule of {name!r}" if name else "the schedule"
                log.warning("schedule: nothing was saved for %s: it begins anew", title)
            one.load_state_dict(mine)


def _saved_by_name(state: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the state by name; that of a single unnamed optimizer was saved without one."""
    several = bool(state) and all(isinstance(value, Mapping) for value in state.values())
    return state if several else {"": state}


def _by_name(make: MakeSchedules | None, optimizers: Optimizers) -> dict[str, MakeSchedule | None]:
    if not isinstance(make, Mapping):
        return dict.fromkeys(optimizers, make)
    if strange := sorted(make.keys() - optimizers.keys()):
        known = ", ".join(optimizers).strip() or "an optimizer without a name"
        raise BadSettings(f"schedule: expected names of optimizers, got {', '.join(strange)}, where there is {known}")
    return {name: make.get(name) for name in optimizers}
