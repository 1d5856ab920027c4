"""Turn requests into runs. A request is a checked spec with its cluster and code. After all checks, each run's folder
is written under a temporary name and renamed; from the rename on the run exists. Its supervisor, the process that
carries it to its end, boots meanwhile, and begins once the folder is there. An override, such as `run.args.lr=0.1`,
sets one option of the spec, as `--set` does.

read spec ─ facts ─ check ─► supervisor boots ─► freeze code, write plan and intent in .tmp-… ─ rename ─► go
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import msgspec

from launcher.copies import news
from launcher.errors import BadInput, LaunchError, NotStarted, Refused, Unreachable, some_exist, with_runs
from launcher.ids import RunId, new_run_id, new_submit_token
from launcher.plan.model import Plan
from launcher.plan.secret_values import read_secret_values
from launcher.run import drafts, registry
from launcher.run.attempts import new_attempt
from launcher.run.code.freezing import freeze
from launcher.run.code.listing import CodeFile
from launcher.run.code.origin import origin_of
from launcher.run.durable import (
    append_line,
    make_dir,
    sync_dir,
    sync_trees,
    write_bytes,
    write_record,
)
from launcher.run.fence import raise_fence
from launcher.run.layout import BATCH_PREFIX, STORE, BatchDir, RunDir
from launcher.run.records import Event
from launcher.spec.cluster_fields import OPTIONS_OF
from launcher.submission.requests import (
    Request,
    Shipped,
    ShippedRun,
    all_or_none,
    plan_of,
    read_request,
    taken,
)
from launcher.supervisor.attempt_end import first_state

Opened = Sequence[tuple[RunId, Path]]  # ids and folders


def open_runs(
    files: Sequence[Path],
    *,
    on: str,
    overrides: tuple[str, ...],
    repeat: int | None = None,
    roots: Mapping[Path, Path] = MappingProxyType({}),
    beside: Mapping[str, Path] = MappingProxyType({}),
) -> list[tuple[RunId, Path]]:
    """Start one run of each file or, unless `repeat` is None, `repeat` runs of each; return their ids and folders.

    Everything is checked before any run is created. Runs that the cluster `on` can take as one job become one. An error
    after some were created names them (`LaunchError.runs`). `roots` has the project's folder for each file that lies
    outside its project; `beside` are files to add to the project's code, by their names in it.
    """
    look = partial(read_request, on=on, overrides=overrides, beside=beside)
    looks = [partial(look, file, root=roots.get(file)) for file in files]
    wishes = all_or_none(looks, together=len(files) * (repeat or 1) > 1)
    if repeat is not None:
        wishes = [replace(wish, as_run=ShippedRun(repeat=index)) for wish in wishes for index in range(repeat)]
    return _open_all(wishes)


def open_named(run_id: RunId, wish: Request, *, checkpoint: Path | None = None) -> Path:
    """Start the run with this id and return its folder; raise Refused if the id is in use.

    The caller ensures that no other process creates the same run at the same time. `checkpoint` is copied into the run,
    to start from (None: it starts from nothing). If this process is killed, the run may exist or not, and its id may
    remain in the list of runs.
    """
    root = registry.runs_root(Path(wish.project.path), create=True)
    if not (root / run_id).exists():
        registry.forget(run_id)

    def only_this(opened: Opened) -> None:
        """Raise Refused if another id was chosen."""
        if opened[0][0] != run_id:
            raise Refused(f"{run_id} is there already")

    with tempfile.TemporaryDirectory() as folder:
        if checkpoint is not None:
            (Path(folder) / checkpoint.name).symlink_to(checkpoint)
        own = ShippedRun(run_id, checkpoints=None if checkpoint is None else Path(folder))
        return _open_all([replace(wish, as_run=own)], only_this)[0][1]


def open_shipped(specs: Sequence[Shipped], *, on: str, choose: Callable[[Opened], None]) -> list[tuple[RunId, Path]]:
    """Start on the cluster `on` the runs that another machine has submitted, each as a spec with its project, and
    return their ids and folders.

    Runs that can share a job of the cluster do. `choose` is called for each job, with the ids and folders of its runs,
    before anything of these is written, so that the caller can record them. Raise BadInput before any run is started if
    a spec is wrong; if only some runs could be started, the error names these.
    """
    asked = [partial(read_request, one.file, on=on, overrides=one.overrides, shipped=one) for one in specs]
    wishes = zip(all_or_none(asked), specs, strict=True)
    return _open_all([replace(wish, as_run=run) for wish, spec in wishes for run in spec.runs], choose)


def _open_all(wishes: Sequence[Request], choose: Callable[[Opened], None] = lambda _: None) -> list[tuple[RunId, Path]]:
    """Start a run for each request, in as few jobs as the cluster allows, and return their ids and folders.

    `choose` is called with the ids and folders of each job's runs before anything of that job is written, so that the
    caller can record them. It may raise an error: then that job and later ones are not started. The error that comes
    after some runs were started names these.
    """
    opened = list[tuple[RunId, Path]]()
    groups = _together(wishes)
    if len(groups) > 1 and any(wish.spec.queue.max_parallel for wish in wishes):
        raise BadInput(
            "queue.max_parallel: these runs cannot be counted together",
            "hint: submit those alone that differ in cluster, project, resources, queue or max_parallel",
        )
    for group in groups:
        try:
            opened += _open_group(group, choose)
        except (LaunchError, OSError) as error:
            if not opened:
                raise
            raise some_exist(error, _as_texts(opened), len(wishes)) from error
    return opened


def _together(wishes: Sequence[Request]) -> list[list[Request]]:
    """Return the requests, in their order, in groups that can be one job: neighbours that agree in cluster, project,
    resources and whatever else all runs of such a job share (`_demands`), as many as the cluster accepts in a job.
    """
    groups: list[list[Request]] = []
    for wish in wishes:
        most = _most_together(wish) if len(wishes) > 1 else 1
        if groups and len(groups[-1]) < most and _demands(groups[-1][-1]) == _demands(wish):
            groups[-1].append(wish)
        else:
            groups.append([wish])
    return groups


def _most_together(wish: Request) -> int:
    """Return the largest number of runs that the cluster of this request accepts as one job: one that starts them in
    order if the spec limits how many run at a time (`queue.max_parallel`) and the cluster has such jobs.
    """
    place = wish.cluster
    return place.most_in_order if wish.spec.queue.max_parallel and _keeps_order(wish) else place.most_together()


def _keeps_order(wish: Request) -> bool:
    """Return whether the cluster has jobs that start several runs one after another, in order."""
    return wish.cluster.most_in_order > 1


def _demands(wish: Request) -> tuple[object, ...]:
    """Return a key: requests with equal keys can become one job. It has the cluster, the project, and all options that
    concern the job, such as resources and queue. If the cluster's jobs start their runs one after another, it has only
    the cluster, the project and `queue.max_parallel`.
    """
    spec = wish.spec
    options = [getattr(spec, kind) for kind in OPTIONS_OF]
    if _keeps_order(wish):
        return wish.on, wish.project.path, spec.queue.max_parallel
    return (
        wish.on,
        wish.project.path,
        spec.resources,
        options,
        spec.plugins,
        spec.recovery.spares,
        spec.secrets,
        spec.queue,
    )


def _open_group(group: Sequence[Request], choose: Callable[[Opened], None]) -> list[tuple[RunId, Path]]:
    """Create the runs of one job by one rename each, then submit the job to the cluster; return ids and folders.

    `choose` is called with the ids and folders before anything is written, so that the caller can record them. If the
    job was certainly not submitted, as when the cluster refuses it, the runs are deleted; after any other error they
    stay, and the error names them.
    """
    root = registry.runs_root(Path(group[0].project.path), create=True)
    drafts.remove_orphans(root)  # of submitters that were killed
    submit_token, opened, first = new_submit_token(), list[tuple[RunId, Path]](), group[0].as_run.first

    def is_taken(name: RunId) -> bool:
        """Return whether the id is used."""
        return taken(root)(name) or (name, root / name) in opened

    for wish in group:
        named = wish.as_run.run_id
        run_id = named if named and not is_taken(named) else new_run_id(wish.spec.name, is_taken)
        opened.append((run_id, root / run_id))
    choose(opened)
    batch = root / f"{BATCH_PREFIX}{submit_token}" if len(group) > 1 else None
    plans = [plan_of(wish, *one, time.time()) for wish, one in zip(group, opened, strict=True)]
    starts = [wish.cluster.prepare(plan) for wish, plan in zip(group, plans, strict=True)]
    try:
        if batch is not None:
            make_dir(batch)
            write_record(BatchDir(batch).runs, [str(path) for _, path in opened])
        _make(root, group, plans, submit_token, batch)
    except BaseException:
        for each in starts:
            each.drop()
        _unmake((), batch)
        raise
    try:
        as_one = batch is not None and not _keeps_order(group[0])
        for each in starts[:1] if as_one else starts:
            each.start(first)
    except NotStarted:
        _unmake(opened, batch)
        raise
    except (LaunchError, OSError) as error:
        raise with_runs(error, _as_texts(opened), _what_next(error, opened)) from error
    return opened


def _as_texts(opened: Sequence[tuple[str, Path]]) -> tuple[tuple[str, str], ...]:
    """Return (id, folder as text) of each run."""
    return tuple((run_id, str(path)) for run_id, path in opened)


def _what_next(error: Exception, opened: Sequence[tuple[str, Path]]) -> str:
    """Return a hint, for the user, to the commands that help after `error`: the runs `opened`, given as (id, folder),
    exist, but it is unknown whether their cluster has the job.
    """
    ref, them = (opened[0][0], "it") if len(opened) == 1 else ("RUN", "them")
    there = f"{ref} exists all the same" if len(opened) == 1 else f"{len(opened)} runs exist all the same"
    if isinstance(error, Unreachable):
        return f"{there}: `launch status` hands {them} over, `launch cancel {ref}` gives {them} up"
    return f"{there}: `launch status {ref}` shows what became of {them}"


def _make(root: Path, group: Sequence[Request], plans: Sequence[Plan], submit_token: str, batch: Path | None) -> None:
    """Create all of these runs in `root`, the folder of runs, or none: write each under a temporary name, then rename
    them.

    `plans` has the plan of each request in `group`. `submit_token` is the unique name by which their job is found on
    the cluster, and `batch` the folder of the job array that they form (None: one run).
    """
    folders = [drafts.new_draft(root) for _ in plans]
    runs = [(plan.run_id, Path(plan.run_dir)) for plan in plans]
    made = list[tuple[RunId, Path]]()
    origin = origin_of(Path(group[0].project.path)) if group[0].shipped is None else None
    try:
        for draft, wish, plan in zip(folders, group, plans, strict=True):
            _write(RunDir(draft), wish, plan, submit_token, batch)
            if origin is not None:
                write_record(RunDir(draft).origin, origin, fsync=False)
        sync_trees(root, folders)
        registry.register_all(runs)
        try:
            for draft, (run_id, path) in zip(folders, runs, strict=True):
                os.rename(draft, path)
                made.append((run_id, path))
            sync_dir(root)
        except BaseException:
            _unmake(made, None)
            for run_id, _ in runs:
                registry.forget(run_id)
            raise
    except BaseException:
        for draft in folders:
            drafts.remove(draft)
        raise


def _unmake(made: Opened, batch: Path | None) -> None:
    """Delete runs that were created but not started, and `batch`, the folder of their job array, if there is one."""
    for run_id, path in made:
        aside = drafts.new_draft(path.parent)
        os.rename(path, aside)
        registry.forget(run_id)
        drafts.remove(aside)
    if batch is not None:
        drafts.remove(batch)


def _write(draft: RunDir, wish: Request, unfrozen: Plan, submit_token: str, batch: Path | None) -> None:
    """Write the first contents of a run's folder, without syncing them to disk: its spec, plan, code, secrets, list of
    who is notified, and the records of its first attempt.

    `unfrozen` is the run's plan, in which the digest of its code is missing, `submit_token` the name by which its job
    is found on the cluster, and `batch` the folder of its job array (None: it is in none).
    """
    make_dir(draft.path)
    place = None if _is_copied_later(wish) else draft.code
    frozen = freeze(wish.code, Path(unfrozen.run_dir).parent / STORE, place, fsync=False, watch=counted).code
    plan = msgspec.structs.replace(unfrozen, code=frozen)
    write_bytes(draft.spec, wish.file.read_bytes(), fsync=False)
    if wish.spec.secrets:
        shipped = wish.shipped
        values = (
            read_secret_values(wish.spec, Path(wish.project.path), os.environ) if shipped is None else shipped.secrets
        )
        write_record(draft.secrets, {one.name: values[one.name] for one in wish.spec.secrets}, fsync=False)
    if wish.notifying is not None:
        write_record(draft.notify, wish.notifying, fsync=False)
    shared = str(batch) if batch is not None else ""
    first, told = wish.as_run.first, f"submitted {wish.file.name} to {wish.on}"
    new_attempt(
        draft,
        wish.on,
        "submit",
        None,
        kind=wish.cluster.kind,
        submit_token=submit_token,
        batch=shared,
        first=first,
        fsync=False,
    )
    raise_fence(draft, first, fsync=False)
    if wish.as_run.events:
        write_bytes(draft.events, wish.as_run.events, fsync=False)
    append_line(draft.events, Event(time.time(), first, "submitted", told), fsync=False)
    if wish.as_run.checkpoints is not None:
        shutil.copytree(wish.as_run.checkpoints, draft.path / wish.spec.checkpoint.dir)
    write_record(draft.state, first_state(plan, first), fsync=False)
    write_record(draft.plan, plan, fsync=False)


def _is_copied_later(wish: Request) -> bool:
    """Return whether the run has more files of code than a submit to the cluster copies itself (`most_files_at_once`).
    The submit then puts them into the store of frozen code only, and the run's supervisor copies them from there to the
    run's folder.
    """
    most = wish.cluster.most_files_at_once
    return most is not None and len(wish.code.files) > most


def counted(files: Sequence[CodeFile]) -> Iterator[CodeFile]:
    """Yield the files; if freezing them takes more than a second, show the user how many have been frozen."""
    return news.counted(files, "freezing the code")
