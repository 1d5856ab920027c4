"""Use metric objects that keep state, such as torchmetrics: update them by batch, then reduce them over ranks."""

import warnings
from collections.abc import Iterator
from numbers import Real
from typing import Any

from torch import Tensor, nn

from trainer.errors import TrainerError
from trainer.loop.sums import gathered, one_per_replica
from trainer.world import World

State = dict[str, Any]  # a tensor, or a list of them, by the name that the metric gives it
States = dict[str, State]  # of a metric and of those that it is made of, by their names in it


def is_of_object(found: object) -> bool:
    """Return whether a value of a metrics function is a tuple of a metric object and its arguments.

    Otherwise it is a number, or a pair of sum and count.
    """
    return isinstance(found, tuple) and bool(found) and hasattr(found[0], "update") and hasattr(found[0], "compute")


class MetricObjects:
    """The metric objects that the metrics function returns for the batches of one pass over the validation data.

    `update` gives a batch to a metric; after the last batch, `values` computes the metrics from the states of all
    ranks.
    """

    def __init__(self) -> None:
        self._begun: set[str] = set()
        self._parts: dict[str, Any] = {}  # collections: each of theirs by itself

    @property
    def names(self) -> list[str]:
        """The names of the values: that of each metric, and one for each metric in a collection."""
        return list(self._parts)

    def update(self, name: str, metric: Any, *args: Any) -> None:
        """Update the metric called `name` with one batch's arguments; before a pass's first batch it is reset.

        Raises TrainerError for a metric without declared state.
        """
        if name not in self._begun:
            self._begun.add(name)
            _check(name, metric)
            _reset(metric)
            device = next((one.device for one in args if isinstance(one, Tensor)), None)
            metric.to(device)
        metric.update(*args)
        self._parts |= dict(_parts(name, metric))

    def values(self, world: World) -> dict[str, float]:
        """Return the values of all metrics, the same on all ranks, which communicate; then reset the metrics.

        Each is computed on one rank, the first that has a state of the metric. Raises TrainerError for a value that is
        not one number.
        """
        of_each = one_per_replica({name: _states(metric) for name, metric in self._parts.items()}, world)
        mine: dict[str, float] = {}
        for name, metric in self._parts.items():
            states = {share: one[name] for share, one in enumerate(of_each) if name in one}
            if min(states) == world.dp_rank:
                mine[name] = _value(name, _computed(metric, list(states.values())))
            _reset(metric)
        return {name: value for one in gathered(mine, world) for name, value in one.items()}


def _parts(name: str, metric: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, metric) of the metric `metric`, or, if it is a collection, of each metric in it."""
    if hasattr(metric, "items"):
        yield from ((f"{name}_{key}", one) for key, one in metric.items())
    else:
        yield name, metric


def _check(name: str, metric: Any) -> None:
    """Raise TrainerError if a metric object in `metric` has no state declared by `add_state` to reduce over ranks.

    Without that, it would be computed from one rank's data only. `name` is the metric's name, for the message.
    """
    for part, one in _parts(name, metric):
        if not any(held.metric_state for held in _metrics_inside(one).values()):
            raise TrainerError(
                f"metrics: {part}: found no state in {type(one).__name__}, to reduce over ranks\n"
                "hint: give a torchmetrics.Metric, with add_state or with metrics as attributes, or (sum, count)"
            )


def _metrics_inside(metric: Any) -> dict[str, Any]:
    """Return by module name the metric itself ("") and the metrics that it is composed of, as in `1 - metric`."""
    found = dict(metric.named_modules()) if isinstance(metric, nn.Module) else {}
    found = {name: part for name, part in found.items() if not isinstance(part, nn.ModuleDict)}  # no collections
    return {name: part for name, part in found.items() if hasattr(part, "metric_state")}


def _reset(metric: Any) -> None:
    """Reset the metric and the metrics inside it, as not every metric resets those."""
    metric.reset()
    for part in _metrics_inside(metric).values():
        part.reset()


def _states(metric: Any) -> States:
    """Return copies on the CPU of the states of a metric and the metrics inside it.

    The result is {name of the module ("" for the metric itself): {name of the state's attribute: its value}}.
    """
    return {name: _state(part) for name, part in _metrics_inside(metric).items()}


def _state(part: Any) -> State:
    """Return a copy of one metric's state on the CPU: its tensors, or lists of tensors, by attribute name."""
    return {key: _on_the_host(value) for key, value in part.metric_state.items()}


def _on_the_host(value: Any) -> Any:
    """Return the tensor, or the list of tensors, on the CPU."""
    return [one.detach().cpu() for one in value] if isinstance(value, list) else value.detach().cpu()


def _computed(metric: Any, of_ranks: list[States]) -> Any:
    """Return the metric's value, computed from its states on all ranks (`of_ranks`).

    The metric is used for that: it is moved to the CPU and loses its own state, so the caller resets it afterwards.
    """
    _reset(metric)
    metric.to("cpu")
    parts = _metrics_inside(metric)
    plain = {name: _reduce(part, [states[name] for states in of_ranks]) for name, part in parts.items()}
    kept = {name: part.distributed_available_fn for name, part in parts.items()}
    for part in parts.values():
        part.distributed_available_fn = lambda: False  # other ranks were asked already
    try:
        with warnings.catch_warnings():  # it does not know that it was updated elsewhere
            warnings.filterwarnings("ignore", "The ``compute`` method of metric", UserWarning)
            return metric.compute()
    finally:
        for name, part in parts.items():
            part.distributed_available_fn = kept[name]
            _set(part, plain[name])  # what is reduced may be of another kind, which no metric can reset


def _set(part: Any, state: State) -> None:
    """Set the values in `state` as attributes of the metric `part`."""
    for key, value in state.items():
        setattr(part, key, value)


def _reduce(part: Any, states: list[State]) -> State:
    """Reduce the ranks' `states` by the metric's own rules (sum, mean, ...), and set the result on the metric `part`.

    Lists are concatenated in the order of ranks. Returns the metric's state from before the reduction: it is set again
    later, as a metric cannot reset itself once a list has become a tensor.
    """
    key_of: dict[int, str] = {}
    for key, value in states[0].items():
        if isinstance(value, list):
            setattr(part, key, [one for state in states for one in state[key]])
        else:
            setattr(part, key, value)
            key_of[id(value)] = key

    def of_all(mine: Tensor, **_: Any) -> list[Tensor]:
        """Return the values that other ranks have for this tensor."""
        return [state[key_of[id(mine)]] for state in states] if id(mine) in key_of else [mine]

    part.sync(dist_sync_fn=of_all, distributed_available=lambda: True)
    reduced = dict(part.metric_state)
    part.unsync()
    plain = dict(part.metric_state)
    _set(part, reduced)
    return plain


def _value(name: str, found: Any) -> float:
    """Return a metric's value as a float. Raises TrainerError if it is not one number."""
    if isinstance(found, Real) or (isinstance(found, Tensor) and found.numel() == 1):
        return float(found)
    raise TrainerError(f"metrics: {name}: expected one number, got {found!r}\nhint: average='macro', or another one")
