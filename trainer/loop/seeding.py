"""Where randomness begins: the generators of this process, and operations that give the same each time."""

import os
import random

import numpy as np
import torch


def seed_all(*words: int) -> None:
    """Seed Python's, NumPy's and torch's generators by these numbers together: (seed) or (seed, rank)."""
    # With their number: a sequence is filled up with zeros, and (3) is not to be (3, 0).
    first, second = np.random.SeedSequence((len(words), *words)).generate_state(2).tolist()
    random.seed(first)
    np.random.seed(second)  # noqa: NPY002 - it is the global one that user code draws from
    torch.manual_seed(first << 32 | second)


def be_deterministic() -> None:
    """Operations that differ from run to run raise from now on, and kernels are chosen alike."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False
