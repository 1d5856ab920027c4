"""Train so that a resumed run ends bit for bit like an undisturbed one: `Checkpointer` for your own loop, or `Trainer`.

Names are imported when they are first used, so that `trainer.checkpoint_files` can be read without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.checkpoint.checkpointer import Checkpointer
    from trainer.checkpoint.models import load_model
    from trainer.checkpoint_files.export import export
    from trainer.errors import EXIT_RESUME_ME, BadSettings, Fenced, SaveFailed, TrainerError
    from trainer.loop import Callback, Settings, Trainer
    from trainer.metrics_files import read_metrics
    from trainer.weights import load_weights
    from trainer.world import World, join, leave

_HOMES = {
    "Callback": "trainer.loop",
    "Checkpointer": "trainer.checkpoint.checkpointer",
    "export": "trainer.checkpoint_files.export",
    "load_model": "trainer.checkpoint.models",
    "load_weights": "trainer.weights",
    "EXIT_RESUME_ME": "trainer.errors",
    "BadSettings": "trainer.errors",
    "Fenced": "trainer.errors",
    "SaveFailed": "trainer.errors",
    "TrainerError": "trainer.errors",
    "Settings": "trainer.loop",
    "Trainer": "trainer.loop",
    "World": "trainer.world",
    "join": "trainer.world",
    "leave": "trainer.world",
    "read_metrics": "trainer.metrics_files",
}

__all__ = [
    "EXIT_RESUME_ME",
    "BadSettings",
    "Callback",
    "Checkpointer",
    "Fenced",
    "SaveFailed",
    "Settings",
    "Trainer",
    "TrainerError",
    "World",
    "export",
    "join",
    "leave",
    "load_model",
    "load_weights",
    "read_metrics",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'trainer' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
