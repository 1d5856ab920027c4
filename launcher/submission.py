"""From a spec file to a run that exists: every check first, then one rename that makes it real.

read spec ─ facts ─ check ─► keeper boots ─► freeze code, write plan and intent in .tmp-… ─ rename ─► go
                                                                                       the run exists
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from launcher.clusters.clusters_file import ClusterEntry, as_reached_now, entry, plugin_sections, with_defaults
from launcher.clusters.keeping.attempt_end import first_state, write_end
from launcher.clusters.kinds import of_kind
from launcher.clusters.protocol import ChecksFirst, Cluster, KeepsFilesElsewhere, SubmitsTogether
from launcher.errors import BadInput, Exit, LaunchError, NotStarted, Unreachable, some_exist, with_runs
from launcher.plan.build import build, check, check_code, secret_problems, with_code
from launcher.plan.facts import Misfit, Project, RunIdentity
from launcher.plan.model import FrozenCode, Plan
from launcher.rundir import drafts, registry
from launcher.rundir.attempts import new_attempt, read_plan
from launcher.rundir.code_list import CodeList, list_code, list_frozen
from launcher.rundir.durable import append_line, make_dir, sync_dir, sync_trees, write_bytes, write_record
from launcher.rundir.fence import raise_fence
from launcher.rundir.ids import new_run_id, new_ticket
from launcher.rundir.imports import third_party_imports
from launcher.rundir.layout import BatchDir, RunDir
from launcher.rundir.records import AttemptEnd, Event
from launcher.rundir.snapshot import freeze
from launcher.secret_values import read_secret_values, unset_secrets
from launcher.spec import position, read_spec
from launcher.spec.cluster_fields import OPTIONS_OF
from launcher.spec.fields import JOB, with_plugins
from launcher.spec.model import JobSpec
from launcher.words import Cause, State

Defaults = tuple[tuple[str, str], ...]  # options of the spec and their YAML text
Opened = Sequence[tuple[str, Path]]  # ids and folders


@dataclass(frozen=True, slots=True)
class ShippedRun:
    """A run as another machine knows it."""

    run_id: str = ""  # which it gets here too, where that is free
    repeat: int | None = None  # which of several runs of one spec
    first: int = 1  # the number of its first attempt here
    events: bytes = b""  # what happened to it before, elsewhere
    checkpoints: Path | None = None  # a folder with what it goes on from


@dataclass(frozen=True, slots=True)
class Shipped:
    """A spec that came from another machine with its project: all of that is code, and the secrets came along."""

    file: Path
    overrides: tuple[str, ...]
    root: Path
    secrets: Mapping[str, str]
    defaults: Defaults  # of the cluster as it is known there: they win over those that it has here
    runs: tuple[ShippedRun, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """A spec that was read and found able to run."""

    file: Path
    spec: JobSpec
    overrides: tuple[str, ...]
    on: str
    cluster: Cluster
    project: Project
    code: CodeList
    python: str
    as_run: ShippedRun = ShippedRun()
    shipped: Shipped | None = None
    defaults: Defaults = ()


def validate(file: Path, overrides: tuple[str, ...]) -> None:
    """Everything that can be said of a spec without knowing where it will run. Raises BadInput with all problems."""
    spec = _read_spec(file, overrides)
    root = project_of(file)
    python = interpreter(spec, root, os.environ)
    project = _look_at(spec, root, list_code(root, spec.code), python, None)
    _refuse(file, check_code(spec, project))


def request(file: Path, *, on: str, overrides: tuple[str, ...], shipped: Shipped | None = None) -> Request:
    """Read and check everything; starts and writes nothing. Raises BadInput with all problems."""
    return _able(_looked_at_first(file, on=on, overrides=overrides, shipped=shipped))


def _looked_at_first(file: Path, *, on: str, overrides: tuple[str, ...], shipped: Shipped | None = None) -> Request:
    """What can be found without asking the cluster."""
    place = entry(on)
    defaults = place.defaults if shipped is None else (*place.defaults, *shipped.defaults)
    spec = _read_spec(file, overrides, defaults)
    where = of_kind(place.kind)
    root = project_of(file) if shipped is None else shipped.root
    code = list_code(root, spec.code) if shipped is None else list_frozen(root)
    python = interpreter(spec, root, os.environ)
    project = _look_at(spec, root, code, python, where)
    wish = Request(file, spec, overrides, on, where, project, code, python, shipped=shipped, defaults=defaults)
    if isinstance(where, ChecksFirst):
        where.check_first(code)
        _refuse(file, [*check_code(spec, project), *secret_problems(_unset(wish))])
    return wish


def _able(wish: Request) -> Request:
    """The request, if the cluster offers what it needs. Raises BadInput with all problems."""
    machine = wish.cluster.machine(wish.spec)
    problems = check(wish.spec, machine, wish.project, _unset(wish))
    if not machine.own_python and not os.access(wish.python, os.X_OK):
        problems.append(Misfit("run.python", f"no interpreter at {wish.python}"))
    _refuse(wish.file, problems)
    return wish


def _unset(wish: Request) -> Collection[str]:
    """Secrets that have no value here; those of a project that was shipped came along."""
    return unset_secrets(wish.spec, Path(wish.project.path), os.environ) if wish.shipped is None else ()


def _read_spec(file: Path, overrides: Sequence[str], defaults: Defaults = ()) -> JobSpec:
    """With the cluster's defaults. Kinds of other packages are only looked for where a spec cannot be read without."""
    try:
        return read_spec(file, with_defaults(defaults, file, overrides))
    except BadInput:
        job = with_plugins(plugin_sections())
        if job == JOB:
            raise
        return read_spec(file, with_defaults(defaults, file, overrides, job), job)


