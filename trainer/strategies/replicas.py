"""Strategies in which every rank, or every GPU of one process, has a whole copy of the model."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from trainer.errors import BadSettings, TrainerError
from trainer.strategies import baselines
from trainer.strategies.broadcast import PersistentBuffers, broadcast_from_first
from trainer.strategies.precision import autocasting
from trainer.strategies.settings import StrategySettings
from trainer.strategies.wrapped import Wrapped
from trainer.world import World

T = TypeVar("T")
_NOTHING: AbstractContextManager[None] = nullcontext()
_UNUSED = (
    "Expected to have finished reduction in the prior iteration"  # DDP's error about parameters without a gradient
)


def replicated(module: nn.Module, world: World, settings: StrategySettings, *, deferred: bool = False) -> Wrapped:
    """Wrap the model in DistributedDataParallel, unless the world has one rank; all ranks call it.

    With `deferred` all ranks are about to load the same weights, so that rank 0 need not send its own. If the variable
    TRAINER_BASELINE is `master`, rank 0 gathers all gradients and updates alone; with fp16 this raises BadSettings.
    """
    if world.size == 1:
        return Wrapped(module)
    has_master = baselines.has_master()
    if has_master and settings.precision == "fp16":
        raise BadSettings("precision: fp16 does not go with a master, whose ranks would scale apart\nhint: use bf16")
    model = _Replica(
        module,
        device_ids=[world.device] if world.device.type == "cuda" else None,
        gradient_as_bucket_view=True,  # gradients are summed where they lie: one copy of them less
        find_unused_parameters=settings.unused_parameters,
        bucket_cap_mb=settings.bucket_mb,
        init_sync=not (deferred or world.rejoined),  # anew: rank 0 may be the one that has no weights
    )
    if deferred and not world.rejoined:
        broadcast_from_first(unsaved_buffers(module))
    if has_master:
        model.register_comm_hook(dist.group.WORLD, baselines.gathered_at_first)
    model.make_buckets()

    def syncing(sync: bool) -> AbstractContextManager[None]:
        """Return the context of a micro-batch, in which gradients are reduced only if `sync`."""
        return _NOTHING if sync else model.no_sync()

    return Wrapped(model, syncing, model.do, first_updates=has_master)


def unsaved_buffers(module: nn.Module) -> list[Tensor]:
    """Return the buffers that no checkpoint contains, because they were registered with `persistent=False`."""
    kept = {id(buffer) for buffer in PersistentBuffers(module).tensors()}
    return [buffer for buffer in module.buffers() if id(buffer) not in kept]


def with_first_weights(module: nn.Module, world: World, *, deferred: bool = False) -> Wrapped:
    """Give all ranks rank 0's weights, and return the module as it is, not in DDP, in the Wrapped that strategies use.

    All ranks call it. With `deferred` nothing is sent, as the weights are still to be loaded. The caller reduces
    gradients over ranks after the backward passes, so any part of the model may be called separately.
    """
    if world.size > 1 and not deferred:
        broadcast_from_first([*module.parameters(), *PersistentBuffers(module).tensors()])
    return Wrapped(module, follows_first_rank=False)


def remove_reducer(wrapped: Wrapped) -> None:
    """Remove DDP's reducer, and so its hooks on the parameters, from a DDP model whose module will be wrapped again.

    Nothing is done if the wrapped model is no DDP.
    """
    if isinstance(wrapped.model, DistributedDataParallel):
        for name in ("reducer", "logger"):
            vars(wrapped.model).pop(name, None)


class _Work:
    """Marks a function that is passed to a DDP module in place of the model's input.

    `_Replica` then calls it as DDP's forward pass.
    """

    def __init__(self, function: Callable[[nn.Module], Any]) -> None:
        self.function = function


class _Replica(DistributedDataParallel):
    """A DDP whose forward pass can also be any function of the module, with fixed gradient buckets.

    Buckets go from the last parameter to the first, from the first step on. By default DDP has one bucket at first and
    then others, in the order of a backward pass; with more than two ranks the last bits of a sum depend on its bucket,
    so that a resumed training would differ.
    """

    def make_buckets(self) -> None:
        """Make the buckets once, before the first step, from the last parameter to the first; all ranks call it."""
        self.reducer._push_all_rebuilt_params()  # noqa: SLF001 - torch has no public way to say which buckets there are
        self.reducer._rebuild_buckets()  # noqa: SLF001 - nor to make them before the second step

    def _build_params_for_reducer(self) -> tuple[list[nn.Parameter], list[bool]]:
        """Return DDP's parameters in reverse order, which decides its buckets, and whether each has sparse gradients.

        With `find_unused_parameters` the order stays, as DDP then goes from the last one by itself.
        """
        parameters, sparse = super()._build_params_for_reducer()
        if self.find_unused_parameters:  # DDP keeps to its first buckets then, and goes from the last one by itself
            return parameters, sparse
        return parameters[::-1], sparse[::-1]

    def do(self, function: Callable[[nn.Module], T]) -> T:
        """Return the result of `function(module)`, called as DDP's forward pass, so that gradients are reduced.

        Raises TrainerError if parameters got no gradient in the last step.
        """
        try:
            answer: T = self(_Work(function))
        except RuntimeError as error:
            if not str(error).startswith(_UNUSED):
                raise
            raise TrainerError(
                "model: some of its parameters got no gradient in the last step, and ddp waits for all of them\n"
                "hint: unused_parameters=True (--unused-parameters), or requires_grad_(False) for those that are not "
                "to be trained"
            ) from error
        return answer

    def _run_ddp_forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the forward pass for DDP, which calls this: the function in a _Work, or by default the module's own pass.

        The method `do` calls the DDP with a _Work as its only input.
        """
        if len(inputs) == 1 and isinstance(inputs[0], _Work):
            with self._inside_ddp_forward():
                return inputs[0].function(self.module)
        return super()._run_ddp_forward(*inputs, **named)


