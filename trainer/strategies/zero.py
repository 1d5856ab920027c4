"""ZeRO stage 1: each rank keeps the optimizer's state of some parameters, steps them, and sends them round."""

from contextlib import suppress
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from trainer.errors import BadSettings


class SharedOut(ZeroRedundancyOptimizer):
    """One that may go on in another group, where a rank was replaced in the middle of a step."""

    _under_way: tuple["dist.Work", ...] = ()

    @property
    def stepped_here(self) -> list[Tensor]:
        """The parameters that this rank steps."""
        return [parameter for group in self.optim.param_groups for parameter in group["params"]]

    def spread(self) -> None:
        """Send this rank's parameters to all others, and take theirs. All ranks call it."""
        self._sync_params()

    def meet_anew(self) -> None:
        """Go on in the group that there is now. The connections of the one before are cut: what was under way there,
        and might still write into the parameters, has come to its end when this returns."""
        for one in self._under_way:
            with suppress(RuntimeError):
                one.wait()
        self._under_way = ()
        self.process_group = dist.group.WORLD

    def _sync_params(self) -> None:
        for rank in range(self.world_size):
            self._under_way += tuple(self._broadcast_params_from_rank(rank))  # type: ignore[attr-defined] # torch's stub lacks it
        for one in self._under_way:
            one.wait()
        self._under_way = ()


def shared_out(optimizer: Optimizer) -> SharedOut:
    """The user's own optimizer, with this rank's share of the parameters, inside a ZeroRedundancyOptimizer."""
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

    shared = SharedOut(
        groups,
        optimizer_class=with_share,  # type: ignore[arg-type] # it is only called
        # One message a rank instead of one a parameter; a view would undo another memory format.
        parameters_as_bucket_view=all(parameter.is_contiguous() for parameter in parameters),
    )
    shared.defaults = optimizer.defaults  # schedulers ask whether there are betas, or a momentum
    return shared
