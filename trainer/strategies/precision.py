"""Choose number types: autocast, the scaler of fp16, and TF32 on GPUs."""

import logging
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.amp.autocast_mode import autocast
from torch.amp.grad_scaler import GradScaler

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_AS_IT_IS: AbstractContextManager[None] = nullcontext()


def low_dtype(precision: str) -> torch.dtype | None:
    """Return the 16-bit type of matrix multiplications for bf16 and fp16, or None for fp32 and tf32."""
    return _DTYPES.get(precision)


def autocasting(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[None]:
    """Return the context of a forward pass: autocast to `dtype`, or nothing for None."""
    return _AS_IT_IS if dtype is None else autocast(device.type, dtype=dtype)


def scaler_for(precision: str, device: torch.device) -> GradScaler | None:
    """Return a gradient scaler for fp16, whose smallest numbers are too large for gradients, else None."""
    return GradScaler(device.type) if precision == "fp16" else None


def set_found_infinite(scaler: GradScaler, finite: Tensor) -> None:
    """Make the scaler skip the steps before its next `update` if `finite` is false, and do them if it is true.

    `finite` has to be the same on all ranks. It replaces the flags that the scaler's `unscale_` has set from this
    rank's gradients alone, so call this function after that.
    """
    for state in scaler._per_optimizer_states.values():  # noqa: SLF001 - torch's own scaler for several ranks has no other way
        for found in state["found_inf_per_device"].values():
            found.copy_(~finite)


def forget_unscaled(scaler: GradScaler) -> None:
    """Make the scaler forget that the gradients of a step were unscaled, as the step is abandoned without an update.

    Otherwise unscaling the gradients of the next step would be an error.
    """
    scaler._per_optimizer_states.clear()  # noqa: SLF001 - it does so only after a whole step


def set_fp32(precision: str) -> None:
    """Enable TF32 for tf32 and disable it for fp32, also in convolutions, where torch uses it by default.

    For other precisions nothing changes.
    """
    if precision not in ("fp32", "tf32"):
        return
    # Not the newer `fp32_precision`: torch raises an error if both are used, and this one is usual.
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def warn_of_low_weights(module: nn.Module) -> None:
    """Log a warning if trained weights are in a 16-bit type, in which small changes are lost."""
    found = {parameter.dtype for parameter in module.parameters() if parameter.requires_grad}
    for dtype in sorted(found & set(_DTYPES.values()), key=str):
        logging.getLogger("trainer").warning(
            "model: it has weights in %s, and changes that are smaller than its steps are lost\n"
            "hint: keep them in float32 and set precision to bf16, which calculates in it all the same",
            str(dtype).removeprefix("torch."),
        )
