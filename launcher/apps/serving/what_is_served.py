"""Find out which model of a run to serve, with which code and which Python."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.api import Run
from launcher.errors import BadInput, Refused
from launcher.node.environment import with_own_folders
from launcher.run.attempts import newest, read_plan
from launcher.run.layout import RunDir
from launcher.status.checkpoints import checkpoint_folders
from trainer.checkpoint_files.catalog import Entry, entries
from trainer.checkpoint_files.choice import candidates


@dataclass(frozen=True, slots=True)
class Served:
    """A run's model as it is served. `app` is the service to load (`module`, `module:name` or `/file.py:name`), `args`
    are the training's, which describe the model, `checkpoints` is a folder or a single checkpoint, `best` prefers the
    best to the newest, and `spare` is a folder with a copy of some, used if there are no others.
    """

    run: str
    app: str  # the service: `module`, `module:name` or `/file.py:name`
    args: tuple[str, ...]  # of the training; they describe the model
    python: str  # the interpreter of its workers
    cwd: str  # the working folder of its workers, in the run's code
    env: Mapping[str, str]  # environment variables of its workers
    checkpoints: Path  # a folder of checkpoints, or a single one
    best: bool
    token: str = ""  # that requests need, if it is known
    spare: Path | None = None  # a folder with copies, used if `checkpoints` has none

    def choices(self) -> list[Entry]:
        """Return the checkpoints that can be loaded, the preferred one first (the best or the newest, as `best` says),
        then those of `spare`; an empty list if the trainer has saved none.
        """
        others = [] if self.spare is None else candidates(self.spare, best=self.best)
        return [*candidates(self.checkpoints, best=self.best), *others]


def served(run: Run, *, app: str | None, best: bool, checkpoint: Path | None) -> Served:
    """Return how to serve a run's model.

    `app` is the service that the user names (None: the run's own program). `checkpoint` is the only checkpoint to
    serve; if it is None, the newest of the run is served, or with `best` the best. Raise BadInput if no service is
    known, and Refused if the code or a checkpoint is missing.
    """
    folder = RunDir(run.path)
    attempt = newest(folder)
    plan = read_plan(folder, attempt.number if attempt is not None else 1)
    found = Served(
        run=run.id,
        app=_app(app, plan.entry.target if plan.entry.kind == "module" else None),
        args=plan.entry.args,
        python=plan.entry.python,
        cwd=str(folder.path / plan.workdir),
        env=with_own_folders({**os.environ, **plan.spec.env, "PYTHONDONTWRITEBYTECODE": "1"}, plan),
        checkpoints=_kept_in(folder) if checkpoint is None else checkpoint.absolute(),
        best=best,
    )
    if not Path(found.cwd).is_dir():
        raise Refused(f"{run.id}: its code is not here: {found.cwd}", "hint: launch serve where it was submitted")
    if best and not found.choices():
        hint = "hint: the trainer keeps the best one with `keep_best`; without --best the newest is served"
        raise Refused(f"{run.id} has kept no checkpoint apart as the best", hint)
    if not found.checkpoints.exists():
        hint = f"hint: launch checkpoints {run.id}; of a run on other machines: launch fetch {run.id}"
        raise Refused(f"{run.id} has no checkpoints here", hint)
    return found


def _kept_in(run: RunDir) -> Path:
    """Return the first directory with checkpoints of those in which the run may save: its checkpoint directory, or the
    one of that name in the script's working directory. Return the checkpoint directory if neither has any.
    """
    folders = checkpoint_folders(run)
    return next((folder for folder in folders if entries(folder)), folders[0])


def _app(named: str | None, module: str | None) -> str:
    """Return the service to load: a Python file of this machine as an absolute path, or a module of the run's own code.

    `named` is the user's `--app`: a path that ends in .py, with `:NAME` after it for a name in the file, or else a
    module. If it is None, `module` is returned, the module that the run's program is (None if it is none). Raise
    BadInput if both are None, or the named file does not exist.
    """
    if named is None:
        if module is None:
            hint = "hint: launch serve RUN --app serving.py, which has load(checkpoint) and predict(model, inputs)"
            raise BadInput("expected --app: the run's own program is no module that says how it is asked", hint)
        return module
    place, colon, name = named.partition(":")
    if not place.endswith(".py"):
        return named
    if not Path(place).is_file():
        raise BadInput(f"--app: expected a Python file, found none at {place}")
    return f"{Path(place).absolute()}{colon}{name}"
