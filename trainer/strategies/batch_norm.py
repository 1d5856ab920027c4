"""Compute BatchNorm over the samples of all ranks, as if they were one batch."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.errors import BadSettings
from trainer.world import World

Norm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
_classes: dict[type[Norm], type[Norm]] = {}
_OF_TORCH = nn.BatchNorm1d.forward  # the same of all three


def sync_batch_norm(module: nn.Module, world: World) -> None:
    """Replace BatchNorm layers in place, keeping names of parameters and buffers; all ranks call it.

    Raises BadSettings if there are none, or if one has a forward of its own.
    """
    found = [(name, part) for name, part in module.named_modules() if isinstance(part, Norm)]
    if not found:
        raise BadSettings(f"sync_batchnorm: found no BatchNorm in {type(module).__name__}")
    for name, part in found:
        _check(name, type(part))
    for name, part in found if world.size > 1 else ():
        if world.device.type != "cpu" and name:
            # One kernel, and less to keep for the backward pass. It does not support CPUs.
            module.set_submodule(name, nn.SyncBatchNorm.convert_sync_batchnorm(part))
        else:
            kind = type(part)
            if kind not in _classes:
                _classes[kind] = _over_ranks(kind)
            part.__class__ = _classes[kind]


def _check(name: str, kind: type[Norm]) -> None:
    """Raise BadSettings if the class of layer `name` (`kind`) has a forward of its own, which would be left out."""
    if kind.forward is not _OF_TORCH and kind not in _classes.values():
        raise BadSettings(
            f"sync_batchnorm: {name or 'the model'}: expected torch's own forward, got that of {kind.__qualname__}\n"
            "hint: use torch's BatchNorm there, or let that layer synchronise its statistics itself"
        )


def _over_ranks(kind: type[Norm]) -> type[Norm]:
    """Return a subclass of the BatchNorm class that normalises over all ranks in training."""

    def forward(self: Norm, x: Tensor) -> Tensor:
        """Normalise over all ranks in training, and as usual in evaluation."""
        return _normed(self, x) if self.training else kind.forward(self, x)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _normed(norm: Norm, x: Tensor) -> Tensor:
    """Return the batch `x` normalised by its mean and variance over all ranks, as the BatchNorm layer `norm` does.

    The layer's running statistics are updated.
    """
    values = x.float()
    dims, shape = [0, *range(2, x.ndim)], [1, -1] + [1] * (x.ndim - 2)
    count = _sum(torch.tensor(values.numel() / values.shape[1], device=x.device))
    mean = _sum(values.sum(dims)) / count
    centered = values - mean.view(shape)
    variance = _sum(centered.square().sum(dims)) / count
    _update_running_statistics(norm, mean.detach(), variance.detach() * count / (count - 1))
    normal = centered * (variance + norm.eps).rsqrt().view(shape)
    if norm.affine:
        normal = normal * norm.weight.view(shape) + norm.bias.view(shape)
    return normal.to(x.dtype)


@torch.no_grad()
def _update_running_statistics(norm: Norm, mean: Tensor, variance: Tensor) -> None:
    """Count a batch in the layer's running statistics, as torch's BatchNorm does; do nothing if the layer keeps none.

    `mean` and the unbiased `variance` are those of the samples of all ranks, by channel.
    """
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    norm.num_batches_tracked.add_(1)
    part = 1 / int(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean.to(norm.running_mean), part)
    norm.running_var.lerp_(variance.to(norm.running_var), part)


class _Sum(torch.autograd.Function):
    """An autograd function: the sum over all ranks, whose gradients are summed over all ranks as well."""

    @staticmethod
    def forward(_: Any, values: Tensor) -> Tensor:
        """Return the sum over all ranks."""
        return _reduced(values)

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> Tensor:
        """Return the sum of the gradients over all ranks."""
        return _reduced(gradients[0])


def _sum(values: Tensor) -> Tensor:
    """Return the sum over all ranks, through which gradients flow."""
    summed: Tensor = _Sum.apply(values)
    return summed


def _reduced(values: Tensor) -> Tensor:
    """Return the sum over all ranks, without a gradient."""
    values = values.clone()
    dist.all_reduce(values)
    return values