def over_all_gpus(module: nn.Module, world: World, dtype: torch.dtype | None) -> Wrapped:
    """Wrap the model in nn.DataParallel: one process, with a thread and a copy of the model per GPU.

    The copies are on all visible GPUs, or on N of them with TRAINER_BASELINE `dp=N`. `dtype` is that of autocast in the
    threads, or None. Without a GPU the model is called as it is, as nn.DataParallel does. Raises BadSettings if there
    are fewer than N GPUs.
    """
    if world.device.type != "cuda":
        return Wrapped(module)
    many = baselines.gpus()
    first = world.device.index or 0
    gpus = [first, *(index for index in range(torch.cuda.device_count()) if index != first)]
    if many is not None and many > len(gpus):
        raise BadSettings(f"strategy: dp expected {many} GPUs in one process, found {len(gpus)}")
    return Wrapped(_Threads(module, gpus[:many], dtype))


class _Threads(DataParallel[nn.Module]):
    """A DataParallel that calls each copy of the model with autocast to `dtype`, in the copy's own thread.

    torch's DataParallel would not use the caller's `dtype` in its threads.
    """

    def __init__(self, module: nn.Module, gpus: Sequence[int], dtype: torch.dtype | None) -> None:
        super().__init__(module, device_ids=list(gpus))
        self._dtype = dtype

    def parallel_apply(self, replicas: Sequence[Any], inputs: Any, kwargs: Any) -> list[Any]:
        """Call each copy of the model with its own inputs, in a thread per copy, and return the outputs in order.

        The calls autocast to the type that this object was made with; None: they do not autocast.
        """
        calls: list[Any] = [partial(_call, replica, self._dtype) for replica in replicas]
        return super().parallel_apply(calls, inputs, kwargs)


def _call(replica: nn.Module, dtype: torch.dtype | None, *args: Any, **kwargs: Any) -> Any:
    """Return the output of a copy of the model, called with autocast to `dtype`, or without autocast if it is None."""
    with autocasting(torch.device("cuda"), dtype):
        return replica(*args, **kwargs)
