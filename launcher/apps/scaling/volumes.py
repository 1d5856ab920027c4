"""Compute how many bytes a strategy moves in a step: round a ring for sums and gathers, or to and from a master."""

from launcher.apps.scaling.configurations import Configuration
from launcher.apps.scaling.findings import DP, StepVolume

_EACH = "each rank"


def volume_of(strategy: str, one: Configuration, model_bytes: float) -> StepVolume | None:
    """Return the bytes that one step of one micro-batch moves in the dtype of the parameters, or None if nothing
    moves or it is not known.
    """
    n = one.ranks
    if n == 1 or not model_bytes:
        return None
    ring = (n - 1) / n  # once round: all ranks take in what they have not
    match strategy:
        case "dp" | "master":
            who = "the first GPU" if strategy == DP else "the first rank"
            return StepVolume(who, "(n - 1) P", (n - 1) * model_bytes, model_bytes)
        case "ddp" | "zero2":  # gradients are summed and dealt out; then they, or parameters, are gathered
            return StepVolume(_EACH, "2 (n - 1) / n P", 2 * ring * model_bytes, model_bytes)
        case "zero1" | "fsdp":  # and parameters are gathered once more: what was updated, or for the backward pass
            return StepVolume(_EACH, "3 (n - 1) / n P", 3 * ring * model_bytes, model_bytes)
        case "hsdp":
            shards, copies = one.per_node, one.nodes
            moved = 3 * (shards - 1) / shards + 2 * (copies - 1) / copies / shards
            formula = "3 (s - 1) / s P + 2 (c - 1) / c P / s, of c nodes of s ranks"
            return StepVolume(_EACH, formula, moved * model_bytes, model_bytes)
        case _:
            return None
