"""From a spec file to a run that exists: every check first, then one rename that makes it real.

read spec ─ facts ─ check ─► keeper boots ─► freeze code, write plan and intent in .tmp-… ─ rename ─► go
                                                                                       the run exists
"""

import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import msgspec

from launcher.clusters.clusters_file import ClusterEntry, as_reached_now, entry, plugin_sections, with_defaults
from launcher.clusters.keeping import news
from launcher.clusters.keeping.attempt_end import first_state, write_end
from launcher.clusters.kinds import of_kind
from launcher.clusters.protocol import ChecksFirst, Cluster, CopiesCode, KeepsFilesElsewhere, SubmitsTogether
from launcher.errors import BadInput, Exit, LaunchError, NotStarted, Refused, Unreachable, some_exist, with_runs
from launcher.ids import RunId, new_run_id, new_ticket
from launcher.interpreter import OLDEST, interpreter, is_program, is_too_old, version_of
from launcher.notify.record import Notifying
from launcher.notify.settings import notifying_of
from launcher.plan.build import build, check, check_code, crowded, secret_problems
from launcher.plan.facts import Machine, Misfit, Project, RunIdentity
from launcher.plan.model import FrozenCode, Plan
from launcher.project import ProjectCode, code_of, live_imports, look_at, project_of
from launcher.rundir import drafts, registry
from launcher.rundir.attempts import new_attempt, read_plan
from launcher.rundir.code.diffing import changes, shown
from launcher.rundir.code.freezing import bring_code, freeze
from launcher.rundir.code.listing import CodeFile, CodeList, list_frozen
from launcher.rundir.code.origin import origin_of
from launcher.rundir.code.renewing import as_frozen, finish_swap, folder_as_frozen, frozen_digest, stage, swap
from launcher.rundir.durable import (
    append_line,
    make_dir,
    read_record,
    readable,
    sync_dir,
    sync_trees,
    write_bytes,
    write_record,
)
from launcher.rundir.fence import raise_fence
from launcher.rundir.layout import BATCH_PREFIX, STORE, AttemptDir, BatchDir, RunDir
from launcher.rundir.ownership import is_ours_alone
from launcher.rundir.records import ANEW, AttemptEnd, Event, Gone
from launcher.secret_values import read_secret_values, unset_secrets
from launcher.spec.cluster_fields import OPTIONS_OF
from launcher.spec.fields import JOB, with_plugins
from launcher.spec.model import JobSpec
from launcher.spec.read import position, read_spec
from launcher.words import Cause, State

_CHANGES = 8
_CHANGED_LINES = 40
Defaults = tuple[tuple[str, str], ...]  # options of the spec and their YAML text
Opened = Sequence[tuple[RunId, Path]]  # ids and folders


@dataclass(frozen=True, slots=True)
class ShippedRun:
    """A run as another machine knows it."""

    run_id: RunId | None = None  # which it gets here too, where that is free
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
    notifying: Notifying | None = None


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
    notifying: Notifying | None = None
    live: Sequence[str] = ()  # words about what the interpreter here would import from where it is edited


def validate(file: Path, overrides: tuple[str, ...], root: Path | None = None) -> None:
    """Everything that can be said of a spec without knowing where it will run. Raises BadInput with all problems.

    `root`: the project, where it is not the one that the file lies in.
    """
    spec = _read_spec(file, overrides)
    root = project_of(file) if root is None else root
    python = interpreter(spec, root, os.environ)
    code = code_of(root, spec, python, frozen=False)
    project = look_at(spec, root, code.listed, python, code.own_folders)
    elsewhere = bool(spec.ssh.hosts or spec.login.node)
    _refuse(file, check_code(spec, project, own_python=elsewhere))
    _say_warnings([f"{file}: {_worded(one)}" for one in project.lacking if not elsewhere])


