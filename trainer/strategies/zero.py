"""ZeRO stage 1: each rank keeps the optimizer's state of some parameters, steps them, and broadcasts them."""

from typing import Any

from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from trainer.errors import BadSettings


def shared_out(optimizer: Optimizer) -> ZeroRedundancyOptimizer:
    """Wrap the user's own optimizer, with this rank's part of the parameters, in a ZeroRedundancyOptimizer."""
    groups = [dict(group) for group in optimizer.param_groups]
    parameters = [parameter for group in groups for parameter in group["params"]]
    dtypes = {str(parameter.dtype) for parameter in parameters}
    if len(dtypes) > 1:
        raise BadSettings(f"strategy: zero1 expected parameters of one dtype, got {', '.join(sorted(dtypes))}")

    def with_share(share: list[dict[str, Any]], **_: Any) -> Optimizer:
        # Not one that is made anew: whoever made this one may have set more than its arguments say.
        optimizer.param_groups = share
        mine = {id(parameter) for group in share for parameter in group["params"]}
        for parameter in [parameter for parameter in optimizer.state if id(parameter) not in mine]:
            del optimizer.state[parameter]
        return optimizer

    shared = ZeroRedundancyOptimizer(
        groups,
        optimizer_class=with_share,  # type: ignore[arg-type] # it is only called
        # One message a rank instead of one a parameter; a view would undo another memory format.
        parameters_as_bucket_view=all(parameter.is_contiguous() for parameter in parameters),
    )
    shared.defaults = optimizer.defaults  # schedulers ask whether there are betas, or a momentum
    return shared
