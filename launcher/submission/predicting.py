"""A run of a run: its code as it was frozen, with its own arguments, predicts by a checkpoint of it."""

from pathlib import Path

from launcher.errors import BadInput, Refused
from launcher.ids import RunId, new_run_id
from launcher.project import ProjectCode
from launcher.rundir import registry
from launcher.rundir.attempts import newest, read_plan
from launcher.rundir.code.freezing import stored
from launcher.rundir.code.listing import list_frozen
from launcher.rundir.layout import RunDir
from launcher.status.checkpoints import checkpoint_folders, kept
from launcher.submission.opening import open_named
from launcher.submission.requests import able, looked_at_first, taken
from trainer.checkpoint_files.catalog import entries
from trainer.checkpoint_files.layout import BEST

_DATA = "data"  # the option of a module that says where its data is
_DATA_OF = {"trainer.tasks.resnet": "root", "trainer.tasks.gpt": "text"}  # where it is another one


def open_prediction(
    run: RunDir, output: Path, *, checkpoint: Path | None, data: Path | None, on: str, overrides: tuple[str, ...]
) -> tuple[RunId, Path]:
    """Start it; gives its id and folder. Without a checkpoint it is the best one, where one was kept, else the newest;
    without data that of its own validation.

    Raises BadInput where the run is of no module, such as the shipped tasks are, which are told what to do by
    `--predict` and `--checkpoint`; Refused where it has no checkpoint here.
    """
    attempt = newest(run)
    plan = read_plan(run, attempt.number if attempt is not None else 1)
    if plan.entry.kind != "module":
        hint = "hint: `run.module` of a task that has --predict and --checkpoint, as trainer.tasks.resnet"
        raise BadInput(f"{run.id}: a {plan.entry.kind} is not known to predict", hint)
    words = (
        *plan.overrides,
        f"name={plan.name}-predict",
        f"run.args.predict={output.absolute()}",
        f"run.args.checkpoint={(checkpoint.absolute() if checkpoint is not None else _chosen(run))}",
        *([f"run.args.{_DATA_OF.get(plan.entry.target, _DATA)}={data.absolute()}"] if data is not None else []),
        *overrides,
    )
    code = ProjectCode(list_frozen(_code(run, plan.code.digest)), plan.own_folders, ())
    wish = able(looked_at_first(run.spec, on=on, overrides=words, root=Path(plan.project), frozen=code))
    root = registry.runs_root(Path(plan.project), create=True)
    run_id = new_run_id(wish.spec.name, taken(root))
    return run_id, open_named(run_id, wish)


def _chosen(run: RunDir) -> Path:
    """FOLDER/best, or the folder, of which the newest whole one is taken."""
    folder = next((folder for folder in checkpoint_folders(run) if entries(folder)), None)
    if folder is None:
        hint = f"hint: launch checkpoints {run.id}; of a run on other machines: launch fetch {run.id}"
        raise Refused(f"{run.id} has no checkpoints here", hint)
    return folder / BEST if kept(run).best else folder


def _code(run: RunDir, digest: str) -> Path:
    folder = stored(run, digest)
    if not folder.is_dir():
        raise Refused(f"{run.id}: its code is not here any more: {folder}")
    return folder
