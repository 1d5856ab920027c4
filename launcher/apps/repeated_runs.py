"""Make several runs of one spec, or of an earlier run with its code: to be killed for a proof, or measured for scaling.
An override, such as `run.args.lr=0.1`, sets one option of the spec, as `--set` does.
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
    """A job of which several runs are made: a spec file with overrides, and its cluster. `root` is the project if the
    file is not in it, and `code` the frozen code (None: the project's present code).
    """

    file: Path
    on: str  # the cluster
    overrides: tuple[str, ...]
    root: Path | None = None  # the project, if the file is not in it
    code: ProjectCode | None = None  # as it was frozen; None: the project's present code

    def request(self, more: Sequence[str] = ()) -> Request:
        """Return the checked request for one run, with the job's overrides and then those in `more`; raise BadInput
        with all problems.
        """
        words = (*self.overrides, *more)
        return check_on_cluster(read_request(self.file, on=self.on, overrides=words, root=self.root, frozen=self.code))

    def start(self, run_id: RunId, more: Sequence[str] = ()) -> api.Run:
        """Start a run with the id `run_id`, with the job's overrides and then those in `more`, and return it."""
        return api.Run(run_id, open_named(run_id, self.request(more)))


def job_of(ref: str, *, on: str | None, overrides: Sequence[str]) -> RepeatedJob:
    """Return the job of a spec file or a run called `ref`.

    Its cluster is `on` or, if that is None, the run's own, or `local` for a spec file. Raise NoSuchRun if there is no
    such run, and Refused if its code was deleted.
    """
    file = Path(ref)
    if file.is_file() or file.suffix in (".yaml", ".yml"):
        return RepeatedJob(file, on or LOCAL, tuple(overrides))
    target = as_it_ran(api.run(ref))
    return replace(target, on=on or target.on, overrides=(*target.overrides, *overrides))


def as_it_ran(run: api.Run) -> RepeatedJob:
    """Return the job with the spec and the code of the run's newest attempt; raise Refused if that code was deleted."""
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
    """Return an unused run id, made of the name in the request's spec and random characters, such as `resnet-7k3f`.

    The caller uses it as the id of one run, or as the beginning of the ids of several that belong together.
    """
    return new_run_id(wish.spec.name, taken(registry.runs_root(Path(wish.project.path))))


def to_its_end(run: api.Run, act: Callable[[], T], tell: Tell) -> T:
    """Return the result of `act`, a function that waits for the run.

    If `act` raises or is interrupted, call `tell` with a line that says that the run is cancelled, cancel the run, and
    raise the exception again.
    """
    try:
        return act()
    except BaseException:
        tell(f"{run.id} is cancelled")
        run.cancel()
        raise


def steps_override(run: RunOptions, steps: int, root: Path | None = None) -> str:
    """Return the override that limits the training to `steps` steps; raise BadInput if no option for that is known.

    `root` is the folder of the code, in which a script is searched for the trainer's options; None: it is not searched.
    """
    name = next((one for one in _LIMITS if gives(run, one)), None)
    if name is None and (is_ours(run) or (root is not None and _takes_settings(run, root))):
        name = _LIMITS[0]
    if name is None:
        hint = "hint: --set run.args.NAME=N sets the option of your script that does"
        raise BadInput(f"--steps: its args have none of {', '.join(f'--{one}' for one in _LIMITS)}", hint)
    return f"run.args.{name}={steps}"


def _takes_settings(run: RunOptions, root: Path) -> bool:
    """Return whether the script, in the project `root`, has the trainer's options, such as `--max-steps`: whether its
    text imports `trainer` and calls `add_options`. A missing file has none.
    """
    entry = run.script if run.module is None else f"{run.module.replace('.', '/')}.py"
    file = root / run.workdir / (entry or "")
    if not file.is_file():
        return False
    text = file.read_text(errors="replace")
    return bool(_OF_TRAINER.search(text) and _SETTINGS.search(text))


def is_ours(run: RunOptions) -> bool:
    """Return whether the program is one of the trainer's own tasks."""
    return (run.module or "").startswith(_TASKS)


def gives(run: RunOptions, name: str) -> bool:
    """Return whether the program's arguments contain the option `--NAME`."""
    return any(word.partition("=")[0] == f"--{name}" for word in run.args)
