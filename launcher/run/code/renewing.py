"""Give new code to a run that has ended, when it is resumed: the new code is staged in the next attempt's folder, then
swapped with the old, and files that ranks wrote go along.

    project ─ freeze ─► attempts/N/code ─ swap ─► code/          the code that the attempts before ran with
                                  code/ ─ swap ─► attempts/N-1/code, kept

A submitter that is killed in between leaves attempts/N/code; the next resume of the run finishes the swap.
"""

import os
from collections.abc import Collection
from pathlib import Path

from launcher.run.code.copying import Watch
from launcher.run.code.freezing import freeze, stored
from launcher.run.code.hashes import content_hashes, tree_digest
from launcher.run.code.listing import CodeList, list_frozen
from launcher.run.code.names import walk
from launcher.run.durable import make_dir, sync_dir
from launcher.run.layout import STORE, AttemptDir, RunDir


def frozen_digest(code: CodeList) -> str:
    """Return one digest of the names and contents of all files in the list: the one that the plan of a run records for
    its frozen copy of them.

    Raise BadInput if a file cannot be read or has changed since it was listed.
    """
    return tree_digest(code.files, content_hashes(code, "frozen"))


def as_frozen(run: RunDir, digest: str) -> CodeList:
    """Return the list of all files of the run's code as they were frozen. `digest` is the name of that code in the
    store of frozen code.

    If the store has lost it or `digest` is "", list the run's own copy, which ranks may have changed.
    """
    return list_frozen(folder_as_frozen(run, digest))


def folder_as_frozen(run: RunDir, digest: str) -> Path:
    """Return the folder in the store with the code of this digest or, if the store has lost it, the run's own copy."""
    pristine = stored(run, digest)
    return pristine if digest and pristine.is_dir() else run.code


def stage(run: RunDir, attempt: AttemptDir, code: CodeList, watch: Watch = iter) -> None:
    """Freeze the code and put a durable copy of it into the attempt's folder, for `swap`. The files are iterated
    through `watch`, which can report progress.
    """
    freeze(code, run.path.parent / STORE, attempt.code, watch=watch)
    sync_dir(attempt.path)


def swap(run: RunDir, attempt: AttemptDir, frozen: Collection[str]) -> None:
    """Make the staged code the run's code, and keep the old code with the previous attempt.

    Files of the old code that are not in `frozen` are outputs of ranks; they are moved to the new code.
    """
    _move_outputs(run.code, attempt.code, frozen)
    finish_swap(run, attempt)


def finish_swap(run: RunDir, attempt: AttemptDir) -> None:
    """Make the code that is staged in `attempt` the run's code, and move the old code to the previous attempt; do
    nothing if none is staged.

    This is the second half of `swap`, after the outputs of ranks were moved. Called alone, it completes a swap during
    which the submitter was killed: outputs that had not been moved yet stay with the old code.
    """
    if not attempt.code.is_dir():
        return
    before = run.attempt(attempt.number - 1)
    if run.code.is_dir():
        os.rename(run.code, before.code)
    os.rename(attempt.code, run.code)
    for folder in (before.path, attempt.path, run.path):
        sync_dir(folder)


def _move_outputs(old: Path, new: Path, frozen: Collection[str]) -> None:
    """Move the outputs of ranks, the files of the folder `old` that are not in `frozen`, to the folder `new`; a file
    stays where it is if its path is taken there.
    """
    for name in sorted(walk(old, "", lambda name: name in frozen)):
        place = new / name
        if not os.path.lexists(place) and not any(os.path.lexists(up) and not up.is_dir() for up in place.parents):
            make_dir(place.parent)
            os.rename(old / name, place)
