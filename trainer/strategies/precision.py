"""What numbers are calculated in: autocast, the scaler of fp16, and what GPUs make of fp32."""

from contextlib import AbstractContextManager, nullcontext

import torch
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


def set_fp32(precision: str) -> None:
    """fp32 means fp32, in convolutions too, where torch would take TF32 without being asked."""
    if precision not in ("fp32", "tf32"):
        return
    # Not the newer `fp32_precision`: who mixes the two ways gets an error from torch, and this is the usual one.
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
