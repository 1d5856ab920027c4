"""Operations that give the same each time."""

import os

import torch


def be_deterministic() -> None:
    """Operations that differ from run to run raise from now on, and kernels are chosen alike."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False