def notifying_in(file: Path) -> Notifying | None:
    """Who would hear of a run of this spec if it were submitted now. Raises BadInput with all problems."""
    return notifying_of(_read_spec(file, ()).notify, file, project_of(file), os.environ)


def _looked_at_first(
    file: Path, *, on: str, overrides: tuple[str, ...], shipped: Shipped | None = None, root: Path | None = None
) -> Request:
    """What can be found without asking the cluster."""
    place = entry(on)
    defaults = place.defaults if shipped is None else (*place.defaults, *shipped.defaults)
    spec = _read_spec(file, overrides, defaults)
    where = of_kind(place.kind)
    root = shipped.root if shipped is not None else project_of(file) if root is None else root
    python = interpreter(spec, root, os.environ)
    code = code_of(root, spec, python, frozen=shipped is not None)
    project = look_at(spec, root, code.listed, python, code.own_folders)
    live = live_imports(project, code) if shipped is None else []
    notifying = notifying_of(spec.notify, file, root, os.environ) if shipped is None else shipped.notifying
    wish = Request(
        file, spec, overrides, on, where, project, code.listed, python,
        shipped=shipped, defaults=defaults, notifying=notifying, live=live,
    )  # fmt: skip
    if isinstance(where, ChecksFirst):
        where.check_first(code.listed)
        _refuse(file, [*check_code(spec, project, own_python=True), *secret_problems(_unset(wish))])
    return wish


def _able(wish: Request) -> Request:
    """The request, if the cluster offers what it needs. Raises BadInput with all problems."""
    machine = wish.cluster.machine(wish.spec)
    problems = check(wish.spec, machine, wish.project, _unset(wish))
    _refuse(wish.file, [*problems, *_python_problems(wish.python, machine, wish.spec)])
    _warn(wish, machine)
    return wish


def _warn(wish: Request, machine: Machine) -> None:
    """Say what may work, and not as it is meant."""
    words = [] if machine.own_python else [*wish.live]
    if machine.apart and not machine.own_python and _is_everywhere(wish):
        words += map(_worded, wish.project.lacking)
    words += filter(None, [crowded(wish.spec.resources, machine)])
    _say_warnings(words)


def _say_warnings(words: Sequence[str]) -> None:
    for text in words:
        for line in f"warning: {text}".splitlines():
            news.say(line)


def _worded(problem: Misfit) -> str:
    return f"{problem.reason}\nhint: {problem.hint}"


def _is_everywhere(wish: Request) -> bool:
    """Whether nodes surely have the interpreter that was looked at here: where the run's folder is."""
    return Path(wish.python).is_relative_to(wish.project.path) and wish.spec.slurm.container is None


def _python_problems(python: str, machine: Machine, spec: JobSpec) -> list[Misfit]:
    if machine.own_python:
        return []
    if not os.path.isfile(python):
        hint = "a name is looked for on PATH, a path begins at the folder of the project"
        return [Misfit("run.python", f"no interpreter at {python}", hint)]
    if not is_program(python):
        return [Misfit("run.python", f"{python} is no program that can be run", f"chmod +x {python}")]
    version = version_of(python)
    if spec.run.command is None and is_too_old(version):
        return [Misfit("run.python", f"{python} is Python {version}: ranks need {OLDEST} or newer")]
    return []


def _unset(wish: Request) -> Collection[str]:
    """Secrets that have no value here; those of a project that was shipped came along."""
    return unset_secrets(wish.spec, Path(wish.project.path), os.environ) if wish.shipped is None else ()


def _read_spec(file: Path, overrides: Sequence[str], defaults: Defaults = ()) -> JobSpec:
    """With the cluster's defaults. Kinds of other packages are only looked for where a spec cannot be read without."""
    if file.suffix == ".py":
        hint = f"hint: `launch run {file}` runs it without one, `launch init --from {file}` writes one"
        raise BadInput(f"{file}: a Python script is no spec", hint)
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
        line, column = position(file.read_text(), problem.key)
        lines.append(f"{file}:{line}:{column}: {problem.key}: {problem.reason}")
        lines += [f"hint: {problem.hint}"] if problem.hint else []
    if lines:
        raise BadInput(*lines)


