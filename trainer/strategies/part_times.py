"""Measure the forward and backward pass of each part of a model, with one part on the device at a time."""

import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from trainer.checkpoint.generators import restore_generators, state_of_generators
from trainer.errors import BadSettings
from trainer.strategies.pipeline_cutting import Sample

_TURNS = 5  # of each part, after one that does not count; the median is what it takes
_ERRORS = (RuntimeError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, NotImplementedError)

Casting = Callable[[], AbstractContextManager[None]]


def part_times(
    parts: Sequence[tuple[str, nn.Module]],
    sample: Sample,
    device: torch.device,
    casting: Casting,
    recomputed: Collection[nn.Module] = (),
) -> list[float]:
    """Return the seconds of each part's forward and backward pass; the last part's include the loss.

    `parts` are (name, module) in order. `sample` has the input of the first and the function that computes the loss
    from the output of the last; `casting` returns the context in which a forward pass runs, such as autocast.
    `recomputed` are the parts with activation checkpointing. Neither the model nor random generators change.
    Parameters on the meta device, whose values are on other ranks, are measured with arbitrary numbers. Raises
    BadSettings if a part cannot be measured.
    """
    generators = state_of_generators(device)
    try:
        return list(_each(parts, sample, device, casting, recomputed))
    finally:
        restore_generators(generators, device)


def _each(
    parts: Sequence[tuple[str, nn.Module]],
    sample: Sample,
    device: torch.device,
    casting: Casting,
    recomputed: Collection[nn.Module],
) -> Iterator[float]:
    """Yield the seconds of each part's forward and backward pass, the median of several.

    `parts` are (name, module) in order, `sample` is the input of the first and makes the loss after the last, `casting`
    returns the context of a forward pass, and `recomputed` are the parts with activation checkpointing. Raises
    BadSettings if a part cannot be measured.
    """
    given = sample.inputs.to(device)
    for place, (name, part) in enumerate(parts):
        loss_of = sample.loss_of if place == len(parts) - 1 else None
        try:
            call = _part_on_device(device, part, recomputed=part in recomputed)
            taken = []
            for _ in range(1 + _TURNS):
                seconds, found = _one_turn(call, given, loss_of, device, casting)
                taken.append(seconds)
        except _ERRORS as error:
            raise _unmeasured(f"{name} could not be measured: {type(error).__name__}: {error}") from error
        if not isinstance(found, Tensor):
            raise _unmeasured(f"{name} gives a {type(found).__name__}, and only tensors go from stage to stage")
        given = found.detach()
        del call, found  # and with them what of this part is on the device
        yield statistics.median(taken[1:])


def _part_on_device(device: torch.device, part: nn.Module, *, recomputed: bool) -> Callable[[Tensor], Tensor]:
    """Return a function that runs the part on an input, with tensors of its own in place of the model's.

    The tensors are on the device. Buffers are copies, and parameters, too, unless the device has them already;
    parameters on the meta device get random values. With `recomputed`, the backward pass repeats the forward pass.
    """
    own: dict[str, Tensor] = {}
    for name, one in part.named_parameters():
        there = torch.empty_like(one, device=device).normal_(std=0.02) if one.is_meta else one.detach().to(device)
        own[name] = there.requires_grad_(one.requires_grad)
    own |= {name: one.detach().to(device, copy=True) for name, one in part.named_buffers()}

    def call(given: Tensor) -> Tensor:
        """Call the part with its tensors on the device."""
        found: Tensor = functional_call(part, own, (given,))
        return found

    def call_twice(given: Tensor) -> Tensor:
        """Call the part so that its backward pass runs it again."""
        found: Tensor = checkpoint(call, given, use_reentrant=False)
        return found

    return call_twice if recomputed else call


def _one_turn(
    call: Callable[[Tensor], Tensor],
    given: Tensor,
    loss_of: Callable[[Tensor], Tensor] | None,
    device: torch.device,
    casting: Casting,
) -> tuple[float, Tensor]:
    """Return the seconds of one forward and backward pass of `call` with the input `given`, and the output.

    `loss_of` makes the loss of the output; None: the backward pass starts from the output itself. `casting` returns the
    context of the forward pass.
    """
    given = given.detach().requires_grad_(given.is_floating_point())
    began = _now(device)
    with casting():
        found = call(given)
    end = found if loss_of is None or not isinstance(found, Tensor) else loss_of(found)
    if isinstance(end, Tensor) and end.requires_grad:
        end.backward(torch.ones_like(end))
    return _now(device) - began, found


def _now(device: torch.device) -> float:
    """Return the time in seconds after waiting for the device's queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _unmeasured(why: str) -> BadSettings:
    """Return the error for a model whose parts cannot be measured, for the reason `why`."""
    return BadSettings(f"pp_cut: time: {why}\nhint: pp_cut: layers, or the parts with which stages begin")
