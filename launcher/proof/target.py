"""What is to be proven: a spec, or a run that there is, with its code; and what is set for all runs of a proof."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher import api
from launcher.clusters.protocol import Reaches
from launcher.errors import BadInput, Refused
from launcher.ids import RunId
from launcher.project import ProjectCode
from launcher.rundir.attempts import newest, read_plan
from launcher.rundir.code.renewing import as_frozen
from launcher.rundir.layout import RunDir
from launcher.spec.model import RunOptions
from launcher.submission.opening import open_named
from launcher.submission.requests import Request, able, looked_at_first
from launcher.words import LOCAL

_TASKS = "trainer.tasks."  # modules of ours, which have these options
_LIMITS = ("max-steps", "max_steps", "steps", "total-steps", "total_steps", "num-steps", "num_steps")
_LOGS = "log-every"
_KEPT = 1000  # checkpoints: the first that differs is looked for among all of them
# Killed again and again on purpose, and nobody is to hear of it.
_ALWAYS = (
    "sweep=null",
    "notify.to=[]",
    f"checkpoint.keep={_KEPT}",
    "recovery.no_progress=off",
    *(f"recovery.{cause}={{restarts: unlimited, backoff: 0s}}" for cause in ("killed", "communication", "node_lost")),
)


@dataclass(frozen=True, slots=True)
class ProvenJob:
    """What all runs of a proof have in common."""

    file: Path
    on: str
    overrides: tuple[str, ...]
    root: Path | None = None  # the project, where it is not the one that the file lies in
    code: ProjectCode | None = None  # of the project, as it was frozen; None: as it is now

    def request(self, more: Sequence[str] = ()) -> Request:
        """Raises BadInput with all problems."""
        words = (*self.overrides, *more)
        return able(looked_at_first(self.file, on=self.on, overrides=words, root=self.root, frozen=self.code))

    def start(self, run_id: RunId, more: Sequence[str] = ()) -> api.Run:
        return api.Run(run_id, open_named(run_id, self.request(more)))


def target_of(ref: str, *, on: str | None, overrides: Sequence[str]) -> ProvenJob:
    """`ref`: a spec's file, or a run; its cluster is taken where none is named. Raises BadInput, and NoSuchRun."""
    file = Path(ref)
    if file.is_file() or file.suffix in (".yaml", ".yml"):
        return ProvenJob(file, on or LOCAL, tuple(overrides))
    target = as_it_ran(api.run(ref))
    return replace(target, on=on or target.on, overrides=(*target.overrides, *overrides))


def as_it_ran(run: api.Run) -> ProvenJob:
    """With the spec and the code of its newest attempt."""
    folder = RunDir(run.path)
    attempt = newest(folder)
    plan = read_plan(folder, attempt.number if attempt is not None else 1)
    code = as_frozen(folder, plan.code.digest)
    if not code.files:
        raise Refused(f"{run.id}: its code is not here", "hint: name the spec instead")
    return ProvenJob(
        folder.spec, plan.cluster, plan.overrides, Path(plan.project), ProjectCode(code, plan.own_folders, ())
    )  # fmt: skip


def for_a_proof(target: ProvenJob, *, steps: int | None, kills: int) -> ProvenJob:
    """With what is set for all of its runs alike, before what the user sets: that wins. Raises BadInput."""
    wish = target.request(_ALWAYS)
    if not isinstance(wish.cluster, Reaches):
        raise Refused(f"--on {target.on}: no rank can be killed there", "hint: prove it on another cluster")
    words = [*_ALWAYS, *_logged(wish.spec.run)]
    if steps is not None:
        words += [steps_override(wish.spec.run, steps), f"checkpoint.every={max(1, steps // (2 * kills + 2))} steps"]
    return replace(target, overrides=(*words, *target.overrides))


def steps_override(run: RunOptions, steps: int) -> str:
    """What makes the training so long. Raises BadInput where nobody knows."""
    name = _LIMITS[0] if _is_ours(run) else next((one for one in _LIMITS if _gives(run, one)), None)
    if name is None:
        hint = "hint: --set run.args.NAME=N sets the option of your script that does"
        raise BadInput(f"--steps: its args have none of {', '.join(f'--{one}' for one in _LIMITS)}", hint)
    return f"run.args.{name}={steps}"


def _logged(run: RunOptions) -> list[str]:
    """A line of metrics for each step, where that can be had."""
    return [f"run.args.{_LOGS}=1"] if _is_ours(run) or _gives(run, _LOGS) else []


def _is_ours(run: RunOptions) -> bool:
    return (run.module or "").startswith(_TASKS)


def _gives(run: RunOptions, name: str) -> bool:
    return any(word.partition("=")[0] == f"--{name}" for word in run.args)
