"""Find the files that ranks have written into the run's own copy of its code, as opposed to the code itself."""

import contextlib
import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from launcher.plan.model import Plan
from launcher.run.code.globs import Glob
from launcher.run.code.names import walk
from launcher.run.code.renewing import as_frozen
from launcher.run.drafts import new_draft, remove
from launcher.run.durable import make_dir
from launcher.run.layout import RunDir


def frozen_names(run: RunDir, plan: Plan) -> set[str]:
    """Return the paths, relative to the code's folder, of the files that were frozen as the run's code. Return an
    empty set if the store, which keeps the unchanged original of each frozen code, has lost that of this run.
    """
    pristine = as_frozen(run, plan.code.digest)
    return {file.path for file in pristine.files} if pristine.root != run.code else set()


def written(code: Path, frozen: Collection[str], patterns: Sequence[str]) -> list[str]:
    """Return the files in the run's copy `code` that are not among the names `frozen`, as sorted names relative to
    `code`; with `patterns`, the globs of the spec's `run.outputs`, only files that match one.
    """
    globs = [Glob(pattern) for pattern in patterns]
    names = walk(code, "", lambda name: name in frozen) if code.is_dir() else set()
    return sorted(name for name in names if not globs or any(glob.matches(name) for glob in globs))


def link_into(code: Path, names: Sequence[str], folder: Path) -> list[Path]:
    """Link the named files of the folder `code` into `folder`, or copy them if links are impossible; return the new
    paths.

    Files in `folder` with these names are replaced; symbolic links and names that are no files are skipped.
    """
    taken = []
    for name in names:
        if (code / name).is_symlink() or not (code / name).is_file():
            continue
        place = folder / name
        make_dir(place.parent)
        draft = new_draft(place.parent)
        try:
            _link_or_copy(code / name, draft)
            os.replace(draft, place)
        finally:
            remove(draft)
        taken.append(place)
    return taken


def _link_or_copy(file: Path, draft: Path) -> None:
    """Make `draft` a hard link to the file, or a copy if links are impossible."""
    with contextlib.suppress(OSError):
        os.link(file, draft, follow_symlinks=False)
        return
    shutil.copyfile(file, draft, follow_symlinks=False)
