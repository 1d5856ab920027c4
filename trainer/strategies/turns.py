"""Run backward passes and optimizer steps in the order that a user's own training step gives, as for GANs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.amp.autocast_mode import autocast
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from trainer.errors import BadSettings, TrainerError
from trainer.strategies.finite import are_finite, first_gradient, step_where
from trainer.strategies.gradients import reduce_gradients
from trainer.strategies.optimizers import has_gradients, parameters_in
from trainer.strategies.strategy import Strategy

STRATEGIES = ("none", "ddp", "zero1")  # each rank has all parameters: any part of the model may be called by itself


@dataclass(slots=True, eq=False)
class Turns:
    """The model and optimizers that a user's own step function gets, for one micro-batch.

    `number` is that of the step, from 1, and `ends_step` says whether this is its last micro-batch.
    """

    strategy: Strategy
    number: int = 0
    ends_step: bool = True
    _weight: float = 1.0  # of a loss of this micro-batch in the mean over the step's samples and ranks
    _stepped: set[str] = field(default_factory=set)
    _finite: list[Tensor] = field(default_factory=list)  # of each optimizer stepped, whether its gradients were
    _norms: list[Tensor] = field(default_factory=list)

    @property
    def optimizers(self) -> Mapping[str, Optimizer]:
        """The optimizers by name; a single one without a name is `""`."""
        return self.strategy.optimizers

    def begin(self, number: int, weight: float, *, ends_step: bool) -> None:
        """Begin a micro-batch of step `number`; `ends_step` says whether it is the last one of the step.

        A loss of this micro-batch is multiplied by `weight` before its backward pass, so that the gradients add up to
        those of the mean over the step's samples on all ranks.
        """
        self.number, self._weight, self.ends_step = number, weight, ends_step

    def backward(self, loss: Tensor, name: str = "", *, retain_graph: bool = False) -> None:
        """Add gradients of `loss`, a mean over the micro-batch, to the parameters of the optimizer `name` only.

        They are weighted so that they add up to those of the mean over the whole step. `retain_graph` is that of
        torch.autograd.backward. Raises TrainerError for an unknown name.
        """
        wanted = [one for one in parameters_in(self._optimizer(name)) if one.requires_grad]
        scaler, weighted = self.strategy.scaler, loss * self._weight
        first = first_gradient(weighted)
        with autocast(loss.device.type, enabled=False):
            scaled = weighted if scaler is None else scaler.scale(weighted)
            torch.autograd.backward(scaled, first, retain_graph=retain_graph, inputs=wanted)

    def step(self, name: str = "") -> None:
        """Step the optimizer `name` if this is the last micro-batch of a training step, else do nothing.

        All ranks call it, in the same order. The optimizer's gradients are reduced over ranks and clipped before its
        step, and dropped after it. The weights do not change if a gradient is not finite, or if no rank has a gradient.
        Raises TrainerError for an unknown name, or if this optimizer was already stepped in this training step.
        """
        optimizer = self._optimizer(name)
        if name in self._stepped:
            raise TrainerError(f"step: {_title(name)} was stepped twice in one step\nhint: it may be once a step")
        if not self.ends_step:
            return
        strategy, parameters = self.strategy, list(parameters_in(optimizer))
        reduce_gradients(parameters, strategy.world)
        self._stepped.add(name)
        if not has_gradients(optimizer):
            return
        if strategy.scaler is not None:
            strategy.scaler.unscale_(optimizer)
        finite = are_finite([one.grad for one in parameters if one.grad is not None], shared=False)
        norm = strategy.clip(parameters)
        self._norms += [] if norm is None else [norm]
        self._finite.append(finite)
        _step(optimizer, finite, strategy.scaler)
        optimizer.zero_grad(set_to_none=True)
        torch.clear_autocast_cache()  # it has the weights as they were

    def end(self) -> Tensor | None:
        """End the step, and drop gradients that no optimizer has used.

        The step counts as skipped if a gradient was not finite. Returns the norm of all gradients that were clipped in
        it, or None if none were.
        """
        strategy, norms = self.strategy, self._norms
        strategy.skip_step()
        strategy.has_stepped = True
        if self._finite:
            finite = torch.stack(self._finite).all()
            strategy.skips.count(finite)
            if strategy.scaler is not None:
                strategy.scaler.update()
                strategy.has_stepped = bool(finite)
        self._stepped, self._finite, self._norms = set(), [], []
        return torch.linalg.vector_norm(torch.stack(norms)) if norms else None

    def _optimizer(self, name: str) -> Optimizer:
        """Return the optimizer called `name`. Raises TrainerError if there is none."""
        if name not in self.optimizers:
            known = ", ".join(map(repr, self.optimizers))
            raise TrainerError(f"step: expected the name of an optimizer, {known}, got {name!r}")
        return self.optimizers[name]


def refuse_own_step(strategy: str) -> None:
    """Raise BadSettings for a strategy that does not go with a training step of the user's own.

    This is any but STRATEGIES (none, ddp and zero1): with others a rank lacks some of the parameters, so parts of the
    model cannot be called separately.
    """
    if strategy not in STRATEGIES:
        raise BadSettings(f"step: expected with strategy {', '.join(STRATEGIES)} only, got it with {strategy}")


def _step(optimizer: Optimizer, finite: Tensor, scaler: GradScaler | None) -> None:
    """Step one optimizer if `finite`, a bool on the device, is true.

    With a scaler for fp16, `finite` is not used: the scaler steps only if it found no gradient that is infinite or NaN.
    """
    if scaler is None:
        step_where(finite, [optimizer])
    else:
        scaler.step(optimizer)


def _title(name: str) -> str:
    """Return the words for an optimizer in a message, such as `the optimizer 'generator'`."""
    return f"the optimizer {name!r}" if name else "the optimizer"