def _refuse(file: Path, problems: Collection[Misfit]) -> None:
    lines = []
    for problem in problems:
        lines.append(f"{_at(file, problem.key)}: {problem.key}: {problem.reason}")
        lines += [f"hint: {problem.hint}"] if problem.hint else []
    if lines:
        raise BadInput(*lines)


def plan_of(wish: Request, run_id: str, run_dir: Path, submitted_at: float) -> Plan:
    """Everything but what the frozen code is called: that is known once it is frozen (`with_code`)."""
    file = str(wish.file.resolve())
    place = RunIdentity(
        run_id, str(run_dir), wish.on, wish.cluster.kind, file, submitted_at, wish.defaults, wish.as_run.repeat
    )
    code = FrozenCode("", len(wish.code.files), wish.code.bytes)
    return build(wish.spec, wish.overrides, place, wish.cluster.machine(wish.spec), wish.project, code, wish.python)


def prepare(
    file: Path, *, on: str, overrides: tuple[str, ...], shipped: Shipped | None = None
) -> tuple[Plan, CodeList]:
    """What `submit` would do, as data: the plan, and the files that would be frozen."""
    wish = request(file, on=on, overrides=overrides, shipped=shipped)
    root = registry.runs_root(Path(wish.project.path))
    run_id = new_run_id(wish.spec.name, _taken(root))
    return plan_of(wish, run_id, root / run_id, time.time()), wish.code


def open_runs(
    files: Sequence[Path], *, on: str, overrides: tuple[str, ...], repeat: int | None = None
) -> list[tuple[str, Path]]:
    """Start a run of each file, or `repeat` runs; gives their ids and folders. Checks all before any exists.

    Those that a cluster can take as one job become one. What fails after some exist names them (`LaunchError.runs`).
    """
    wishes = _all_or_none([partial(_looked_at_first, file, on=on, overrides=overrides) for file in files])
    if repeat is not None:
        wishes = [replace(wish, as_run=ShippedRun(repeat=index)) for wish in wishes for index in range(repeat)]
    return _open_all(wishes)


