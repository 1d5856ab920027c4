"""Find a good learning rate: raise it step by step until the loss diverges, then restore everything."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from trainer.checkpoint.generators import restore_generators, state_of_generators
from trainer.checkpoint.stand_ins import has_values
from trainer.errors import TrainerError
from trainer.loop.schedules import set_group

_SMOOTH = 0.9  # how much of the past is in the smoothed loss
_RUNAWAY = 4.0  # over so many times the best smoothed loss, it is lost
_SKIP_FIRST = 5  # the first steps say more about the data than about the rate


class HasPosition(Protocol):
    """An object whose position can be saved and restored, such as the data."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position."""

    def load_state_dict(self, state: Any) -> None:
        """Go to the position `state`, which `state_dict` has returned."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """The learning rates that were tried, their smoothed losses, and the rate at which the loss fell most steeply."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    suggestion: float


def learning_rate_finder(
    run_step: Callable[[], float],
    optimizer: Optimizer,
    *,
    lowest: float = 1e-7,
    highest: float = 10.0,
    steps: int = 100,
) -> Sweep:
    """Sweep the learning rate from `lowest` to `highest` in equal ratios over `steps` steps, until the loss diverges.

    Returns the rates, their losses, and a rate to train with. `run_step` does one optimizer step and returns its loss,
    the same on all ranks. Other parameter groups keep their ratio to the first one. Call this inside `put_back`, which
    restores the training. Raises TrainerError if the loss falls at no rate.
    """
    ratios = [_ratio(group["lr"], optimizer.param_groups[0]["lr"]) for group in optimizer.param_groups]
    rates: list[float] = []
    losses: list[float] = []
    smooth, best = 0.0, math.inf
    for number in range(steps):
        rate = lowest * (highest / lowest) ** (number / max(1, steps - 1))
        for group, ratio in zip(optimizer.param_groups, ratios, strict=True):
            set_group(group, {"lr": rate * ratio})
        loss = run_step()
        smooth = _SMOOTH * smooth + (1 - _SMOOTH) * loss
        corrected = smooth / (1 - _SMOOTH ** (number + 1))
        if not math.isfinite(corrected):
            break
        rates.append(rate)
        losses.append(corrected)
        best = min(best, corrected)
        if corrected > _RUNAWAY * best and number > _SKIP_FIRST:
            break
    return Sweep(tuple(rates), tuple(losses), steepest(rates, losses))


def steepest(rates: list[float], losses: list[float]) -> float:
    """Return the rate at which the loss falls fastest over the logarithm of the rate.

    Raises TrainerError if the loss falls at no rate.
    """
    end = losses.index(min(losses)) + 1 if losses else 0
    falls = [
        ((losses[place + 1] - losses[place - 1]) / math.log(rates[place + 1] / rates[place - 1]), rates[place])
        for place in range(_SKIP_FIRST, min(end, len(losses) - 1))
    ]
    if not falls or min(falls)[0] >= 0:
        raise TrainerError(
            "learning rate finder: the loss fell at no rate\n"
            "hint: check the model and the data, or set the rate yourself"
        )
    return min(falls)[1]


def _ratio(rate: float | Tensor, first: float | Tensor) -> float:
    """Return a parameter group's learning rate divided by that of the first group; 1.0 if the latter is 0."""
    return float(rate) / float(first) if float(first) else 1.0


@contextmanager
def put_back(
    module: nn.Module, optimizer: Optimizer, scaler: GradScaler | None, data: HasPosition, device: torch.device
) -> Iterator[None]:
    """Restore the training's state at the end of the context.

    That is the model, the optimizer, the scaler of fp16 if there is one, the data's position, and the random generators
    of the CPU and of `device`.
    """
    tensors = [*filter(has_values, module.parameters()), *module.buffers()]
    values = [tensor.detach().clone() for tensor in tensors]
    gradients = [None if one.grad is None else one.grad.clone() for one in module.parameters()]
    modes = [(part, part.training) for part in module.modules()]
    optimizers = [_copy_of(one) for one in _with_inner(optimizer)]
    scale = scaler.state_dict() if scaler is not None else {}
    place, generators = data.state_dict(), state_of_generators(device)
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        for parameter, gradient in zip(module.parameters(), gradients, strict=True):
            parameter.grad = gradient
        for part, mode in modes:
            part.training = mode
        for one, copied in zip(_with_inner(optimizer), optimizers, strict=True):
            _restore(one, *copied)
        if scaler is not None and scale:
            scaler.load_state_dict(scale)
        data.load_state_dict(place)
        restore_generators(generators, device)


def _with_inner(optimizer: Optimizer) -> list[Optimizer]:
    """Return a list of the optimizer and, for a ZeroRedundancyOptimizer, the one inside it, which has the state."""
    inner = getattr(optimizer, "optim", None)
    return [optimizer, inner] if isinstance(inner, Optimizer) else [optimizer]


def _copy_of(optimizer: Optimizer) -> tuple[dict[Tensor, Any], list[dict[str, Any]]]:
    """Return copies of an optimizer's state of each parameter, and of the options of each parameter group."""
    states = {parameter: copy.deepcopy(state) for parameter, state in optimizer.state.items()}
    groups = [
        {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    return states, groups


def _restore(optimizer: Optimizer, states: dict[Tensor, Any], groups: list[dict[str, Any]]) -> None:
    """Restore the optimizer from `states` and `groups`, the copies that `_copy_of` returned."""
    optimizer.state.clear()
    optimizer.state.update(states)
    for group, kept in zip(optimizer.param_groups, groups, strict=True):
        for key in set(group) - set(kept) - {"params"}:
            del group[key]
        set_group(group, kept)
