"""What numbers are calculated in: autocast, the scaler of fp16, and what GPUs make of fp32."""

import logging
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.amp.autocast_mode import autocast
from torch.amp.grad_scaler import GradScaler

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_AS_IT_IS: AbstractContextManager[None] = nullcontext()


def low_dtype(precision: str) -> torch.dtype | None:
    """What matrices are multiplied in, where it is not fp32."""
    return _DTYPES.get(precision)


def autocasting(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[None]:
    """For a forward pass."""
    return _AS_IT_IS if dtype is None else autocast(device.type, dtype=dtype)


def scaler_for(precision: str, device: torch.device) -> GradScaler | None:
    """fp16 alone needs one: its smallest numbers are not small enough for gradients."""
    return GradScaler(device.type) if precision == "fp16" else None


def heed(scaler: GradScaler, finite: Tensor) -> None:
    """What was found on all ranks counts, and not what the scaler has seen on this one. After its `unscale_`."""
    for state in scaler._per_optimizer_states.values():  # noqa: SLF001 - torch's own scaler for several ranks has no other way
        for found in state["found_inf_per_device"].values():
            found.copy_(~finite)


def forget_unscaled(scaler: GradScaler) -> None:
    """The gradients of a step that was broken off are gone, and so is what the scaler knows of them."""
    scaler._per_optimizer_states.clear()  # noqa: SLF001 - it does so only after a whole step


def set_fp32(precision: str) -> None:
    """fp32 means fp32, in convolutions too, where torch would take TF32 without being asked."""
    if precision not in ("fp32", "tf32"):
        return
    # Not the newer `fp32_precision`: who mixes the two ways gets an error from torch, and this is the usual one.
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def warn_of_low_weights(module: nn.Module) -> None:
    """Weights that an optimizer changes have to be finer than what they are multiplied in."""
    found = {parameter.dtype for parameter in module.parameters() if parameter.requires_grad}
    for dtype in sorted(found & set(_DTYPES.values()), key=str):
        logging.getLogger("trainer").warning(
            "model: it has weights in %s, and changes that are smaller than its steps are lost\n"
            "hint: keep them in float32 and set precision to bf16, which calculates in it all the same",
            str(dtype).removeprefix("torch."),
        )
