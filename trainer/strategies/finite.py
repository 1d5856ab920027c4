"""Steps whose loss or gradients are not finite: found, left out and counted, without a wait for the device."""

import math
from collections.abc import Collection, Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from trainer.errors import TrainerError
from trainer.strategies.optimizers import parameters_in


class Skips:
    """How many steps were left out, in all and in a row. On a GPU the numbers stay there until somebody reads them."""

    def __init__(self) -> None:
        self._total: int | Tensor = 0
        self._in_a_row: int | Tensor = 0
        self.learned: bool | Tensor = False  # whether the last step was none of them

    def note(self, finite: bool | Tensor) -> None:
        self.learned = finite
        skipped = (~finite).long() if isinstance(finite, Tensor) else int(not finite)
        self._total = self._total + skipped
        self._in_a_row = (self._in_a_row + skipped) * skipped

    def read(self) -> tuple[int, int]:
        """In all, and in a row until now."""
        return int(self._total), int(self._in_a_row)

    def state_dict(self) -> dict[str, int]:
        total, in_a_row = self.read()
        return {"total": total, "in_a_row": in_a_row}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self._total, self._in_a_row = state["total"], state["in_a_row"]


def first_gradient(loss: Tensor) -> Tensor | None:
    """What a backward pass begins with: one, or NaN where the loss is not finite. So the gradients tell all there is to
    tell, to all ranks that add them up."""
    if loss.numel() != 1:
        raise TrainerError(
            f"loss: expected one number, got a tensor of shape {tuple(loss.shape)}\nhint: the mean over the batch"
        )
    if loss.device.type == "cpu":
        return None if math.isfinite(loss.item()) else torch.full_like(loss, math.nan)
    return loss.detach() * 0 + 1


def are_finite(gradients: Iterable[Tensor], *, shared: bool, group: dist.ProcessGroup | None = None) -> Tensor:
    """Whether all gradients are, on the device. `shared`: each rank has a part of them; ranks meet here, in `group`."""
    flags = [_infinite(tensors, device) for (device, _), tensors in alike(gradients).items()]
    flag = flags[0] if flags else torch.zeros(())
    for other in flags[1:]:
        flag = torch.maximum(flag, other.to(flag.device))
    if shared:
        dist.all_reduce(flag, dist.ReduceOp.MAX, group)
    return flag == 0


def _leaves_out_by_itself(optimizer: Optimizer) -> bool:
    """Whether it takes a flag on the device that says to do nothing, as torch's fused ones do."""
    return getattr(optimizer, "_step_supports_amp_scaling", False) is True


def step_where(finite: Tensor, optimizers: Collection[Optimizer]) -> bool | Tensor:
    """Step the optimizers where the flag says so. Returns the flag as it is known: a GPU is not waited for."""
    if finite.device.type == "cpu":
        known = bool(finite)
        for optimizer in optimizers if known else ():
            optimizer.step()
        return known
    for optimizer in optimizers:
        if _leaves_out_by_itself(optimizer):
            step_unless_told(finite, optimizer)
        else:
            step_with_zeros(finite, optimizer, parameters_in(optimizer))
    return finite


def step_unless_told(finite: Tensor, optimizer: Optimizer) -> None:
    """Of a fused optimizer, which does nothing at all where it is told of an infinity."""
    told = {"grad_scale": None, "found_inf": (~finite).float()}
    for name, value in told.items():
        setattr(optimizer, name, value)
    optimizer.step()
    for name in told:
        delattr(optimizer, name)


def step_with_zeros(finite: Tensor, optimizer: Optimizer, parameters: Iterable[Tensor]) -> None:
    """Of any other on a GPU: with gradients of zero. Weights stay finite; momentum and weight decay have their way."""
    for parameter in parameters:
        if parameter.grad is not None:
            plain(parameter.grad).masked_fill_(~finite, 0)
    optimizer.step()


def multiply(gradients: Iterable[Tensor], factor: Tensor) -> None:
    """In place, few kernels for all of them."""
    for (device, _), tensors in alike(gradients).items():
        torch._foreach_mul_(tensors, factor.to(device))


def alike(gradients: Iterable[Tensor]) -> dict[tuple[torch.device, torch.dtype], list[Tensor]]:
    """This rank's numbers of them, by where and what they are."""
    found: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        numbers = plain(gradient)
        found.setdefault((numbers.device, numbers.dtype), []).append(numbers)
    return found


def plain(gradient: Tensor) -> Tensor:
    """This rank's numbers of it: of a shard, of a sparse or a complex gradient."""
    local: Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    if local.is_sparse:
        local = local._values()  # noqa: SLF001 - where they lie: values() is there only after coalesce(), a copy
    return torch.view_as_real(local) if local.is_complex() else local


def _infinite(tensors: list[Tensor], device: torch.device) -> Tensor:
    """1 where any number is not finite, else 0. One kernel for all of them: the one by which GradScaler looks."""
    found, one = torch.zeros((), device=device), torch.ones((), device=device)
    if device.type == "meta":
        return found
    torch._amp_foreach_non_finite_check_and_unscale_(tensors, found, one)
    return found
