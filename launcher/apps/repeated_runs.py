"""Make several runs of one spec, or of one earlier run with its code: to be killed for a proof, or measured for
scaling.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from launcher import api
from launcher.errors import BadInput, Refused
from launcher.ids import RunId, new_run_id
from launcher.run import registry
from launcher.run.attempts import newest, read_plan
from launcher.run.code.renewing import as_frozen
from launcher.run.layout import RunDir
from launcher.spec.model import RunOptions
from launcher.states import LOCAL
from launcher.submission.opening import open_named
from launcher.submission.project import ProjectCode
from launcher.submission.requests import Request, check_on_cluster, read_request, taken

T = TypeVar("T")
Tell = Callable[[str], None]
_TASKS = "trainer.tasks."  # modules of ours, which have the options of all settings
_OF_TRAINER = re.compile(r"^\s*(?:from|import)\s+trainer\b", re.MULTILINE)
_SETTINGS = re.compile(r"\badd_options\s*\(")
_LIMITS = ("max-steps", "max_steps", "steps", "total-steps", "total_steps", "num-steps", "num_steps")


@dataclass(frozen=True, slots=True)
class RepeatedJob:
    """The settings that several runs of one job share."""

    file: Path
    on: str
    overrides: tuple[str, ...]
    root: Path | None = None  # the project, where it is not the one that the file lies in
    code: ProjectCode | None = None  # of the project, as it was frozen; None: as it is now

    def request(self, more: Sequence[str] = ()) -> Request:
        """Return a request for one run; raise BadInput with all problems."""
        words = (*self.overrides, *more)
        return check_on_cluster(read_request(self.file, on=self.on, overrides=words, root=self.root, frozen=self.code))

    def start(self, run_id: RunId, more: Sequence[str] = ()) -> api.Run:
        """Start one run with the id `run_id`, with further overrides in `more`, and return it."""
        return api.Run(run_id, open_named(run_id, self.request(more)))


def job_of(ref: str, *, on: str | None, overrides: Sequence[str]) -> RepeatedJob:
    """Return the job of a spec file, or of a run, on the run's own cluster unless `on` names another.

    Raise BadInput or NoSuchRun.
    """
    file = Path(ref)
    if file.is_file() or file.suffix in (".yaml", ".yml"):
        return RepeatedJob(file, on or LOCAL, tuple(overrides))
    target = as_it_ran(api.run(ref))
    return replace(target, on=on or target.on, overrides=(*target.overrides, *overrides))


def as_it_ran(run: api.Run) -> RepeatedJob:
    """Return a job with the spec and the code of the run's newest attempt."""
    folder = RunDir(run.path)
    attempt = newest(folder)
    plan = read_plan(folder, attempt.number if attempt is not None else 1)
    code = as_frozen(folder, plan.code.digest)
    if not code.files:
        raise Refused(f"{run.id}: its code is not here", "hint: name the spec instead")
    return RepeatedJob(
        folder.spec, plan.cluster, plan.overrides, Path(plan.project), ProjectCode(code, plan.own_folders, ())
    )  # fmt: skip


def name_of(wish: Request) -> RunId:
    """Return a new name with which the ids of all runs of the job begin."""
    return new_run_id(wish.spec.name, taken(registry.runs_root(Path(wish.project.path))))


def to_its_end(run: api.Run, act: Callable[[], T], tell: Tell) -> T:
    """Return the result of `act`, which waits for the run; cancel the run if this is interrupted."""
    try:
        return act()
    except BaseException:
        tell(f"{run.id} is cancelled")
        run.cancel()
        raise


def steps_override(run: RunOptions, steps: int, root: Path | None = None) -> str:
    """Return the override that sets the number of steps, or raise BadInput if no option for it is known.

    `root` is the folder of the code. A script with the trainer's options gets --max-steps, even if its arguments have
    none.
    """
    name = next((one for one in _LIMITS if gives(run, one)), None)
    if name is None and (is_ours(run) or (root is not None and _takes_settings(run, root))):
        name = _LIMITS[0]
    if name is None:
        hint = "hint: --set run.args.NAME=N sets the option of your script that does"
        raise BadInput(f"--steps: its args have none of {', '.join(f'--{one}' for one in _LIMITS)}", hint)
    return f"run.args.{name}={steps}"


def _takes_settings(run: RunOptions, root: Path) -> bool:
    """Return whether the script has the trainer's options, judging by its source."""
    entry = run.script if run.module is None else f"{run.module.replace('.', '/')}.py"
    file = root / run.workdir / (entry or "")
    if not file.is_file():
        return False
    text = file.read_text(errors="replace")
    return bool(_OF_TRAINER.search(text) and _SETTINGS.search(text))


def is_ours(run: RunOptions) -> bool:
    """Return whether the program is one of the trainer's tasks."""
    return (run.module or "").startswith(_TASKS)


def gives(run: RunOptions, name: str) -> bool:
    """Return whether the program's arguments contain this option."""
    return any(word.partition("=")[0] == f"--{name}" for word in run.args)