def open_shipped(specs: Sequence[Shipped], *, on: str, choose: Callable[[Opened], None]) -> list[tuple[str, Path]]:
    """Start runs that were submitted on another machine; `choose` is told of them before there is anything of them."""
    asked = [partial(_looked_at_first, one.file, on=on, overrides=one.overrides, shipped=one) for one in specs]
    wishes = zip(_all_or_none(asked), specs, strict=True)
    return _open_all([replace(wish, as_run=run) for wish, spec in wishes for run in spec.runs], choose)


def _all_or_none(looks: Sequence[Callable[[], Request]]) -> list[Request]:
    wishes, problems = _each(looks, alone=len(looks) == 1)
    if not problems or not any(isinstance(wish.cluster, ChecksFirst) for wish in wishes):
        wishes, more = _each([partial(_able, wish) for wish in wishes], alone=len(looks) == 1)
        problems += more
    if problems:
        raise BadInput(*problems)
    return wishes


def _each(steps: Sequence[Callable[[], Request]], *, alone: bool) -> tuple[list[Request], list[str]]:
    wishes, problems = list[Request](), list[str]()
    for step in steps:
        try:
            wishes.append(step())
        except BadInput as error:
            if alone:
                raise
            problems += error.lines
    return wishes, problems


def _open_all(wishes: Sequence[Request], choose: Callable[[Opened], None] = lambda _: None) -> list[tuple[str, Path]]:
    opened = list[tuple[str, Path]]()
    for group in _together(wishes):
        try:
            opened += _open_group(group, choose)
        except (LaunchError, OSError) as error:
            if not opened:
                raise
            raise some_exist(error, _named(opened), len(wishes)) from error
    return opened


def _together(wishes: Sequence[Request]) -> list[list[Request]]:
    """Neighbours that may share one job: of one project, with the same demands, as many as the cluster takes."""
    groups: list[list[Request]] = []
    for wish in wishes:
        place = wish.cluster
        most = place.most_together() if len(wishes) > 1 and isinstance(place, SubmitsTogether) else 1
        if groups and len(groups[-1]) < most and _demands(groups[-1][-1]) == _demands(wish):
            groups[-1].append(wish)
        else:
            groups.append([wish])
    return groups


def _demands(wish: Request) -> tuple[object, ...]:
    spec = wish.spec
    options = [getattr(spec, kind) for kind in OPTIONS_OF]
    return wish.on, wish.project.path, spec.resources, options, spec.plugins, spec.recovery.spares, spec.secrets


def _open_group(group: Sequence[Request], choose: Callable[[Opened], None]) -> list[tuple[str, Path]]:
    """The runs of one job: they exist, one rename each, and then the cluster is told."""
    root = registry.runs_root(Path(group[0].project.path), create=True)
    drafts.remove_orphans(root)  # of submitters that were killed
    ticket, opened, first = new_ticket(), list[tuple[str, Path]](), group[0].as_run.first

    def taken(name: str) -> bool:
        return _taken(root)(name) or (name, root / name) in opened

    for wish in group:
        named = wish.as_run.run_id
        run_id = named if named and not taken(named) else new_run_id(wish.spec.name, taken)
        opened.append((run_id, root / run_id))
    choose(opened)
    batch = root / f".batch-{ticket}" if len(group) > 1 else None
    plans = [plan_of(wish, *one, time.time()) for wish, one in zip(group, opened, strict=True)]
    engagements = [wish.cluster.engage(plan) for wish, plan in zip(group, plans, strict=True)]
    try:
        if batch is not None:
            make_dir(batch)
            write_record(BatchDir(batch).runs, [str(path) for _, path in opened])
        _make(root, group, plans, ticket, batch)
    except BaseException:
        for engagement in engagements:
            engagement.abandon()
        _unmake((), batch)
        raise
    try:
        for engagement in engagements if batch is None else engagements[:1]:
            engagement.go(first)
    except NotStarted:
        _unmake(opened, batch)
        raise
    except (LaunchError, OSError) as error:
        raise with_runs(error, _named(opened), _what_next(error, opened)) from error
    return opened


def _named(opened: Sequence[tuple[str, Path]]) -> tuple[tuple[str, str], ...]:
    return tuple((run_id, str(path)) for run_id, path in opened)


