"""torch.compile, in place: neither the model's type nor a name of its parameters changes."""

from collections.abc import Sequence

from torch import nn

_SHAPES = 64


def compile_parts(parts: Sequence[nn.Module]) -> None:
    """Each part is compiled for each shape that it meets."""
    from torch._dynamo import config  # late: a second or more, and only some want it

    # A graph for "any size" would be made when a second size comes, and then serve the first one too: a run that
    # was resumed just before an epoch's smaller last batch would calculate differently from one that was not.
    config.recompile_limit = max(config.recompile_limit, _SHAPES)
    for part in parts:
        part.compile(dynamic=False)
