"""Find, skip and count steps whose loss or gradients are not finite, without waiting for the device."""

import math
from collections.abc import Collection, Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from trainer.errors import TrainerError
from trainer.strategies.optimizers import parameters_in


class Skips:
    """Counts skipped steps, in all and in a row; on a GPU the device counts, and only reading the counts waits for it.

    `learned` says whether the last step was not skipped; on a GPU it is a tensor.
    """

    def __init__(self) -> None:
        self._total: int | Tensor = 0
        self._in_a_row: int | Tensor = 0
        self.learned: bool | Tensor = False  # whether the last step was not skipped

    def count(self, finite: bool | Tensor) -> None:
        """Count a step as skipped unless `finite` is true."""
        self.learned = finite
        skipped = (~finite).long() if isinstance(finite, Tensor) else int(not finite)
        self._total = self._total + skipped
        self._in_a_row = (self._in_a_row + skipped) * skipped

    def read(self) -> tuple[int, int]:
        """Return how many steps were skipped: in all, and in a row up to the last step."""
        return int(self._total), int(self._in_a_row)

    def state_dict(self) -> dict[str, int]:
        """Return the counts, read from the device: `total`, and `in_a_row` up to the last step."""
        total, in_a_row = self.read()
        return {"total": total, "in_a_row": in_a_row}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Restore the counts."""
        self._total, self._in_a_row = state["total"], state["in_a_row"]


def first_gradient(loss: Tensor) -> Tensor | None:
    """Return the gradient that a backward pass starts with: NaN if the loss is not finite, else None, which means 1.

    NaN spreads to all ranks whose gradients are summed. On a GPU a tensor is returned in any case, to wait for nothing.
    Raises TrainerError if the loss is not one number.
    """
    if loss.numel() != 1:
        raise TrainerError(
            f"loss: expected one number, got a tensor of shape {tuple(loss.shape)}\nhint: the mean over the batch"
        )
    if loss.device.type == "cpu":
        return None if math.isfinite(loss.item()) else torch.full_like(loss, math.nan)
    return loss.detach() * 0 + 1


def are_finite(gradients: Iterable[Tensor], *, shared: bool, group: dist.ProcessGroup | None = None) -> Tensor:
    """Return, as a bool tensor on the gradients' device, whether all of them are finite.

    With `shared`, the gradients of all ranks in `group` count (None: all ranks), and all these ranks call it.
    """
    flags = [_infinite(tensors, device) for (device, _), tensors in by_device_and_type(gradients).items()]
    flag = flags[0] if flags else torch.zeros(())
    for other in flags[1:]:
        flag = torch.maximum(flag, other.to(flag.device))
    if shared:
        dist.all_reduce(flag, dist.ReduceOp.MAX, group)
    return flag == 0


def _can_skip_itself(optimizer: Optimizer) -> bool:
    """Return whether the optimizer can skip a step by a flag on the device, as torch's fused ones do."""
    return getattr(optimizer, "_step_supports_amp_scaling", False) is True


def step_where(finite: Tensor, optimizers: Collection[Optimizer]) -> bool | Tensor:
    """Step the optimizers if `finite` is true, without waiting for a GPU.

    Returns `finite`: on a CPU as a bool, on a GPU as the tensor that it is.
    """
    if finite.device.type == "cpu":
        known = bool(finite)
        for optimizer in optimizers if known else ():
            optimizer.step()
        return known
    for optimizer in optimizers:
        if _can_skip_itself(optimizer):
            step_fused(finite, optimizer)
        else:
            step_with_zeros(finite, optimizer, parameters_in(optimizer))
    return finite


def step_fused(finite: Tensor, optimizer: Optimizer) -> None:
    """Step a fused optimizer, whose kernel changes nothing if `finite` is false.

    `finite` is a bool tensor on the optimizer's device. It is passed to the kernel as torch's gradient scaler does, so
    that the GPU is not waited for.
    """
    flags = {"grad_scale": None, "found_inf": (~finite).float()}
    for name, value in flags.items():
        setattr(optimizer, name, value)
    optimizer.step()
    for name in flags:
        delattr(optimizer, name)


def step_with_zeros(finite: Tensor, optimizer: Optimizer, parameters: Iterable[Tensor]) -> None:
    """Step an optimizer that cannot skip a step by a flag; if `finite` is false, set all gradients to zero first.

    `parameters` are the optimizer's. With zero gradients they stay finite, but momentum and weight decay still change
    them. The GPU is not waited for.
    """
    for parameter in parameters:
        if parameter.grad is not None:
            plain(parameter.grad).masked_fill_(~finite, 0)
    optimizer.step()


def multiply(gradients: Iterable[Tensor], factor: Tensor) -> None:
    """Multiply gradients in place, with few kernels."""
    for (device, _), tensors in by_device_and_type(gradients).items():
        torch._foreach_mul_(tensors, factor.to(device))


def by_device_and_type(gradients: Iterable[Tensor]) -> dict[tuple[torch.device, torch.dtype], list[Tensor]]:
    """Return this rank's values of the gradients, as `plain` returns them, in one list for each device and type."""
    found: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        numbers = plain(gradient)
        found.setdefault((numbers.device, numbers.dtype), []).append(numbers)
    return found


def plain(gradient: Tensor) -> Tensor:
    """Return this rank's values of a gradient, as a tensor that shares its memory.

    They are the local shard of a DTensor, and the stored values of a sparse gradient. Complex values are returned as
    pairs of real numbers, with a last dimension of two.
    """
    local: Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    if local.is_sparse:
        local = local._values()  # noqa: SLF001 - where they lie: values() is there only after coalesce(), a copy
    return torch.view_as_real(local) if local.is_complex() else local


def _infinite(tensors: list[Tensor], device: torch.device) -> Tensor:
    """Return 1 as a tensor if any value is not finite, else 0, with the single kernel that GradScaler uses."""
    found, one = torch.zeros((), device=device), torch.ones((), device=device)
    if device.type == "meta":
        return found
    torch._amp_foreach_non_finite_check_and_unscale_(tensors, found, one)
    return found