def plan_of(wish: Request, run_id: RunId, run_dir: Path, submitted_at: float) -> Plan:
    """Everything but what the frozen code is called: that is known once it is frozen."""
    file = str(wish.file.resolve())
    place = RunIdentity(
        run_id, str(run_dir), wish.on, wish.cluster.kind, file, submitted_at, wish.defaults, wish.as_run.repeat
    )
    code = FrozenCode("", len(wish.code.files), wish.code.bytes)
    plan = build(wish.spec, wish.overrides, place, wish.cluster.machine(wish.spec), wish.project, code, wish.python)
    told = wish.notifying.recipients if wish.notifying is not None else ()
    return msgspec.structs.replace(plan, told=tuple(one.label for one in told))


def prepare(
    file: Path, *, on: str, overrides: tuple[str, ...], shipped: Shipped | None = None
) -> tuple[Plan, CodeList]:
    """What `submit` would do, as data: the plan, and the files that would be frozen. Starts and writes nothing."""
    wish = _able(_looked_at_first(file, on=on, overrides=overrides, shipped=shipped))
    root = registry.runs_root(Path(wish.project.path))
    run_id = new_run_id(wish.spec.name, _taken(root))
    return plan_of(wish, run_id, root / run_id, time.time()), wish.code


def open_runs(
    files: Sequence[Path],
    *,
    on: str,
    overrides: tuple[str, ...],
    repeat: int | None = None,
    roots: Mapping[Path, Path] = MappingProxyType({}),
) -> list[tuple[RunId, Path]]:
    """Start a run of each file, or `repeat` runs; gives their ids and folders. Checks all before any exists.

    Those that a cluster can take as one job become one. What fails after some exist names them (`LaunchError.runs`).
    `roots`: the projects of files that lie somewhere else.
    """
    looks = [partial(_looked_at_first, file, on=on, overrides=overrides, root=roots.get(file)) for file in files]
    wishes = _all_or_none(looks)
    if repeat is not None:
        wishes = [replace(wish, as_run=ShippedRun(repeat=index)) for wish in wishes for index in range(repeat)]
    return _open_all(wishes)


def open_shipped(specs: Sequence[Shipped], *, on: str, choose: Callable[[Opened], None]) -> list[tuple[RunId, Path]]:
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


def _open_all(wishes: Sequence[Request], choose: Callable[[Opened], None] = lambda _: None) -> list[tuple[RunId, Path]]:
    opened = list[tuple[RunId, Path]]()
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


def _open_group(group: Sequence[Request], choose: Callable[[Opened], None]) -> list[tuple[RunId, Path]]:
    """The runs of one job: they exist, one rename each, and then the cluster is told."""
    root = registry.runs_root(Path(group[0].project.path), create=True)
    drafts.remove_orphans(root)  # of submitters that were killed
    ticket, opened, first = new_ticket(), list[tuple[RunId, Path]](), group[0].as_run.first

    def taken(name: RunId) -> bool:
        return _taken(root)(name) or (name, root / name) in opened

    for wish in group:
        named = wish.as_run.run_id
        run_id = named if named and not taken(named) else new_run_id(wish.spec.name, taken)
        opened.append((run_id, root / run_id))
    choose(opened)
    batch = root / f"{BATCH_PREFIX}{ticket}" if len(group) > 1 else None
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
    made = list[tuple[RunId, Path]]()
    origin = origin_of(Path(group[0].project.path)) if group[0].shipped is None else None
    try:
        for draft, wish, plan in zip(folders, group, plans, strict=True):
            _write(RunDir(draft), wish, plan, ticket, batch)
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
    """Nothing was started: nothing is to be left."""
    for run_id, path in made:
        aside = drafts.new_draft(path.parent)
        os.rename(path, aside)
        registry.forget(run_id)
        drafts.remove(aside)
    if batch is not None:
        drafts.remove(batch)


