"""Export the weights of a run's checkpoint for other libraries: safetensors, torch.load, DCP, Hugging Face."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from launcher.errors import BadInput, Exit, LaunchError, Refused
from launcher.run.layout import RunDir
from launcher.status.checkpoints import Checkpoint, Condition, checkpoints
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.export import ExportOptions, check, export_entry
from trainer.checkpoint_files.layout import Kind
from trainer.checkpoint_files.manifest import Value
from trainer.errors import CheckpointDamaged, CheckpointPartial, TrainerError


@dataclass(frozen=True, slots=True)
class Wish:
    """A request to export the weights of one checkpoint to `target`: that of `step`, the `best` one, or else the
    newest; `options` gives types, sizes of files, and whether to overwrite.
    """

    target: Path
    options: ExportOptions
    step: int | None = None  # None: the newest one, or the best
    best: bool = False


class Exported(msgspec.Struct, frozen=True):
    """The weights that were exported: to which file or folder, and from which checkpoint. `info` are values that the
    user saved with it, and `passed_over` says how newer checkpoints are damaged.
    """

    file: str  # or a folder
    run: str
    kind: Kind  # of checkpoint: step or best
    step: int
    tensors: int  # how many were written
    size_bytes: int  # of what was written
    dtypes: tuple[str, ...]  # the types of the tensors
    info: dict[str, Value]  # values that the user saved with the checkpoint
    passed_over: tuple[str, ...] = ()  # newer checkpoints that are damaged, and how


def refuse_impossible(wish: Wish) -> None:
    """Raise BadInput if the request contradicts itself or its target cannot be written, and Refused if the target
    exists.
    """
    if wish.step is not None and wish.best:
        raise BadInput("expected a step, or the best one, got both")
    try:
        check(wish.target, wish.options)
    except TrainerError as error:
        raise BadInput(*str(error).splitlines()) from error
    except FileExistsError as error:
        raise Refused(str(error), *([] if wish.options.overwrite else ["hint: --force writes over it"])) from error


def export(run: RunDir, wish: Wish) -> Exported:
    """Write the weights of the requested checkpoint after comparing its files of weights with their digests; return
    what was written.

    If no step was requested, a damaged checkpoint is passed over for the next older one. Raise BadInput if the request
    is impossible, Refused if the target exists or there is no such checkpoint, and LaunchError with exit code 6 if all
    that could be exported are damaged.
    """
    refuse_impossible(wish)
    passed_over: list[str] = []
    for one in _candidates(run, wish):
        try:
            found = _export(run, one, wish)
        except (CheckpointDamaged, FileNotFoundError) as error:
            passed_over.append(str(error))
            continue
        except TrainerError as error:
            raise BadInput(*str(error).splitlines()) from error
        return msgspec.structs.replace(found, passed_over=tuple(passed_over))
    damaged = LaunchError(*passed_over, f"hint: launch checkpoints {run.id} --verify shows which are whole")
    damaged.exit_code = Exit.DAMAGED
    raise damaged


def is_here(run: RunDir, step: int | None) -> bool:
    """Return whether a checkpoint of this step, or any if `step` is None, is complete on this disk.

    Names and sizes of its files are compared, not their contents.
    """
    return any(step in (None, one.step) and one.state is Condition.OK for one in checkpoints(run))


def _candidates(run: RunDir, wish: Wish) -> Iterator[Checkpoint]:
    """Return an iterator over the checkpoints that meet the request: the one of its step, the best ones, or all from
    the newest to the oldest, so that an older one is there if a newer is damaged. Raise Refused if there is none.
    """
    known = [one for one in checkpoints(run) if one.state is not Condition.SET_ASIDE]
    if wish.best:
        meant = [one for one in known if one.kind == "best"]
    elif wish.step is not None:
        meant = [one for one in known if one.step == wish.step][:1]
    else:
        meant = [one for one in known if one.kind == "step"]
    if not meant:
        raise Refused(*_why_none(run, wish, known))
    return iter(meant)


def _why_none(run: RunDir, wish: Wish, known: list[Checkpoint]) -> list[str]:
    """Return lines for the user on why no checkpoint meets the request; `known` are those that exist."""
    steps = ", ".join(str(one.step) for one in known if one.kind == "step")
    if not known:
        hint = "hint: only those that `trainer` saves are known; what a script saves by itself is in files of its own"
        return [f"{run.id} has no checkpoint of the trainer's", hint]
    if wish.best:
        hint = "hint: the trainer keeps the best one with `keep_best`, a loop of your own with `save(..., best=True)`"
        return [f"{run.id} has kept none apart as the best; there are steps {steps}", hint]
    return [f"{run.id} has no checkpoint of step {wish.step}; there are steps {steps}"]


def _export(run: RunDir, one: Checkpoint, wish: Wish) -> Exported:
    """Export one checkpoint to `wish.target` in the format of `wish.options`, and return what was written.

    Raise Refused if some of its files are on other machines. Errors of the trainer pass through, such as
    CheckpointDamaged.
    """
    try:
        found = export_entry(Entry(one.kind, one.step, Path(one.path)), wish.target, wish.options, {"run": str(run.id)})
    except CheckpointPartial as error:
        raise Refused(str(error), f"hint: launch fetch {run.id} --checkpoint {one.step} brings the rest") from error
    return Exported(
        str(found.target), run.id, found.kind, found.step, found.tensors, found.size_bytes, found.dtypes,
        dict(found.info),
    )  # fmt: skip
