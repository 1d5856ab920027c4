"""Decide whether a training resumes from a checkpoint, and report which settings have changed since."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer.checkpoint_files import catalog
from trainer.errors import BadSettings
from trainer.loop.schedules import Schedule, Schedules
from trainer.loop.settings import Settings
from trainer.wire import Launched
from trainer.world import World, call_on_first

OF_CHECKPOINT = ("optimizer", "schedule")  # restored from the checkpoint, whatever the script sets now
_OF_SCRIPT = (
    *("batch_size", "shuffle", "drop_last", "precision", "clip_norm", "clip_value"),
    *("ema", "seed", "monitor", "mode"),
)
_HOW = ("params", "foreach", "fused", "capturable", "differentiable")  # an optimizer works, not what it does


def refuse_to_resume(settings: Settings, folder: Path, world: World, launched: Launched) -> None:
    """Raise BadSettings if `resume` is never but `folder` has a checkpoint, except when launch restarts the run.

    All ranks call it; rank 0 reads the folder.
    """
    if settings.resume != "never" or not _is_first_start(launched):
        return
    steps = call_on_first(world, lambda: [entry.step for entry in catalog.entries(folder) if entry.kind == "step"])
    if steps:
        raise BadSettings(
            f"resume: never, but {folder} has a checkpoint of step {max(steps)}\n"
            "hint: another checkpoint_dir, or resume=auto to resume from it"
        )


def refuse_to_begin(settings: Settings, folder: Path, found: bool, launched: Launched) -> None:
    """Raise BadSettings if `resume` is must but no checkpoint was found in `folder`.

    When launch restarts the run, nothing is raised.
    """
    if settings.resume == "must" and not found and _is_first_start(launched):
        raise BadSettings(f"resume: must, but {folder} has no checkpoint\nhint: resume=auto begins without one")


def _is_first_start(launched: Launched) -> bool:
    """Return whether these are the first processes of the run: the first launch of the ranks in the first attempt."""
    return launched.attempt <= 1 and launched.generation <= 1


class Given:
    """The settings on which a training's results depend, as text by name, saved in each checkpoint.

    Loading a checkpoint fills `changes` with a sentence for each setting that has another value now.
    """

    def __init__(self, settings: Settings, schedules: Schedules) -> None:
        self._takes_new = settings.hyperparameters == "given"
        self._now = {name: repr(getattr(settings, name)) for name in _OF_SCRIPT}
        for name, schedule in schedules.each.items():
            self._now |= dict(_constants_of(f".{name}" if name else "", schedule))
        self.changes: list[str] = []

    def state_dict(self) -> dict[str, str]:
        """Return the settings by name, for the checkpoint."""
        return dict(self._now)

    def load_state_dict(self, state: Mapping[str, str]) -> None:
        """List in `changes` where a checkpoint's settings, `state`, differ from the present ones.

        For options of optimizers and schedules, the checkpoint's values then replace the present ones in this object,
        and are saved again by the next checkpoint, unless the setting `hyperparameters` is "given". The optimizers
        themselves are not changed here.
        """
        self.changes = []
        for name in sorted(self._now.keys() & state.keys()):
            was, now = state[name], self._now[name]
            if was != now:
                self.changes.append(f"{name}: {was} when it was saved, now {now}: {self._outcome(name)}")
                self._now[name] = was if self._keeps(name) else now

    def _keeps(self, name: str) -> bool:
        """Return whether the checkpoint's value of the setting `name` is used in place of the present one.

        That is so for options of optimizers and schedules, unless the setting `hyperparameters` has the value "given".
        """
        return name.startswith(OF_CHECKPOINT) and not self._takes_new

    def _outcome(self, name: str) -> str:
        """Return the sentence that says which value of the changed setting `name` is used.

        It is the checkpoint's for options of optimizers and schedules, unless `hyperparameters` is "given"; else it is
        the present one.
        """
        if self._keeps(name):
            return "that of the checkpoint is used (hyperparameters=given takes the new one)"
        return "the new one is used"


def _constants_of(name: str, schedule: Schedule) -> Iterator[tuple[str, str]]:
    """Yield name and text of each option of an optimizer's parameter groups and each constant of its schedule.

    Names are such as `optimizer.gen[1].lr` or `schedule.gen.step_size`; `name` is the part `.gen`, or "" for an only
    optimizer.
    """
    for number, group in enumerate(schedule.groups):
        place = f"{name}[{number}]" if number else name
        yield from ((f"optimizer{place}.{key}", repr(group[key])) for key in group if key not in _HOW)
    yield from ((f"schedule{name}.{key}", repr(value)) for key, value in _constants(schedule.state_dict()))


def _constants(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield name and value of the arguments that a scheduler was made with, without its current position.

    `state` is the scheduler's state_dict().
    """
    for key, value in state.items():
        if key == "_schedulers":  # of one made of several
            for number, inner in enumerate(value):
                yield from ((f"{number}.{name}", constant) for name, constant in _constants(inner))
        elif not key.startswith("_") and key not in ("base_lrs", "last_epoch") and isinstance(value, (int, float, str)):
            yield key, value