def reopen(
    run: RunDir,
    *,
    after: int,
    on: str | None,
    overrides: tuple[str, ...],
    defaults: Defaults | None = None,
    anew: bool = False,
    renew: bool = False,
) -> None:
    """A new attempt of a run whose attempt `after` has ended: the frozen code, the spec as submitted, these changes.
    `renew`: with the project's code as it is now.

    Without `on` where it was and with the options that the cluster had then, whatever the clusters file says by now;
    with it, be it by the same name, with those that the cluster has now. `defaults` are those of the cluster as another
    machine, from which the run is resumed, knows it by now.
    """
    if not run.attempt(after).code.is_dir() and not _has_code(run):
        hint = "hint: launch resume there; launch cancel and launch fetch work from here too"
        raise Refused(f"{run.id} was submitted from another machine, and its code is not here", hint)
    if not is_ours_alone(run.path.resolve()):
        hint = f"hint: ls -ld {run.path}; where it is yours, chmod go-w gives it back to you alone"
        raise BadInput(f"{run.path}: other users own it or can write to it: the code in it may be theirs", hint)
    before = read_plan(run, after)
    finish_swap(run, run.attempt(after))
    bring_code(run, before.code.digest, _told)
    place = entry(on) if on is not None else _place_of(before)
    if defaults is not None:
        place = ClusterEntry(place.kind, place.name, (*entry(place.name).defaults, *defaults))
    where = of_kind(place.kind)
    all_overrides = (*before.overrides, *overrides)
    spec = _read_spec(run.spec, all_overrides, place.defaults)
    _may_renew(run, renew, spec, before, where)
    python, usual = before.entry.python, place.defaults
    if spec.run.python != before.spec.run.python:
        python = interpreter(spec, Path(before.project), os.environ)
    found = _code_for(run, spec, python, before, renew=renew)
    code, project = found.listed, look_at(spec, found.listed.root, found.listed, python, found.own_folders)
    told = _notifying_again(run, spec, before)
    wish = Request(
        run.spec, spec, all_overrides, place.name, where, project, code, python, defaults=usual, notifying=told
    )
    machine = where.machine(spec)
    _refuse(run.spec, [*check(spec, machine, project, ()), *_python_problems(python, machine, spec)])
    unfrozen = plan_of(wish, before.run_id, run.path, before.submitted_at)
    plan = msgspec.structs.replace(unfrozen, code=before.code, project=before.project)
    if renew:
        frozen = FrozenCode(frozen_digest(code), len(code.files), code.bytes)
        plan = msgspec.structs.replace(unfrozen, code=frozen)
    was = of_kind(before.cluster_kind)
    if was.kind != where.kind and isinstance(was, KeepsFilesElsewhere):
        was.bring_newest(run)
    engagement = where.engage(plan)
    try:
        attempt, _ = new_attempt(run, place.name, "resume", None, plan, kind=where.kind, after=after)
        gone = any(one.attempt >= after for one in read_record(run.gone, list[Gone]) or [])
        _note_resumed(run, attempt, place, told, anew=anew or gone)
        if renew:
            _take(run, attempt, code, before)
    except BaseException:
        engagement.abandon()
        raise
    try:
        engagement.go(attempt.number)
    except NotStarted as refusal:
        end = AttemptEnd(State.FAILED, Cause.LAUNCHER_FAULT, Exit.LAUNCHER_FAULT, time.time(), str(refusal))
        write_end(run, attempt, end, plan)
        raise


def _has_code(run: RunDir) -> bool:
    """A copy, or what was frozen here and nobody has copied yet."""
    plan = readable(run.plan, Plan)
    if run.code.is_dir() or plan is None:
        return run.code.is_dir()
    return isinstance(of_kind(plan.cluster_kind), CopiesCode) and folder_as_frozen(run, plan.code.digest).is_dir()


