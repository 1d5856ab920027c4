"""A model and its optimizers with everything special about running them on several ranks; the loop needs no more."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.optim import Optimizer

from trainer.checkpoint.generators import restore_generators, state_of_generators
from trainer.strategies.broadcast import PersistentBuffers, broadcast_from_first
from trainer.strategies.compiling import warn_of_eager_parts
from trainer.strategies.finite import Skips, are_finite, first_gradient, multiply, step_where
from trainer.strategies.gradients import clip_offloaded, clip_values
from trainer.strategies.optimizers import Optimizers, has_gradients, parameters_in
from trainer.strategies.precision import autocasting, forget_unscaled, low_dtype, set_found_infinite
from trainer.strategies.replicas import remove_reducer, replicated
from trainer.strategies.settings import SHARDS, StrategySettings, shard_size
from trainer.strategies.wrapped import Wrapped
from trainer.world import World

if TYPE_CHECKING:
    from trainer.strategies.pipeline import Pipeline

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Strategy:
    """Runs training steps: forward passes in `forward_context`, each loss to `backward`, then `step`.

    `module` is the user's model and `wrapped` what the strategy made of it. `blocks` counts parts that are sharded or
    recomputed separately. `deferred`: the weights are uninitialised, and a checkpoint has to be loaded. `pipeline`:
    passes go through it instead of the property `model`, the module to call in training. `has_stepped` is False if the
    last step was skipped while fp16 looks for its scale.
    """

    settings: StrategySettings
    world: World
    module: nn.Module  # the user's model, with the parameters
    wrapped: Wrapped
    optimizers: Optimizers
    scaler: GradScaler | None
    blocks: int  # how many parts are sharded or recomputed each by itself
    deferred: bool = False  # the weights are uninitialised: a checkpoint has to be loaded, or the strategy built again
    pipeline: "Pipeline | None" = None  # the model is in stages: passes go through this, and not through `model`
    skips: Skips = field(default_factory=Skips)
    has_stepped: bool = True  # False: the last step was left out while fp16 looks for its scale
    _parameters: list[nn.Parameter] = field(init=False)
    _dtype: torch.dtype | None = field(init=False)
    _buffers: PersistentBuffers = field(init=False)
    _buffers_differ: bool = True  # they may, between ranks: the next training pass first broadcasts rank 0's
    _warned_of_eager_parts: bool = False

    def __post_init__(self) -> None:
        self._parameters = list(self.module.parameters())
        self._buffers = PersistentBuffers(self.module)
        self._dtype = low_dtype(self.settings.precision)

    def rejoin(self, world: World) -> None:
        """Use the new process groups of `world` from now on, with the same weights and optimizer.

        Each rank must have the whole model.
        """
        remove_reducer(self.wrapped)
        self._drop_gradients()  # of a step that was broken off; they may lie in a bucket
        self.world, self.wrapped = world, replicated(self.module, world, self.settings)
        self.has_stepped, self._buffers_differ = True, True
        if self.scaler is not None:
            forget_unscaled(self.scaler)

    @property
    def optimizer(self) -> Optimizer:
        """The only optimizer, or the first of several."""
        return next(iter(self.optimizers.values()))

    @property
    def model(self) -> nn.Module:
        """The module to call in training; call `module` to evaluate, as a wrapper might wait for other ranks."""
        return self.wrapped.model

    @property
    def shard(self) -> int | None:
        """The number of the shard of the parameters that this rank has, or None if it has all parameters.

        With hsdp other ranks have the same shard.
        """
        if self.settings.strategy not in SHARDS or self.settings.mesh:
            return None
        return self.world.rank % shard_size(self.settings, self.world)

    @property
    def copies(self) -> frozenset[int]:
        """The other ranks that have the same parameters and optimizer state as this one.

        Empty with `mesh` or the strategy zero1: there no rank counts as a copy of another.
        """
        if self.settings.mesh or self.settings.strategy == "zero1":
            return frozenset()
        size = shard_size(self.settings, self.world) if self.settings.strategy in SHARDS else 1
        return frozenset(range(self.world.rank % size, self.world.size, size)) - {self.world.rank}

    @property
    def is_sharded(self) -> bool:
        """Whether each rank has a part of the parameters.

        Then ranks communicate in every forward pass, also without gradients, and all must run equally many.
        """
        return (self.settings.strategy in SHARDS and self.world.size > 1) or self.pipeline is not None

    @contextmanager
    def forward_context(self, *, sync: bool) -> Iterator[None]:
        """Return the context of a forward pass; only with `sync` does its backward pass reduce gradients over ranks.

        `sync` is True for the last micro-batch of a step.
        """
        if not self.wrapped.follows_first_rank and self.module.training and torch.is_grad_enabled():
            if self._buffers_differ:
                self.share_buffers()
            self._buffers_differ = sync  # as DDP has it: once a step
        with self.wrapped.around(), self.wrapped.syncing(sync), autocasting(self.world.device, self._dtype):
            yield

    def do(self, function: Callable[[nn.Module], T]) -> T:
        """Return `function(module)`, run as a forward pass; call it inside the forward context.

        The function gets the user's own module; with dp it gets a wrapper, which divides a batch over GPUs.
        """
        answer: T = function(self.model) if self.wrapped.do is None else self.wrapped.do(function)
        return answer

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of `loss`, scaled for fp16; call it outside the forward context.

        If the loss is not finite, all gradients become NaN, also on other ranks that sum them, so that `step` changes
        no parameters.
        """
        first = first_gradient(loss)
        with self.wrapped.around():
            (loss if self.scaler is None else self.scaler.scale(loss)).backward(first)

    def step(
        self, factor: Tensor | None = None, *, measured: bool = False, updating: Callable[[], None] | None = None
    ) -> Tensor | None:
        """Clip the gradients, step the optimizer, drop the gradients, and return their norm before it was clipped.

        Return None if the norm is neither clipped nor `measured`. It is still on the device: read it, by `number_of`,
        in few steps only, because waiting for it leaves a GPU idle. `factor`, the same on all ranks, multiplies the
        gradients first. `updating` is called when the weights are about to change; if it is given, the step waits for
        the device before the update. If a loss or gradient of any rank is not finite the step is left out and counted
        in `skips`; with fp16 the scale falls too.
        """
        learned = self._learned_parameters()
        if self.pipeline is not None:
            self.pipeline.reduce_gradients(learned)
        if factor is not None:
            multiply(_gradients(learned), factor)
        if self.scaler is not None:
            for optimizer in self._with_gradients():
                self.scaler.unscale_(optimizer)
        group = self.world.control if self.settings.offload else None
        finite = are_finite(_gradients(learned), shared=self.is_sharded, group=group)
        norm = self.clip(learned, measured=measured)
        if measured and norm is not None:
            norm = _added_up(norm)
        known = None
        if updating is not None:
            updating()
            known = bool(finite)  # now, as it is there: later it would come after the update
        alone = self.wrapped.first_updates
        if alone and not self.world.is_first:
            self._drop_gradients()  # so its optimizers have nothing to do
        if self.scaler is None:
            done = step_where(finite, self.optimizers.values())
            self.skips.count(done if known is None else known)
        else:
            self._step_scaled(self.scaler, finite)
        if alone:
            broadcast_from_first(learned)
        self._drop_gradients()
        if self.settings.compile and not self._warned_of_eager_parts:
            self._warned_of_eager_parts = warn_of_eager_parts()
        return norm

    def skip_step(self) -> None:
        """Drop the gradients without changing the weights.

        It is called in place of `step` if the loss is a spike, and after a step of the user's own.
        """
        self.skips.learned = False
        self._drop_gradients()

    @property
    def buffers(self) -> list[Tensor]:
        """The model's persistent buffers, such as BatchNorm's means, which are saved in a checkpoint."""
        return self._buffers.tensors()

    def share_buffers(self) -> None:
        """Copy rank 0's persistent buffers, which are the ones saved, to all ranks; all ranks call it."""
        if self.world.size > 1:
            broadcast_from_first(self._buffers.tensors())

    def rehearse(self, run_micro_batch: Callable[[], Tensor], *, sync: bool) -> None:
        """Run a forward and a backward pass that change nothing; with `sync`, gradients are reduced over ranks.

        `run_micro_batch` runs the forward pass and returns the loss.
        """
        with undone(self.module, self.world.device):
            with self.forward_context(sync=sync):
                loss = run_micro_batch()
            self.backward(loss)

    def _step_scaled(self, scaler: GradScaler, finite: Tensor) -> None:
        """Step all optimizers with the fp16 scaler, then let it adapt its scale.

        No optimizer is stepped if `finite` is false, which means that a gradient is not finite. An optimizer without
        gradients is left out, as the scaler would not step it. `skips` counts whether the step was done or left out.
        """
        if self.pipeline is not None:
            set_found_infinite(scaler, finite)
        some = list(self._with_gradients())
        if len(self.optimizers) == 1 or bool(finite):
            for optimizer in some:
                scaler.step(optimizer)
        if some:
            scaler.update()
        self.skips.count(finite)
        self.has_stepped = bool(finite)  # no wait: the scaler has just had one

    def _drop_gradients(self) -> None:
        """Drop the gradients of all parameters."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        for one in self._parameters:  # or those that no optimizer has would be added to for ever
            one.grad = None

    def clip(self, parameters: Iterable[Tensor], *, measured: bool = False) -> Tensor | None:
        """Clip gradients by value, then by norm, where the settings ask for it; return the norm before it is clipped.

        Returns None if the norm is not clipped; with `measured`, it is computed and returned even then.
        """
        parameters = list(parameters)
        if self.settings.clip_value is not None:
            for one in parameters:
                if one.grad is not None and one.grad.is_sparse:
                    one.grad = one.grad.coalesce()  # each number once: else parts of one are clipped, and then summed
            clip_values(_gradients(parameters), self.settings.clip_value)
        if self.settings.clip_norm is None and not measured:
            return None
        if self.pipeline is not None:
            return self.pipeline.clip(parameters, self.settings.clip_norm)
        if self.settings.offload:
            copies = self.world.dp_size // shard_size(self.settings, self.world)
            return clip_offloaded(_gradients(parameters), self.settings.clip_norm, self.world, copies)
        if self.settings.clip_norm is None:
            return get_total_norm(list(_gradients(parameters)))
        return clip_grad_norm_(parameters, self.settings.clip_norm)

    def _with_gradients(self) -> Iterator[Optimizer]:
        """Yield the optimizers of which any parameter has a gradient; the others have nothing to do in this step."""
        return (optimizer for optimizer in self.optimizers.values() if has_gradients(optimizer))

    def _learned_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the optimizers update, in the model's order.

        The order decides how a sum over them is rounded, such as that for the norm of the gradients.
        """
        owned = {id(one) for optimizer in self.optimizers.values() for one in parameters_in(optimizer)}
        return [one for one in self._parameters if id(one) in owned]


def _gradients(parameters: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the gradients of these parameters, without None."""
    return (one.grad for one in parameters if one.grad is not None)


def number_of(norm: Tensor) -> float:
    """Return, as a float, the norm that `Strategy.step` returned.

    All ranks call it or none, as they may communicate.
    """
    return float(_added_up(norm))


def _added_up(norm: Tensor) -> Tensor:
    """Return the norm over all ranks, which communicate if it is a DTensor; any other norm is returned as it is."""
    full = getattr(norm, "full_tensor", None)  # of a DTensor, which may still be the norm of this rank's part
    added: Tensor = norm if full is None else full()
    return added


@contextmanager
def undone(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Drop the module's gradients for the context; at its end restore gradients, buffers and random generators.

    Parameters are not restored, so the context must not change them.
    """
    generators = state_of_generators(device)
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    module.zero_grad(set_to_none=True)
    try:
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        restore_generators(generators, device)
