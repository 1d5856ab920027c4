"""Save and restore the random generators of this process: Python's, NumPy's, torch's and those of devices."""

import random
from typing import Any

import numpy as np
import torch


def seed_all(*numbers: int) -> None:
    """Seed Python's, NumPy's and torch's generators with a seed made of these numbers: (seed), or (seed, rank)."""
    # With their number: a sequence is filled up with zeros, and (3) is not to be (3, 0).
    first, second = np.random.SeedSequence((len(numbers), *numbers)).generate_state(2).tolist()
    random.seed(first)
    np.random.seed(second)  # noqa: NPY002 - it is the global one that user code draws from
    torch.manual_seed(first << 32 | second)


def state_of_generators(*devices: torch.device) -> dict[str, Any]:
    """Return the state of this process's generators, and of those of the given GPUs, as a dict for a checkpoint."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 - it is the global one that user code draws from
    return {
        "python": random.getstate(),
        "numpy": (kind, np.asarray(keys), *rest),
        "torch": torch.get_rng_state(),
        "devices": [torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda"],
    }


def restore_generators(state: dict[str, Any], *devices: torch.device) -> None:
    """Restore this process's generators from what `state_of_generators` returned.

    The saved states of CUDA generators go to the CUDA devices among `devices`, in order; if there are more of one than
    of the other, the rest are left as they are.
    """
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002 - the same
    torch.set_rng_state(state["torch"])
    for kept, device in zip(state["devices"], (one for one in devices if one.type == "cuda"), strict=False):
        torch.cuda.set_rng_state(kept, device)
