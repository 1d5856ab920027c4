"""The user's learning-rate scheduler, stepped once per optimizer step."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from trainer.loop.monitors import monitored

MakeSchedule = Callable[[Optimizer, int | None], LRScheduler]


class Schedule:
    """Made anew where the rate that it starts from is found by the learning-rate finder."""

    def __init__(self, make: MakeSchedule | None, optimizer: Optimizer, total_steps: int | None) -> None:
        self._make, self._optimizer, self._total_steps = make, optimizer, total_steps
        self._before = [{key: _value(value) for key, value in group.items()} for group in optimizer.param_groups]
        self._scheduler = make(optimizer, total_steps) if make is not None else None
        self._stepped = False

    def step(self) -> None:
        """After each step, one that was left out too: a schedule goes by the number of the step."""
        if self._scheduler is None or self.needs_validation:
            return
        if self._stepped:
            self._scheduler.step()
            return
        with warnings.catch_warnings():  # that the optimizer has not been stepped: it was left out
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            self._scheduler.step()
        self._stepped = True

    @property
    def needs_validation(self) -> bool:
        return isinstance(self._scheduler, ReduceLROnPlateau)

    def validated(self, values: Mapping[str, float], monitor: str) -> None:
        """After each validation: ReduceLROnPlateau goes by what is monitored, not by steps."""
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(monitored(values, monitor))

    def start_from(self, rate: float) -> None:
        """The first group starts from `rate`, the others in their ratio to it."""
        first = self._before[0]["lr"]
        for group, before in zip(self._optimizer.param_groups, self._before, strict=True):
            before["lr"] = rate * (before["lr"] / first if first else 1.0)
            for key in set(group) - set(before):
                del group[key]  # what the scheduler has noted, `initial_lr` above all
            set_group(group, before)
        self._scheduler = self._make(self._optimizer, self._total_steps) if self._make is not None else None

    def state_dict(self) -> dict[str, Any]:
        return self._scheduler.state_dict() if self._scheduler is not None else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._scheduler is not None and state:
            self._scheduler.load_state_dict(dict(state))


def set_group(group: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Set options of a parameter group. A rate that is a tensor is read by captured graphs: it stays the same one."""
    for key, value in values.items():
        if key == "lr" and isinstance(group.get("lr"), Tensor):
            group["lr"].fill_(value)
        elif key != "params":
            group[key] = value


def _value(value: Any) -> Any:
    return float(value) if isinstance(value, Tensor) and value.numel() == 1 else value
