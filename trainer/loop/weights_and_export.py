"""Load the weights that a training starts from, and export the weights that it produces."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from trainer.checkpoint.models import load_model_together
from trainer.checkpoint_files import catalog
from trainer.checkpoint_files.choice import first_whole
from trainer.checkpoint_files.export import ExportOptions, Form, Written, check, export_entry
from trainer.errors import TrainerError
from trainer.loop.loop import Loop
from trainer.weights import Taken, load_weights
from trainer.world import World, call_on_first

log = logging.getLogger("trainer")
StartFrom = str | Path | Callable[[nn.Module], Taken]
_OF_HUGGING_FACE = ("config", "generation_config")


def begin_with(start: StartFrom | None, loop: Loop) -> None:
    """Load the weights that the user gave to begin with into the model, which is already wrapped for the strategy.

    `start` is a file or folder of weights, or a function that is called with the model and loads them into it. If it is
    None, nothing is done.
    """
    if start is None:
        return
    module = loop.strategy.module
    result = start(module) if callable(start) else load_weights(module, start)
    loop.training.say(f"starts from given weights: {result}")


def begin_average(loop: Loop) -> None:
    """Start the average of the weights (EMA) from the current ones, unless the loaded checkpoint had one.

    Without the option `ema` there is no average, and nothing is done.
    """
    loaded = loop.checkpointer.loaded
    if loop.average is not None and loop.average.begin(loaded.averages if loaded else ()) and loaded is not None:
        loop.training.say("ema: the checkpoint has no average of the weights, so it starts from them now")


def take_weights(start: StartFrom | None, loop: Loop, step: int | None = None, *, best: bool = False) -> None:
    """Load the weights of the newest complete checkpoint into the model; all ranks call it.

    `best` or `step` chooses the best checkpoint, or that of a step, instead. If neither is given and there is no
    checkpoint, the weights given to begin with (`start`) are loaded, if any. With EMA the averages are loaded or begun
    as well. Raises TrainerError if the chosen checkpoint is missing, damaged or of another model.
    """
    folder, world, module = loop.checkpointer.folder, loop.training.world, loop.strategy.module
    if step is not None or best or call_on_first(world, lambda: bool(catalog.entries(folder))):
        loop.progress.step = load_model_together(module, folder, world, step, best=best)
    else:
        begin_with(start, loop)
    begin_average(loop)


def export_checkpoint(
    folder: Path,
    target: Path,
    world: World,
    module: nn.Module | None,
    options: ExportOptions,
    step: int | None,
    *,
    best: bool,
) -> Written:
    """Export the weights of the newest checkpoint in `folder` to `target`, on rank 0; all ranks call it.

    `best` or `step` chooses the best checkpoint, or that of a step, instead. Returns a description of the export, the
    same on all ranks. `options` gives types, sizes of files, and whether to overwrite. If `module` is a
    Hugging Face model and `target` a folder, the model's configuration is written into it. Raises TrainerError if the
    export fails.
    """

    def write() -> Written:
        """Export the checkpoint. Raises TrainerError."""
        try:
            form = check(target, options)
            found = first_whole(
                folder, lambda entry: export_entry(entry, target, options, {}), log.warning, step, best=best
            )
        except OSError as error:
            raise TrainerError(str(error)) from error
        for name in _OF_HUGGING_FACE if form is Form.FOLDER else ():
            words: Any = getattr(module, name, None)
            if hasattr(words, "save_pretrained"):
                words.save_pretrained(target)
        return found

    return call_on_first(world, write)
