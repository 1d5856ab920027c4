"""List the trainer's committed checkpoints of a run, and whether their bytes are complete; nothing in them is executed.
An `entry` is a checkpoint's folder with the kind and step that its name tells. Their format is defined in
trainer/checkpoint_files.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec

from launcher.run.attempts import newest, plan_as
from launcher.run.layout import RunDir
from trainer.checkpoint_files import catalog, durable, layout, manifest
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.layout import Kind
from trainer.checkpoint_files.manifest import Manifest, Value
from trainer.errors import CheckpointDamaged


class Condition(StrEnum):
    """Whether the bytes of a checkpoint are all there: OK by names and sizes, VERIFIED by checksums of every byte,
    PARTIAL if some files are on other disks, DAMAGED if a start would not load it, SET_ASIDE if a start has found it
    damaged and renamed it.
    """

    OK = "ok"  # the manifest is valid, and lists the names and sizes of all files
    VERIFIED = "verified"  # and every byte matches its checksum
    PARTIAL = "partial"  # valid, but some of its files are on other disks
    DAMAGED = "damaged"  # a start would not load it
    SET_ASIDE = "set_aside"  # a start found it damaged and renamed it


class Checkpoint(msgspec.Struct, frozen=True):
    """A row of `launch checkpoints`, in the form that its --json prints. `kind` is step, or best for one selected by
    a monitored value; `reason` says why it is not complete; `finite` tells whether each weight is a finite number. The
    fields from `saved_at` to `finite` are None if the manifest cannot be read.
    """

    step: int
    kind: Kind  # step: starts load it; best: selected by a monitored value
    state: Condition  # ok (by names and sizes), verified, partial, damaged or set_aside
    reason: str  # why it is not complete, or ""
    path: str
    saved_at: float | None = None  # Unix time; this and the next four are None if the manifest cannot be read
    size_bytes: int | None = None
    world_size: int | None = None
    attempt: int | None = None
    finite: bool | None = None  # whether every weight is a finite number
    info: dict[str, Value] = {}  # values that the user saved with it


@dataclass(frozen=True, slots=True)
class Kept:
    """The checkpoints of a run, as the names of their folders show: the steps that a start can load, and how many best
    ones and damaged, renamed ones there are.
    """

    steps: tuple[int, ...]  # that a start can load, oldest first
    best: int  # how many were selected by a monitored value
    set_aside: int  # how many a start has found damaged and renamed


def by_script(step: int) -> str:
    """Return the text, such as `step 120, saved by the script itself`, that stands for the checkpoint of a step which
    the script has saved in its own format.
    """
    return f"step {step}, saved by the script itself"


def kept(run: RunDir) -> Kept:
    """Return the steps that a start can load, and how many best and damaged checkpoints the run has.

    These are read from the names of folders, without opening any.
    """
    folders = checkpoint_folders(run)
    committed = [entry for folder in folders for entry in _committed(folder)]
    steps = tuple(sorted(entry.step for entry in committed if entry.kind == "step"))
    return Kept(steps, len(committed) - len(steps), sum(len(_set_aside(folder)) for folder in folders))


def checkpoints(run: RunDir, *, verify: bool = False) -> Iterator[Checkpoint]:
    """Yield the checkpoints: the newest first, then the best ones, then damaged ones that a start has renamed.

    Each is read only when it is yielded; with `verify`, all its bytes are compared with their checksums.
    """
    folders = checkpoint_folders(run)
    committed = [entry for folder in folders for entry in _committed(folder)]
    for entry in sorted(committed, key=_newest_steps_first):
        if (found := _read_checkpoint(entry, verify=verify)) is not None:
            yield found
    set_aside = [entry for folder in folders for entry in _set_aside(folder)]
    for entry in sorted(set_aside, key=_newest_steps_first):
        if (found := _read_checkpoint(entry, verify=verify)) is not None:
            yield msgspec.structs.replace(found, state=Condition.SET_ASIDE)


FolderName = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*$")]  # no file system takes others


class _Checkpoints(msgspec.Struct, frozen=True):
    """The checkpoint directory in the spec of a run's plan.json."""

    dir: FolderName


