"""Remove what is no longer needed: a run's folder and id, stored code that no run uses, and ids whose folder is gone.

A folder is first renamed to a draft, so that a process that is killed while it deletes leaves nothing that looks like a
run.
"""

import contextlib
import os
import stat
from collections.abc import Collection
from pathlib import Path

import msgspec

from launcher.ids import RunId
from launcher.run import drafts, registry
from launcher.run.durable import Damaged, read_record, readable, sync_dir
from launcher.run.layout import BATCH_PREFIX, STORE, BatchDir, RunDir

_DIGEST = 64


class Usage(msgspec.Struct, frozen=True):
    """Disk space that a run takes, in bytes. `logs`, `code`, and usually `checkpoints` are parts of `total`."""

    total: int  # of the run's folder
    checkpoints: int  # of their folder, which may be outside the run's
    logs: int
    code: int  # of the run's own copy


class _Frozen(msgspec.Struct, frozen=True):
    """The digest of frozen code, from plan.json."""

    digest: str


class _Plan(msgspec.Struct, frozen=True):
    """The part of plan.json that names the digest of the frozen code."""

    code: _Frozen


def usage_of(run: RunDir, checkpoints: Path) -> Usage:
    """Return how many bytes of disk space the run's folder, its checkpoints, its logs and its copy of the code take.
    `checkpoints` is the folder of the checkpoints; if it is outside the run's folder, `total` does not include it.
    """
    return Usage(size_of(run.path), size_of(checkpoints), size_of(run.logs), size_of(run.code))


def size_of(path: Path) -> int:
    """Return the size in bytes of all blocks of a file or a tree, without following links; a file that cannot be read
    counts as nothing.
    """
    total, folders = 0, [os.fspath(path)]
    with contextlib.suppress(OSError):
        status = path.lstat()
        total = status.st_blocks * 512
        folders = folders if stat.S_ISDIR(status.st_mode) else []
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    folders += [entry.path] if entry.is_dir(follow_symlinks=False) else []
    return total


def remove_tree(path: Path) -> None:
    """Delete a tree: rename it first, so that it is gone from its path at once, then delete its files."""
    aside = drafts.new_draft(path.parent)
    os.rename(path, aside)
    sync_dir(path.parent)
    drafts.remove(aside)


def remove_run(run_id: RunId, path: Path) -> None:
    """Remove the folder and the id of a run that has ended, which the caller has checked. If several runs were
    submitted as one job, a batch, remove the folder of the batch with its last run.
    """
    remove_tree(path)
    registry.forget(run_id)
    for batch in path.parent.glob(f"{BATCH_PREFIX}*"):
        runs = readable(BatchDir(batch).runs, list[str])
        if runs and not any(map(os.path.lexists, runs)):
            drafts.remove(batch)


def forget_gone() -> list[RunId]:
    """Remove from the user's list the ids of runs whose folder was deleted by hand, and return them.

    An id stays if the folder that held the run is missing as well, because its disk may not be mounted.
    """
    gone = [(run_id, path) for run_id, path in registry.gone() if path.parent.is_dir()]
    for run_id, _ in gone:
        registry.forget(run_id)
    return [run_id for run_id, _ in gone]


def unused_code(roots: Collection[Path]) -> list[Path]:
    """Return the folders of stored code that no run uses. Each folder in `roots` holds runs and a store of their code.

    A store is left out if the plan of a run beside it cannot be read, since that may name any code.
    """
    return [tree for root in roots for tree in unneeded(root / STORE, root)]


def unneeded(store: Path, root: Path, without: Collection[str] = ()) -> list[Path]:
    """Return the trees of code in `store` that no run in `root` uses; runs whose ids are in `without` do not count.

    If the plan of a run cannot be read, which may name any tree, the list is empty.
    """
    trees = [tree for tree in store.glob("*") if len(tree.name) == _DIGEST and tree.is_dir()]
    used = _used(trees, root, without) if trees else set()
    return sorted(tree for tree in trees if tree.name not in used)


def _used(trees: Collection[Path], root: Path, without: Collection[str] = ()) -> set[str]:
    """Return the digests of the code of the runs in the folder `root`, except those whose ids are in `without`; those
    of all `trees` if a plan cannot be read, since it may name any of them.
    """
    files = [*root.glob("*/plan.json"), *root.glob("*/attempts/*/plan.json")]  # of a resume with other code too
    try:
        plans = [read_record(file, _Plan) for file in files if file.relative_to(root).parts[0] not in without]
    except (Damaged, OSError):
        return {tree.name for tree in trees}
    return {plan.code.digest for plan in plans if plan is not None}


def remove_unused_code(roots: Collection[Path]) -> None:
    """Remove from each of `roots`, folders of runs, the stored code that none of its runs uses.

    A folder in which a submit is active is left alone, and so is one with a run whose plan cannot be read.
    """
    for root in roots:
        trees = unneeded(root / STORE, root)
        if trees and not drafts.in_work(root):
            _remove_unused(trees, root)


def _remove_unused(trees: Collection[Path], root: Path) -> None:
    """Remove `trees`, trees of code that no run used when they were looked for, from the store of `root`. Each is
    renamed first, so that a submit that starts later does not find it.

    A tree is put back if after the renaming a run's plan names it. All are put back if a submit is active in `root` or
    a plan cannot be read, because either may need one.
    """
    store = root / STORE
    aside = {tree: drafts.new_draft(store) for tree in trees}
    for tree, draft in aside.items():
        os.rename(tree, draft)
    sync_dir(store)
    used = {tree.name for tree in trees} if drafts.in_work(root) else _used(trees, root)
    for tree, draft in aside.items():
        if tree.name in used:
            with contextlib.suppress(OSError):  # it was stored again meanwhile
                os.rename(draft, tree)
        drafts.remove(draft)
