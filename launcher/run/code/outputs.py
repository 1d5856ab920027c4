"""What ranks have written beside their code, in the run's private copy of it: found, and kept apart from the code."""

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
    """The files of the code itself."""
    pristine = as_frozen(run, plan.code.digest)
    return {file.path for file in pristine.files} if pristine.root != run.code else set()


def written(code: Path, frozen: Collection[str], patterns: Sequence[str]) -> list[str]:
    """The files below such a copy that are none of the code's; where there are patterns, what one of them names."""
    globs = [Glob(pattern) for pattern in patterns]
    names = walk(code, "", lambda name: name in frozen) if code.is_dir() else set()
    return sorted(name for name in names if not globs or any(glob.matches(name) for glob in globs))


def take(code: Path, names: Sequence[str], folder: Path) -> list[Path]:
    """Have these files in a folder too, in the place of what is there; links are left. Gives what is there now."""
    taken = []
    for name in names:
        if (code / name).is_symlink() or not (code / name).is_file():
            continue
        place = folder / name
        make_dir(place.parent)
        draft = new_draft(place.parent)
        try:
            _same(code / name, draft)
            os.replace(draft, place)
        finally:
            remove(draft)
        taken.append(place)
    return taken


def _same(file: Path, draft: Path) -> None:
    """Another name for it, which takes no room; a copy where that cannot be."""
    with contextlib.suppress(OSError):
        os.link(file, draft, follow_symlinks=False)
        return
    shutil.copyfile(file, draft, follow_symlinks=False)
