"""Start a run that predicts with another run's frozen code, arguments and one of its checkpoints. An override, such as
`run.args.lr=0.1`, sets one option of the spec, as `--set` does.
"""

import json
import posixpath
import shutil
from pathlib import Path

from launcher.errors import BadInput, Refused
from launcher.ids import RunId, new_run_id
from launcher.run import registry
from launcher.run.attempts import newest, read_plan
from launcher.run.code.freezing import stored
from launcher.run.code.listing import list_frozen
from launcher.run.layout import RunDir
from launcher.spec.model import JobSpec
from launcher.status.checkpoints import checkpoint_folders, kept
from launcher.submission.opening import open_named
from launcher.submission.project import ProjectCode
from launcher.submission.requests import Request, check_on_cluster, read_request, taken
from trainer.checkpoint_files.catalog import Entry, entries
from trainer.checkpoint_files.choice import candidates
from trainer.checkpoint_files.layout import BEST

_HINT = "hint: a module or a script with --predict and --checkpoint, as trainer.tasks.resnet (launch help predictions)"
_DATA = "data"  # the option of a module that says where its data is
_DATA_OF = {"trainer.tasks.resnet": "root", "trainer.tasks.gpt": "text"}  # where it is another one


def open_prediction(
    run: RunDir, output: Path, *, checkpoint: Path | None, data: Path | None, on: str, overrides: tuple[str, ...]
) -> tuple[RunId, Path]:
    """Start a run that writes predictions to `output`, and return (its id, its folder).

    The new run goes to the cluster `on`. `checkpoint` is by default the best one, or else the newest; `data` by default
    what the run validates on. Raise BadInput if the run's program does not take `--predict`, and Refused if its frozen
    code was deleted, if it has no checkpoint on this machine, or if `on` cannot read this disk and `output` exists.
    """
    attempt = newest(run)
    plan = read_plan(run, attempt.number if attempt is not None else 1)
    if plan.entry.kind == "command":
        raise BadInput(f"{run.id}: a command is not known to predict", _HINT)
    chosen = checkpoint.absolute() if checkpoint is not None else _chosen(run)
    frozen = _code(run, plan.code.digest)
    if plan.entry.kind == "script" and not _mentions_predict(frozen / plan.spec.run.workdir / plan.entry.target):
        raise BadInput(f"{run.id}: {plan.entry.target} has no --predict", _HINT)
    code = ProjectCode(list_frozen(frozen), plan.own_folders, ())

    def look(*more: str) -> Request:
        """Return the request with these further overrides."""
        words = (
            *plan.overrides,
            f"name={plan.name}-predict",
            *more,
            *([f"run.args.{_DATA_OF.get(plan.entry.target, _DATA)}={data.absolute()}"] if data is not None else []),
            *overrides,
        )
        return read_request(run.spec, on=on, overrides=words, root=Path(plan.project), frozen=code)

    wish, sent = look(f"run.args.predict={output.absolute()}", f"run.args.checkpoint={chosen}"), None
    if wish.cluster.remote:
        if output.exists():
            raise Refused(f"{output}: is there already", "hint: give another name, or remove it")
        sent = next(iter(candidates(chosen)), None)
        if sent is None:
            raise Refused(f"{chosen}: expected a checkpoint to send along, found none")
        wish = look(*_overrides_for_sent(wish.spec, output.name, sent))
    wish = check_on_cluster(wish)
    run_id = new_run_id(wish.spec.name, taken(registry.runs_root(Path(plan.project), create=True)))
    return run_id, open_named(run_id, wish, checkpoint=None if sent is None else sent.path)


def _mentions_predict(script: Path) -> bool:
    """Return whether the script's text contains the word `predict`; raise Refused if it cannot be read.

    A script that does not know the option `--predict`, and ignores unknown options, would train instead.
    """
    try:
        return "predict" in script.read_text(errors="replace")
    except OSError as error:
        raise Refused(f"{script}: {error.strerror}") from error


def copy_predictions(run: RunDir, output: Path) -> None:
    """Copy the predictions from the run's outputs, which were fetched from another machine, to the file `output`. Among
    the outputs their file has the same name as `output`; the file that describes them, NAME.about.json, is copied to
    the same folder.
    """
    for name in _written(output.name):
        for file in sorted(run.outputs.rglob(name)):
            shutil.copyfile(file, output.with_name(name))


def _overrides_for_sent(spec: JobSpec, name: str, sent: Entry) -> tuple[str, ...]:
    """Return the overrides of a run on a cluster that cannot read this disk.

    They name the path of the checkpoint `sent`, which is copied to the cluster with the run, and have the predictions
    written to `name` in the workdir and fetched.
    """
    begin = posixpath.normpath(posixpath.join("code", spec.run.workdir))
    outputs = [posixpath.normpath(posixpath.join(spec.run.workdir, one)) for one in _written(name)]
    return (
        f"run.args.predict={name}",
        f"run.args.checkpoint={posixpath.relpath(f'{spec.checkpoint.dir}/{sent.path.name}', begin)}",
        f"run.outputs={json.dumps(outputs)}",
    )


def _written(name: str) -> tuple[str, str]:
    """Return the names of the two files that a prediction to the file `name` writes: `name` itself, with the
    predictions, and NAME.about.json beside it, which describes them.
    """
    return name, f"{name}.about.json"


def _chosen(run: RunDir) -> Path:
    """Return the folder of the run's best checkpoint; if none is marked as best, the folder of all its checkpoints,
    from which the newest is to be loaded. Raise Refused if the run has no checkpoint on this machine.
    """
    folder = next((folder for folder in checkpoint_folders(run) if entries(folder)), None)
    if folder is None:
        hint = f"hint: launch checkpoints {run.id}; of a run on other machines: launch fetch {run.id}"
        raise Refused(f"{run.id} has no checkpoints here", hint)
    return folder / BEST if kept(run).best else folder


def _code(run: RunDir, digest: str) -> Path:
    """Return the folder of the run's frozen code, which is stored by its `digest`; raise Refused if it was deleted."""
    folder = stored(run, digest)
    if not folder.is_dir():
        raise Refused(f"{run.id}: its code is not here any more: {folder}")
    return folder
