"""Export a checkpoint's weights to formats of other libraries, completely or not at all; needs no torch."""

import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import assert_never

from trainer.checkpoint_files import catalog
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.choice import first_whole
from trainer.checkpoint_files.dcp_files import write_dcp
from trainer.checkpoint_files.durable import sync_folder
from trainer.checkpoint_files.float_types import check_convertible
from trainer.checkpoint_files.layout import Kind
from trainer.checkpoint_files.manifest import Value
from trainer.checkpoint_files.weight_files import index, split, write_safetensors, write_torch
from trainer.checkpoint_files.weights import Weights
from trainer.checkpoint_files.weights import averaged as with_averages
from trainer.errors import BadSettings

log = logging.getLogger("trainer")
_MOST_BYTES = 5_000_000_000
_OURS = re.compile(
    r"model(-\d{5,}-of-\d{5,})?\.safetensors|model\.safetensors\.index\.json|\.metadata|__0_0\.distcp"
    r"|(generation_)?config\.json"
)


class Form(Enum):
    """A format that can be written; the value lists the endings of the target's name, "" for none."""

    SAFETENSORS = (".safetensors",)
    TORCH = (".pt", ".pth")
    DCP = (".dcp",)  # a folder, for torch.distributed.checkpoint
    FOLDER = ("",)  # of safetensors with an index, for Hugging Face's from_pretrained

    @property
    def is_folder(self) -> bool:
        """Whether a folder is written rather than a file."""
        return self in (Form.DCP, Form.FOLDER)


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The options of an export.

    `dtype`: the type of floating-point tensors (None: as saved). `model`: the name of the one to export, if the
    checkpoint has several. `most_bytes_per_file` applies to a folder (None: 5 GB). `overwrite`: an existing target is
    replaced. `averaged`: averages of weights (EMA) are exported if there are any.
    """

    dtype: str | None = None  # what floating-point tensors become; None: as they were saved
    model: str | None = None  # of several that are kept
    most_bytes_per_file: int | None = None  # where a folder may have more than one; None: 5 GB
    overwrite: bool = False
    averaged: bool = True  # the average of the weights, where one was kept


@dataclass(frozen=True, slots=True)
class Written:
    """A description of an export: the file or folder `target`, made from the checkpoint of `step`.

    The checkpoint's `kind` is "best" if it was the copy that is kept of the best one, else "step".
    `tensors` is how many were written, `dtypes` their types, and `info` has the values that the user saved in the
    checkpoint's manifest.
    """

    target: Path
    kind: Kind
    step: int
    tensors: int
    size_bytes: int
    dtypes: tuple[str, ...]
    info: Mapping[str, Value]  # what was noted with the checkpoint


def export(
    folder: str | Path, target: str | Path, *, step: int | None = None, best: bool = False, dtype: str | None = None,
    model: str | None = None, most_bytes_per_file: int | None = None, overwrite: bool = False, averaged: bool = True,
) -> Written:  # fmt: skip
    """Write the weights of the newest complete checkpoint, with `best` of the best one, or of `step`.

    `folder` holds checkpoints, or is one. The target's ending chooses the format: `.safetensors`, `.pt`, `.dcp`, or
    none for a Hugging Face folder, whose files have at most `most_bytes_per_file` (None: 5 GB). An existing target is
    replaced only with `overwrite`, else FileExistsError is raised. `dtype` converts floating-point tensors; `model`
    chooses one of several models. With `averaged`, saved averages replace the weights. Raises TrainerError for options
    that cannot work, or if no such checkpoint is complete and undamaged.
    """
    options, target = ExportOptions(dtype, model, most_bytes_per_file, overwrite, averaged), Path(target)
    check(target, options)
    return first_whole(
        Path(folder), lambda entry: export_entry(entry, target, options, {}), log.warning, step, best=best
    )


def check(target: Path, options: ExportOptions) -> Form:
    """Return the format that the name of `target` chooses.

    Raises BadSettings for options that cannot work, and FileExistsError if the target exists and is not to be replaced.
    """
    form = next((form for form in Form if target.suffix in form.value), None)
    if form is None or not target.name:
        raise BadSettings(
            f"{target}: expected a name that ends with .safetensors, .pt, .pth or .dcp, or a folder's without one\n"
            "hint: model.safetensors, which needs nothing to be read safely, or model.pt for torch.load"
        )
    if options.dtype is not None:
        check_convertible(options.dtype)
    if options.most_bytes_per_file is not None and options.most_bytes_per_file < 1:
        raise BadSettings(f"expected files of at least one byte, got {options.most_bytes_per_file}")
    if (target.is_dir() != form.is_folder and os.path.lexists(target)) or not target.absolute().parent.is_dir():
        raise BadSettings(f"{target}: expected a {'folder' if form.is_folder else 'file'} in a folder that is there")
    if os.path.lexists(target) and not options.overwrite:
        raise FileExistsError(f"{target}: is there already")
    if form.is_folder and (others := [name for name in catalog.names_in(target) if not _OURS.fullmatch(name)]):
        raise FileExistsError(f"{target}: has files that no export writes, such as {min(others)}")
    return form


def export_entry(entry: Entry, target: Path, options: ExportOptions, notes: Mapping[str, str]) -> Written:
    """Export this checkpoint to `target`; `notes` go into the metadata of safetensors.

    Every file with weights is first compared with the manifest's digest. Raises CheckpointDamaged if one differs,
    BadSettings for options that cannot work, or FileExistsError if `target` exists and `options` do not say to
    overwrite it, or it is a folder with other files.
    """
    form = check(target, options)
    manifest = catalog.read_manifest(entry)
    manifest = with_averages(manifest) if options.averaged else manifest
    with Weights(entry.path, manifest, options.model, options.dtype) as weights:
        weights.verify()
        draft = target.with_name(f".{target.name[:100]}.tmp-{os.urandom(6).hex()}")
        try:
            _write(form, draft, weights, {**notes, "step": str(entry.step)}, options.most_bytes_per_file or _MOST_BYTES)
            _sync(draft)
            _replace_target(draft, target)
        except BaseException:
            _remove(draft)
            raise
        tensors = weights.tensors.values()
        size, dtypes = sum(one.size for one in tensors), tuple(sorted({one.dtype for one in tensors}))
    return Written(target, entry.kind, entry.step, len(tensors), size, dtypes, manifest.info)


def _write(form: Form, draft: Path, weights: Weights, notes: Mapping[str, str], most_bytes: int) -> None:
    """Write the weights in this format to the path `draft`, which must not exist yet.

    `notes` go into the metadata of safetensors; each file of the format FOLDER has at most `most_bytes`. Raises
    TrainerError for a type that safetensors does not have.
    """
    match form:
        case Form.SAFETENSORS:
            with draft.open("xb") as file:
                write_safetensors(file, weights, notes)
        case Form.TORCH:
            with draft.open("xb") as file:
                write_torch(file, weights)
        case Form.DCP:
            draft.mkdir()
            write_dcp(draft, weights)
        case Form.FOLDER:
            draft.mkdir()
            _write_folder(draft, weights, notes, most_bytes)
        case _:
            assert_never(form)


def _write_folder(folder: Path, weights: Weights, notes: Mapping[str, str], most_bytes: int) -> None:
    """Write a Hugging Face folder: safetensors files of at most `most_bytes` each, and an index if there are several.

    `notes` go into their metadata. Raises TrainerError for a type that safetensors does not have.
    """
    parts = split(weights.tensors.values(), most_bytes)
    one = ["model.safetensors"]
    several = [f"model-{number:05d}-of-{len(parts):05d}.safetensors" for number in range(1, len(parts) + 1)]
    files = dict(zip(one if len(parts) == 1 else several, parts, strict=True))
    for name, names in files.items():
        with (folder / name).open("xb") as file:
            write_safetensors(file, weights, notes, names)
    if len(files) > 1:
        (folder / "model.safetensors.index.json").write_bytes(index(files, weights))


def _sync(draft: Path) -> None:
    """Sync the draft to disk, with all files in it."""
    for path in sorted(draft.iterdir()) if draft.is_dir() else [draft]:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    if draft.is_dir():
        sync_folder(draft)


def _replace_target(draft: Path, target: Path) -> None:
    """Rename the draft to the target, replacing it.

    A file is replaced atomically. A folder cannot be: the old one is renamed first and deleted last, so that a kill in
    between can leave it beside the draft, as DRAFT-before, and nothing at the target.
    """
    if not target.is_dir():
        draft.rename(target)
        return
    before = draft.with_name(f"{draft.name}-before")
    target.rename(before)
    draft.rename(target)
    _remove(before)


def _remove(path: Path) -> None:
    """Remove a file, or a folder with everything in it. A path without a file or folder is no error."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
