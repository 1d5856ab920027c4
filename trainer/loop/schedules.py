"""The schedules of all optimizers: each has its own."""

import logging
from collections.abc import Mapping
from typing import Any

from trainer.errors import BadSettings
from trainer.loop.schedule import MakeSchedule, Schedule
from trainer.strategies import Optimizers

log = logging.getLogger("trainer")
MakeSchedules = MakeSchedule | Mapping[str, MakeSchedule]


class Schedules:
    """One function makes one for each; several by name are those of the optimizers with these names."""

    def __init__(self, make: MakeSchedules | None, optimizers: Optimizers, total_steps: int | None) -> None:
        by_name = _by_name(make, optimizers)
        self.each = {name: Schedule(by_name[name], one, total_steps) for name, one in optimizers.items()}

    @property
    def needs_validation(self) -> bool:
        return any(one.needs_validation for one in self.each.values())

    @property
    def rates(self) -> dict[str, float]:
        """For the line of metrics: that of the first group of the first optimizer, and of each that has a name."""
        rates = {name: one.rate for name, one in self.each.items()}
        return {"lr": next(iter(rates.values())), **{f"lr_{name}": rate for name, rate in rates.items() if name}}

    def step(self) -> None:
        """After each optimizer step."""
        for one in self.each.values():
            one.step()

    def validated(self, values: Mapping[str, float], monitor: str) -> None:
        """After each validation."""
        for one in self.each.values():
            one.validated(values, monitor)

    def take_given(self) -> None:
        """The script's word counts, not the checkpoint's; but for how far it is."""
        for one in self.each.values():
            one.take_given()

    def state_dict(self) -> dict[str, Any]:
        return (
            self.each[""].state_dict()
            if "" in self.each
            else {name: one.state_dict() for name, one in self.each.items()}
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Who was not there when it was saved begins anew, and is told of."""
        saved = _saved_by_name(state)
        for name, one in self.each.items():
            mine = saved.get(name, {})
            if one.state_dict() and not mine:
                title = f"the schedule of {name!r}" if name else "the schedule"
                log.warning("schedule: nothing was saved for %s: it begins anew", title)
            one.load_state_dict(mine)


def _saved_by_name(state: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """That of an only optimizer without a name was saved as it is, with numbers among its values."""
    several = bool(state) and all(isinstance(value, Mapping) for value in state.values())
    return state if several else {"": state}


def _by_name(make: MakeSchedules | None, optimizers: Optimizers) -> dict[str, MakeSchedule | None]:
    if not isinstance(make, Mapping):
        return dict.fromkeys(optimizers, make)
    if strange := sorted(make.keys() - optimizers.keys()):
        known = ", ".join(optimizers).strip() or "an optimizer without a name"
        raise BadSettings(f"schedule: expected names of optimizers, got {', '.join(strange)}, where there is {known}")
    return {name: make.get(name) for name in optimizers}