def _what_next(error: Exception, opened: Sequence[tuple[str, Path]]) -> str:
    """With runs that exist, and of which nobody knows whether the cluster has them."""
    ref, them = (opened[0][0], "it") if len(opened) == 1 else ("RUN", "them")
    there = f"{ref} exists all the same" if len(opened) == 1 else f"{len(opened)} runs exist all the same"
    if isinstance(error, Unreachable):
        return f"{there}: `launch status` hands {them} over, `launch cancel {ref}` gives {them} up"
    return f"{there}: `launch status {ref}` shows what became of {them}"


def _make(root: Path, group: Sequence[Request], plans: Sequence[Plan], ticket: str, batch: Path | None) -> None:
    """All of these runs or none: whole and durable under names that nobody knows, then with one rename each."""
    folders = [drafts.new_draft(root) for _ in plans]
    runs = [(plan.run_id, Path(plan.run_dir)) for plan in plans]
    made = list[tuple[str, Path]]()
    try:
        for draft, wish, plan in zip(folders, group, plans, strict=True):
            _write(RunDir(draft), wish, plan, ticket, batch)
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


def _unmake(made: Sequence[tuple[str, Path]], batch: Path | None) -> None:
    """Nothing was started: nothing is to be left."""
    for run_id, path in made:
        aside = drafts.new_draft(path.parent)
        os.rename(path, aside)
        registry.forget(run_id)
        drafts.remove(aside)
    if batch is not None:
        drafts.remove(batch)


def reopen(
    run: RunDir, *, after: int, on: str | None, overrides: tuple[str, ...], defaults: Defaults | None = None
) -> None:
    """A new attempt of a run whose attempt `after` has ended: the frozen code, the spec as submitted, these changes.

    Without `on` where it was and with the options that the cluster had then, whatever the clusters file says by now;
    with it, be it by the same name, with those that the cluster has now. `defaults` are those of the cluster as another
    machine, from which the run is resumed, knows it by now.
    """
    before = read_plan(run, after)
    place = entry(on) if on is not None else _place_of(before)
    if defaults is not None:
        place = replace(place, defaults=(*entry(place.name).defaults, *defaults))
    where = of_kind(place.kind)
    all_overrides = (*before.overrides, *overrides)
    spec = _read_spec(run.spec, all_overrides, place.defaults)
    code = list_frozen(run.code)
    project = _look_at(spec, run.code, code, before.entry.python, where)
    python, usual = before.entry.python, place.defaults
    wish = Request(run.spec, spec, all_overrides, place.name, where, project, code, python, defaults=usual)
    problems = check(spec, where.machine(spec), project, ())
    _refuse(run.spec, problems)
    plan = with_code(plan_of(wish, before.run_id, run.path, before.submitted_at), before.code)
    was = of_kind(before.cluster_kind)
    if was.kind != where.kind and isinstance(was, KeepsFilesElsewhere):
        was.bring_newest(run)
    engagement = where.engage(plan)
    try:
        attempt, _ = new_attempt(run, place.name, "resume", None, plan, kind=where.kind, after=after)
        append_line(run.events, Event(time.time(), attempt.number, "resumed", f"resumed on {place.name}"))
    except BaseException:
        engagement.abandon()
        raise
    try:
        engagement.go(attempt.number)
    except NotStarted as refusal:
        end = AttemptEnd(State.FAILED, Cause.LAUNCHER_FAULT, Exit.LAUNCHER_FAULT, time.time(), str(refusal))
        write_end(run, attempt, end, plan)
        raise


def _place_of(before: Plan) -> ClusterEntry:
    """The cluster as it was then; a login node may have moved since, and is got to as the clusters file says now."""
    return as_reached_now(ClusterEntry(before.cluster_kind, before.cluster, before.defaults))


def project_of(file: Path) -> Path:
    """The folder whose code is frozen: the nearest one above the spec that is a project, else the working folder if
    the spec is below it, else the spec's own."""
    folder = file.resolve().parent
    for candidate in (folder, *folder.parents):
        if (candidate / ".git").exists() or (candidate / "pyproject.toml").exists():
            return candidate
    here = Path.cwd()
    return here if folder.is_relative_to(here) else folder


