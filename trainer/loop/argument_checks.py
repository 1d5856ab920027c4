"""Raise errors that name the Trainer argument that is of the wrong kind, before anything starts."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainer.errors import BadSettings
from trainer.loop.callbacks import Callback
from trainer.loop.settings import Settings, near_miss

log = logging.getLogger("trainer")
_HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
_NEAR = 0.7  # a name that is less alike may well be a method of the user's own
_CRITERIA = "torch.nn.modules.loss"


def refuse_wrong_kinds(
    *, settings: object, model: object, loss: object, metrics: object, optimizer: object, schedule: object
) -> None:
    """Raise BadSettings for arguments of the wrong kind, such as an optimizer in place of a function that makes one."""
    if not isinstance(settings, Settings):
        raise BadSettings(
            f"settings: expected Settings, got {kind_of(settings)}\nhint: Trainer(Settings(max_epochs=3), ...)"
        )
    if not callable(model):
        raise BadSettings(f"model: expected a module or a function that makes one, got {kind_of(model)}")
    if any(kind.__module__ == _CRITERIA for kind in type(loss).__mro__):
        raise BadSettings(
            f"loss: expected a function of model and batch, got {kind_of(loss)}, which is one of outputs and targets\n"
            "hint: loss=lambda model, batch: criterion(model(batch[0]), batch[1])"
        )
    for name, function in (("loss", loss), ("metrics", metrics)):
        if function is not None and not callable(function):
            raise BadSettings(f"{name}: expected a function of model and batch, got {kind_of(function)}")
    if isinstance(optimizer, Optimizer) or not callable(optimizer):
        raise BadSettings(
            f"optimizer: expected a function that makes one of parameters, got {kind_of(optimizer)}\n"
            "hint: optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)"
        )
    for one in schedule.values() if isinstance(schedule, Mapping) else [schedule]:
        if isinstance(one, LRScheduler) or (one is not None and not callable(one)):
            raise BadSettings(
                f"schedule: expected a function that makes one of optimizer and number of steps, got {kind_of(one)}\n"
                "hint: schedule=lambda optimizer, steps: CosineAnnealingLR(optimizer, steps)"
            )


def refuse_wrong_callbacks(callbacks: Sequence[Any]) -> None:
    """Raise BadSettings for objects that lack a method of a Callback, and for misspelt hooks, which are never called.

    A misspelt hook is a method `on_...` whose name resembles a hook's. Any other `on_...` that is no hook is logged as
    a warning.
    """
    for one in callbacks:
        if isinstance(one, type):
            raise BadSettings(f"callbacks: expected objects, got the class {one.__name__}\nhint: {one.__name__}()")
        if missing := [name for name in (*_HOOKS, "state_dict", "load_state_dict") if not hasattr(one, name)]:
            raise BadSettings(
                f"callbacks: expected a Callback, got {kind_of(one)}, which has no {missing[0]}\n"
                "hint: make it a subclass of trainer.Callback"
            )
        for name in sorted(
            {name for kind in _user_classes(one) for name in vars(kind) if name.startswith("on_")} - {*_HOOKS}
        ):
            what = f"callbacks: {type(one).__name__}.{name} is no hook, and is never called"
            if hint := near_miss(name, _HOOKS, _NEAR):
                raise BadSettings(what + hint)
            log.warning("%s\nhint: hooks are %s", what, ", ".join(_HOOKS))


def _user_classes(callback: object) -> list[type]:
    """Return the callback's class and its base classes; those of the trainer package need no check and are left out."""
    return [kind for kind in type(callback).__mro__ if kind.__module__.partition(".")[0] != "trainer"]


def kind_of(value: object) -> str:
    """Return the value's type for an error message, as `a Linear`, or `the class Linear` for a class."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"
