"""Find a run's checkpoints in its object store (`checkpoint.copy_to`), and download them if no disk of the run has
them. A Held is the entry of a disk's list about one checkpoint: its identity, and the names of its files that are there
and that are missing.
"""

import contextlib
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from launcher.copies import news
from launcher.copies.files import ReplicaFiles
from launcher.copies.protocol import Save
from launcher.errors import Exit, LaunchError, Unreachable
from launcher.plan.model import Plan
from launcher.plan.secret_values import credentials_in, without_secrets
from launcher.run.attempts import last_attempt, read_plan
from launcher.run.durable import read_record
from launcher.run.layout import RunDir
from trainer.checkpoint_files import partial
from trainer.checkpoint_files.layout import folder_name
from trainer.checkpoint_files.object_store import ObjectStore, StoreFailed
from trainer.checkpoint_files.partial import Held
from trainer.errors import CheckpointDamaged

_PYTHON_S = 60.0  # for an interpreter to say where its packages are
_OF_PROGRAMS = ("LD_", "PATH", "PYTHON")  # how variables begin that change what a process of ours is


def variables_for_store(plan: Plan, secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the spec's environment and secrets, in which the object store's package finds its credentials, without
    variables such as PATH that change how programs run.
    """
    given = {**plan.spec.env, **secrets}
    return {name: value for name, value in given.items() if not name.startswith(_OF_PROGRAMS)}


def open_store(plan: Plan) -> ObjectStore:
    """Return the object store that the plan names, restricted to the folder of this run; raise StoreFailed if it cannot
    be opened.
    """
    hidden = credentials_in(os.environ, plan.secrets)
    address = f"{plan.spec.checkpoint.copy_to}/{plan.run_id}"
    return ObjectStore(address, lambda text: without_secrets(text, hidden))


def borrow_packages(python: str) -> None:
    """Make packages of the interpreter `python` importable in this process if fsspec is missing here; this process's
    own come first.
    """
    if find_spec("fsspec") is not None:
        return
    words = [
        python,
        "-c",
        "import sysconfig; print(sysconfig.get_path('purelib'), sysconfig.get_path('platlib'), sep='\\n')",
    ]
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # then the package is missing, which is reported
        found = subprocess.run(words, capture_output=True, text=True, check=True, timeout=_PYTHON_S)
        sys.path.extend(dict.fromkeys(found.stdout.splitlines()))
        importlib.invalidate_caches()


def has_store(run: RunDir) -> bool:
    """Return whether the newest attempt copies checkpoints to an object store."""
    return read_plan(run, last_attempt(run).number).spec.checkpoint.copy_to is not None


def whole_here(run: RunDir) -> list[int]:
    """Return the steps whose checkpoints are complete in the run's folder, oldest first; only names and sizes are
    compared.
    """
    return [held.step for held in partial.whole_over([partial.inventory(_folder(run))])]


def fetch_stored(run: RunDir, checkpoint: str) -> list[str]:
    """Download from the object store the checkpoint that is named by `checkpoint`: a step, or `newest`.

    Nothing is downloaded, and the result is an empty list, if the store lacks it or this disk has it; for `newest`, if
    this disk has the same or a newer step. Otherwise return a list with one line about it. If the newest is damaged,
    the one before it is tried, as long as it is newer than those on this disk. Raise Unreachable if the store does not
    answer, and LaunchError with exit code 6 if every one that was tried is damaged.
    """
    here, damaged = whole_here(run), list[str]()
    try:
        with _store(run) as store:
            for held in reversed(store.saves()):
                if not _is_wanted(held, checkpoint, here):
                    continue
                try:
                    _bring(store, held, _folder(run))
                except CheckpointDamaged as error:
                    damaged.append(f"{store.url}: {error}")
                    news.say(f"{damaged[-1]}; the one before it is taken")
                    continue
                return [f"checkpoint of step {held.step} from {store.url}: {_folder(run) / folder_name(held.step)}"]
    except StoreFailed as error:
        raise Unreachable(*str(error).splitlines()) from error
    if damaged:
        trouble = LaunchError(*damaged, "hint: the store gives other bytes than were written")
        trouble.exit_code = Exit.DAMAGED
        raise trouble
    return []


def _is_wanted(held: Held, checkpoint: str, here: list[int]) -> bool:
    """Return whether to download the stored checkpoint `held`. `checkpoint` is "newest", for any that is newer than all
    in `here`, or the number of a step, for the one of that step unless it is in `here`.

    `here` has the steps of this machine's checkpoints, in ascending order.
    """
    if checkpoint == "newest":
        return not here or held.step > here[-1]
    return held.step == int(checkpoint) and held.step not in here


def _bring(store: ObjectStore, held: Held, folder: Path) -> None:
    """Download one checkpoint into the folder of checkpoints `folder`. If this has another one under the same name,
    with another manifest, rename that first, so that it is not loaded. Print both for the user.

    Raise CheckpointDamaged if the store lacks a file of the checkpoint or has another content, and OSError if the disk
    or the network fails.
    """
    save = Save.of(held)
    if ReplicaFiles(folder).make_room(save):
        news.say(f"another {save} that was here is set aside")
    news.say(f"{store.url}: {save}")
    store.bring(held, folder)


def _folder(run: RunDir) -> Path:
    """Return the run's checkpoint directory."""
    return run.path / read_plan(run, last_attempt(run).number).spec.checkpoint.dir


@contextlib.contextmanager
def _store(run: RunDir) -> Iterator[ObjectStore]:
    """Open the object store for the body, with the spec's environment variables and secrets set in this process."""
    plan, before = read_plan(run, last_attempt(run).number), dict(os.environ)
    given = variables_for_store(plan, read_record(run.secrets, dict[str, str]) or {})
    os.environ.update(given)
    try:
        yield open_store(plan)
    finally:
        for name in given:
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)