def interpreter(spec: JobSpec, project: Path, environ: Mapping[str, str]) -> str:
    """The Python that runs ranks: the spec's, the active environment's, the project's .venv, else ours."""
    if spec.run.python is not None:
        return shutil.which(spec.run.python) or str(project / os.path.expanduser(spec.run.python))
    active = environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX")
    for home in (active, project / ".venv"):
        if home and os.access(candidate := os.path.join(home, "bin", "python"), os.X_OK):
            return candidate
    return sys.executable


def _write(draft: RunDir, wish: Request, unfrozen: Plan, ticket: str, batch: Path | None) -> None:
    """All that is in its folder at first; the caller makes it durable."""
    make_dir(draft.path)
    frozen = freeze(wish.code, Path(unfrozen.run_dir).parent / ".code", draft.code, fsync=False).code
    plan = with_code(unfrozen, frozen)
    write_bytes(draft.spec, wish.file.read_bytes(), fsync=False)
    if wish.spec.secrets:
        write_record(draft.secrets, _secrets(wish), fsync=False)
    shared = str(batch) if batch is not None else ""
    first, told = wish.as_run.first, f"submitted {wish.file.name} to {wish.on}"
    new_attempt(
        draft, wish.on, "submit", None, kind=wish.cluster.kind, ticket=ticket, batch=shared, first=first, fsync=False
    )
    raise_fence(draft, first, fsync=False)
    if wish.as_run.events:
        write_bytes(draft.events, wish.as_run.events, fsync=False)
    append_line(draft.events, Event(time.time(), first, "submitted", told), fsync=False)
    if wish.as_run.checkpoints is not None:
        shutil.copytree(wish.as_run.checkpoints, draft.path / wish.spec.checkpoint.dir)
    write_record(draft.state, first_state(plan, first), fsync=False)
    write_record(draft.plan, plan, fsync=False)


def _secrets(wish: Request) -> dict[str, str]:
    if wish.shipped is None:
        return read_secret_values(wish.spec, Path(wish.project.path), os.environ)
    return {secret.name: wish.shipped.secrets[secret.name] for secret in wish.spec.secrets}


def _look_at(spec: JobSpec, root: Path, code: CodeList, python: str, where: Cluster | None) -> Project:
    files = {entry.path for entry in code.files}
    imports: set[str] = set()
    found = True
    entry = spec.run.script
    if spec.run.module is not None:
        entry = _module_file(spec.run.module, spec.run.workdir, files)
        found = entry is not None or isinstance(where, ChecksFirst) or _importable(spec.run.module, python)
    elif entry is not None:
        entry = os.path.normpath(os.path.join(spec.run.workdir, entry))
    if entry is not None and entry in files:
        imports = third_party_imports(lambda path: _read(root, path, files), entry)
    elif spec.run.module is not None:
        imports = {"*"}
    return Project(str(root), files, imports, found)


def _read(root: Path, path: str, files: Collection[str]) -> bytes | None:
    return (root / path).read_bytes() if path in files else None


def _module_file(module: str, workdir: str, files: Collection[str]) -> str | None:
    base = os.path.normpath(os.path.join(workdir, module.replace(".", "/")))
    return next((path for path in (f"{base}.py", f"{base}/__main__.py") if path in files), None)


def _importable(module: str, python: str) -> bool:
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    try:
        answer = subprocess.run(
            [python, "-c", look, module.partition(".")[0]], capture_output=True, check=False, cwd="/"
        )
    except OSError:
        return False  # no such interpreter: that is a problem of its own
    return answer.returncode == 0


def _at(file: Path, key: str) -> str:
    line, column = position(file.read_text(), key)
    return f"{file}:{line}:{column}"


def _taken(root: Path) -> Callable[[str], bool]:
    return lambda run_id: (root / run_id).exists() or registry.is_registered(run_id)