def _note_resumed(run: RunDir, attempt: AttemptDir, place: ClusterEntry, told: Notifying | None, *, anew: bool) -> None:
    append_line(run.events, Event(time.time(), attempt.number, "resumed", f"resumed on {place.name}"))
    if told is not None:
        write_record(run.notify, told)
    else:
        run.notify.unlink(missing_ok=True)
    if anew:
        text = "a person has said that it may begin anew where no checkpoint is whole"
        append_line(run.events, Event(time.time(), attempt.number, ANEW, text))


def _may_renew(run: RunDir, renew: bool, spec: JobSpec, before: Plan, where: Cluster) -> None:
    if not renew and spec.code != before.spec.code:
        hint = f"hint: launch resume {run.id} --code takes the code as it is now"
        raise BadInput("code: its options say what is frozen, and the code of this run is frozen already", hint)
    if renew and isinstance(where, KeepsFilesElsewhere):
        hint = "hint: `--on` a cluster that has the run's folder in common with this machine, or submit anew"
        raise Refused("other code cannot be brought to where the files of this run are", hint)


def _notifying_again(run: RunDir, spec: JobSpec, before: Plan) -> Notifying | None:
    """Who hears of a resumed run: as before, unless the spec says otherwise now."""
    if spec.notify != before.spec.notify:
        return notifying_of(spec.notify, Path(before.spec_file), Path(before.project), os.environ)
    return readable(run.notify, Notifying)


def _code_for(run: RunDir, spec: JobSpec, python: str, before: Plan, *, renew: bool) -> ProjectCode:
    """The code that the next attempt gets: what the run has, or that of the project it was submitted from."""
    if not renew:
        return ProjectCode(list_frozen(run.code), before.own_folders, ())
    first = read_record(run.plan, Plan)
    if first is None or not Path(first.project).is_dir():
        raise Refused(f"the project that {run.id} was submitted from is not here", "hint: submit it anew")
    return code_of(Path(first.project), spec, python, frozen=False)


def _take(run: RunDir, attempt: AttemptDir, code: CodeList, before: Plan) -> None:
    """Other code for a new attempt, and a word of what it differs in."""
    old = as_frozen(run, before.code.digest)
    found = changes(old, code)
    stage(run, attempt, code, _told)
    swap(run, attempt, {file.path for file in old.files})
    told = ", ".join(map(str, found[:_CHANGES])) + (f" and {len(found) - _CHANGES} more" if found[_CHANGES:] else "")
    text = f"code as it is now: {told or 'nothing has changed'}"
    append_line(run.events, Event(time.time(), attempt.number, "code", text))
    for line in (text, *shown(found, _CHANGED_LINES)):
        news.say(line)


def _place_of(before: Plan) -> ClusterEntry:
    """The cluster as it was then; a login node may have moved since, and is got to as the clusters file says now."""
    return as_reached_now(ClusterEntry(before.cluster_kind, before.cluster, before.defaults))


def _write(draft: RunDir, wish: Request, unfrozen: Plan, ticket: str, batch: Path | None) -> None:
    """All that is in its folder at first; the caller makes it durable."""
    make_dir(draft.path)
    place = None if _is_copied_later(wish) else draft.code
    frozen = freeze(wish.code, Path(unfrozen.run_dir).parent / STORE, place, fsync=False, watch=_told).code
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


def _is_copied_later(wish: Request) -> bool:
    """Whether the store is all that has the code when the submit is over."""
    return isinstance(wish.cluster, CopiesCode) and len(wish.code.files) > wish.cluster.most_files_at_once


def _told(files: Sequence[CodeFile]) -> Iterator[CodeFile]:
    return news.counted(files, "freezing the code")


def _taken(root: Path) -> Callable[[RunId], bool]:
    return lambda run_id: (root / run_id).exists() or registry.is_registered(run_id)
