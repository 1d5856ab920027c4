"""Make torch's operations give the same result each time."""

import os

import torch


def be_deterministic() -> None:
    """Make operations that differ from run to run raise, and kernels be chosen alike."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False