class _Spec(msgspec.Struct, frozen=True):
    """The part of the spec in a run's plan.json that is read here."""

    checkpoint: _Checkpoints


class _Plan(msgspec.Struct, frozen=True):
    """The part of a plan that gives the checkpoint directory."""

    spec: _Spec
    workdir: FolderName = ""


def checkpoint_folder(run: RunDir) -> Path:
    """Return the checkpoint directory, `checkpoint.dir` in the run's folder, as the plan of the run's newest attempt
    names it.
    """
    return run.path / _plan(run).spec.checkpoint.dir


def checkpoint_folders(run: RunDir) -> list[Path]:
    """Return the directories in which a run may save: its checkpoint directory and, if the workdir is in the frozen
    code, also the directory of the same name in the workdir.

    A script that calls `Checkpointer("checkpoints")` itself saves in the workdir.
    """
    plan = _plan(run)
    beside = Path(plan.workdir, plan.spec.checkpoint.dir)
    inside = plan.workdir and not beside.is_absolute() and ".." not in beside.parts
    return [run.path / plan.spec.checkpoint.dir, *([run.path / beside] if inside else [])]


def _plan(run: RunDir) -> _Plan:
    """Return the part of the newest attempt's plan that gives the checkpoint directory; if no attempt was opened yet,
    that of the plan of the first.
    """
    attempt = newest(run)
    return plan_as(run, attempt.number if attempt is not None else 1, _Plan)


def _newest_steps_first(entry: Entry) -> tuple[bool, int]:
    """Return a sort key that puts the newest steps first and best checkpoints last."""
    return entry.kind == "best", -entry.step


def _read_checkpoint(entry: Entry, *, verify: bool) -> Checkpoint | None:
    """Return a checkpoint with its condition, or None if it has been deleted since it was listed.

    With `verify`, all its bytes are compared with their checksums, else only the files' names and sizes with the
    manifest.
    """
    state, reason = Condition.VERIFIED if verify else Condition.OK, ""
    found: Manifest | None
    try:
        found = catalog.verify(entry, partial=True) if verify else catalog.read_manifest(entry, partial=True)
        if found.apart and (away := catalog.missing(entry.path, found)):
            state, reason = Condition.PARTIAL, f"{', '.join(away)} not on this disk"
    except (CheckpointDamaged, OSError) as error:
        if not os.path.lexists(entry.path):
            return None
        state, reason = Condition.DAMAGED, _reason(error, entry.path)
        found = _manifest_alone(entry)
    row = Checkpoint(entry.step, entry.kind, state, reason, str(entry.path))
    if found is None:
        return row
    return msgspec.structs.replace(
        row,
        saved_at=found.saved_unix_s or None,
        size_bytes=found.size_bytes,
        world_size=found.world_size,
        attempt=found.attempt,
        finite=found.finite,
        info=found.info,
    )


def _manifest_alone(entry: Entry) -> Manifest | None:
    """Return the manifest of a checkpoint whose other files are damaged, or None if it cannot be read."""
    with contextlib.suppress(CheckpointDamaged, OSError):
        return manifest.decode(durable.read_small(entry.path / layout.MANIFEST))
    return None


def _reason(error: Exception, path: Path) -> str:
    """Return what is wrong with a checkpoint as text, without the path of its folder."""
    if isinstance(error, OSError):
        where = os.path.basename(os.fsdecode(error.filename)) if error.filename is not None else ""
        return f"{where}: {error.strerror}" if where else str(error)
    return str(error).partition("\n")[0].removeprefix(str(path)).lstrip("/: ")


def _committed(folder: Path) -> list[Entry]:
    """Return the trainer's committed checkpoints in a folder.

    A file with the name of a checkpoint is left out: a script has saved it in its own format.
    """
    return [entry for entry in catalog.entries(folder) if entry.path.is_dir()]


def _set_aside(folder: Path) -> list[Entry]:
    """Return the checkpoints that starts of the run have found damaged and renamed, each with its original kind and
    step.
    """
    found = []
    for path in catalog.set_aside(folder):
        was = layout.parse_folder_name(path.name.partition("-")[2].rpartition("-")[0])  # .bad-<name>-<nonce>
        if was is not None:
            found.append(Entry(*was, path))
    return found
