"""Metrics that keep a state of their own, as torchmetrics has them: updated batch by batch, then reduced over ranks."""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from trainer.errors import TrainerError
from trainer.loop.sums import gathered
from trainer.world import World

State = dict[str, Any]  # a tensor, or a list of them, by the name that the metric gives it


def is_of_object(found: object) -> bool:
    """Whether it is a metric and what it is to be updated with, not a sum."""
    return isinstance(found, tuple) and bool(found) and hasattr(found[0], "update") and hasattr(found[0], "compute")


class MetricObjects:
    """Those of one pass over the validation data."""

    def __init__(self) -> None:
        self._begun: set[str] = set()
        self._parts: dict[str, Any] = {}  # collections: each of theirs by itself

    @property
    def names(self) -> list[str]:
        return list(self._parts)

    def update(self, name: str, metric: Any, *args: Any) -> None:
        """With a batch; with the first one of the pass it begins anew."""
        if name not in self._begun:
            self._begun.add(name)
            metric.reset()
            device = next((one.device for one in args if isinstance(one, Tensor)), None)
            metric.to(device)
        metric.update(*args)
        self._parts |= dict(_parts(name, metric))

    def values(self, world: World) -> dict[str, float]:
        """The same on all ranks, which meet here: of each the first rank that has a state of it calculates."""
        of_ranks = gathered({name: _state(metric) for name, metric in self._parts.items()}, world)
        mine: dict[str, float] = {}
        for name, metric in self._parts.items():
            states = {rank: one[name] for rank, one in enumerate(of_ranks) if name in one}
            if min(states) == world.rank:
                mine[name] = _value(name, _computed(metric, list(states.values())))
            metric.reset()
        return {name: value for one in gathered(mine, world) for name, value in one.items()}


def _parts(name: str, metric: Any) -> Iterator[tuple[str, Any]]:
    """A collection has items."""
    if hasattr(metric, "items"):
        yield from ((f"{name}_{key}", one) for key, one in metric.items())
    else:
        yield name, metric


def _state(metric: Any) -> State:
    return {key: _on_the_host(value) for key, value in metric.metric_state.items()}


def _on_the_host(value: Any) -> Any:
    return [one.detach().cpu() for one in value] if isinstance(value, list) else value.detach().cpu()


def _computed(metric: Any, states: list[State]) -> Any:
    """By the metric's own rules of reduction; what it keeps in lists is put together in the order of ranks."""
    metric.reset()
    metric.to("cpu")
    key_of: dict[int, str] = {}
    for key, value in states[0].items():
        if isinstance(value, list):
            setattr(metric, key, [one for state in states for one in state[key]])
        else:
            setattr(metric, key, value)
            key_of[id(value)] = key

    def of_all(mine: Tensor, **_: Any) -> list[Tensor]:
        """In the place of what would ask all ranks once more."""
        return [state[key_of[id(mine)]] for state in states] if id(mine) in key_of else [mine]

    kept = metric.dist_sync_fn, metric.distributed_available_fn
    metric.dist_sync_fn, metric.distributed_available_fn = of_all, lambda: True
    try:
        with warnings.catch_warnings():  # it does not know that it was updated elsewhere
            warnings.filterwarnings("ignore", "The ``compute`` method of metric", UserWarning)
            return metric.compute()
    finally:
        metric.dist_sync_fn, metric.distributed_available_fn = kept


def _value(name: str, found: Any) -> float:
    if isinstance(found, Mapping) or not isinstance(found, Tensor) or found.numel() != 1:
        raise TrainerError(
            f"metrics: {name}: expected one number, got {found!r}\nhint: average='macro', or another one"
        )
    return float(found)
