"""Use torch.compile in place, without changing the model's type or the names of its parameters."""

import logging
import sys
from collections.abc import Sequence

from torch import nn

log = logging.getLogger("trainer")
_SHAPES = 64


def compile_parts(parts: Sequence[nn.Module]) -> None:
    """Compile each part in place. A part is compiled again when an input has a new shape.

    Parts of the same class share compiled code if it fits both. Torch's limits on compiling again are raised for the
    whole process.
    """
    from torch._dynamo import config  # late: a second or more, and only some want it

    # torch counts for each class, not for each part: where parts differ by an attribute (their place in the model)
    # each has graphs of its own. Beyond the limit torch would calculate the rest without any: what is compiled would
    # depend on the order in which shapes came, and with that on where a run was resumed.
    most = _SHAPES * len(parts)
    config.recompile_limit = max(config.recompile_limit, most)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, most)
    for part in parts:
        # A graph for "any size" would be made when a second size comes, and then serve the first one too: a run that
        # was resumed just before an epoch's smaller last batch would calculate differently from one that was not.
        part.compile(dynamic=False)


def warn_of_eager_parts() -> bool:
    """Log the first reason why torch has left something uncompiled in this process; return whether there is one."""
    from torch._dynamo.utils import counters  # late: the same

    for kind in ("graph_break", "unimplemented"):
        for reason in counters.get(kind, ()):
            log.warning("compile: not everything could be compiled; the first reason: %s", reason.partition("\n  D")[0])
            return True
    return False


def has_compiled() -> bool:
    """Return whether anything was compiled in this process: a model, a part of one, or a user's function."""
    dynamo = sys.modules.get("torch._dynamo.utils")  # imported by compiling
    return dynamo is not None and bool(dynamo.counters.get("frames"))
