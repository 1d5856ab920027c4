"""Read a request for a run, and check all that can be checked before the run exists. An attempt is one batch job of a
run, or one start on a pool's hosts. A run of several programs has a role for each; a side role is one beside the main
one. An override, such as `run.args.lr=0.1`, sets one option of the spec, as `--set` does.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import msgspec

from launcher.copies import news
from launcher.errors import BadInput
from launcher.ids import RunId, new_run_id, parse_run_id
from launcher.places.clusters_file import entry, plugin_sections, with_defaults
from launcher.places.deferred.cluster import DeferredCluster
from launcher.places.kinds import of_kind
from launcher.places.place import Place
from launcher.plan.build import build, check, check_code, crowded, ranks_per_node, secret_problems, without_unasked_gpus
from launcher.plan.facts import Machine, Misfit, Project, RunIdentity
from launcher.plan.interpreter import OLDEST, interpreter, is_program, is_too_old, version_of
from launcher.plan.model import AwaitedRun, FrozenCode, Plan
from launcher.plan.placement import crosses_nodes, tensor_parallel
from launcher.plan.roles import build_roles, check_roles, role_specs
from launcher.plan.secret_values import unset_secrets
from launcher.run import registry
from launcher.run.code.listing import CodeList
from launcher.run.umask import users_umask
from launcher.spec.fields import JOB, with_plugins
from launcher.spec.kinds.queueing import moment
from launcher.spec.model import JobSpec
from launcher.spec.read import position, read_spec
from launcher.submission.project import ProjectCode, code_of, facts_of_code, live_imports, project_of
from launcher.supervisor.notify.record import Notifying
from launcher.supervisor.notify.settings import notifying_of
from launcher.supervisor.waiting import awaited_by, ended_as

_AT_ONCE = "queue.max_parallel"
_DEFERRED_WAITS = ("queue.after", "queue.hold", "queue.at", _AT_ONCE)

Defaults = tuple[tuple[str, str], ...]  # options of the spec and their YAML text


@dataclass(frozen=True, slots=True)
class ShippedRun:
    """Facts that another machine sends with a run that it submits to this one: the id it wants, its index among
    repeated runs, the numbers of its first attempts, its earlier events, checkpoints to continue from, and when to
    start.
    """

    run_id: RunId | None = None  # the id that it should have here, if it is free
    repeat: int | None = None  # its index, from 0, among several runs of one spec
    first: int = 1  # the number of its first attempt here
    roles: Mapping[RunId, int] = field(default_factory=dict)  # by side role: the same, of its attempts
    events: bytes = b""  # events.jsonl of what happened to it elsewhere
    checkpoints: Path | None = None  # a folder with the checkpoints to continue from
    starts_at: float | None = None  # Unix time of the spec's `queue.at`, by that machine's clock


@dataclass(frozen=True, slots=True)
class Shipped:
    """A spec that another machine sent for this one to run, with its project (all files are code) and its secrets.

    The cluster's `defaults` are those in the other machine's clusters file, which override those in this machine's.
    """

    file: Path  # the spec, on this machine
    overrides: tuple[str, ...]
    root: Path  # the project's folder on this machine
    secrets: Mapping[str, str]  # values by name
    defaults: Defaults  # the cluster's options on the other machine
    runs: tuple[ShippedRun, ...] = ()  # the runs to start
    notifying: Notifying | None = None  # whom to notify; None: nobody


@dataclass(frozen=True, slots=True)
class Request:
    """A spec that was read and checked, with its cluster and code. `as_run` and `shipped` are set if another machine
    submits it; `awaited` are runs to wait for; `together`: submitted with others; `deferred`: it must wait on this
    machine, as checkpoints are fetched here first; `roles` has the code of each role; `live` are warnings about modules
    that ranks import from where the user edits them, not from the frozen code.
    """

    file: Path
    spec: JobSpec
    overrides: tuple[str, ...]  # values of --set
    on: str  # the cluster's name
    cluster: Place
    project: Project  # facts about the code
    code: CodeList
    python: str  # the interpreter that runs ranks
    as_run: ShippedRun = ShippedRun()  # facts that another machine sent with the run; all defaults if none did
    shipped: Shipped | None = None  # the spec and project that another machine sent; None: submitted on this machine
    defaults: Defaults = ()  # the cluster's values for options of the spec
    notifying: Notifying | None = None  # who is notified of the run; None: nobody
    awaited: tuple[AwaitedRun, ...] = ()  # runs to wait for
    together: bool = False  # submitted with other runs, of which `queue.max_parallel` may be active
    deferred: bool = False  # it waits on this machine, since checkpoints of other steps are fetched here first
    roles: Mapping[str, Project] = field(default_factory=dict)  # the code as each role of several uses it
    live: Sequence[str] = ()  # warnings about modules that are imported from where they are edited


def validate(file: Path, overrides: tuple[str, ...], root: Path | None = None) -> None:
    """Check everything in a spec that does not depend on a cluster; raise BadInput with all problems, and print
    warnings.

    `root` is the project, by default that of the file.
    """
    spec = read_with_defaults(file, overrides)
    root = project_of(file) if root is None else root
    python = interpreter(spec, root, os.environ)
    code = code_of(root, spec, python, frozen=False)
    project = facts_of_code(spec, root, code.listed, python, code.own_folders)
    elsewhere = bool(spec.ssh.hosts or spec.login.node)
    problems = [] if spec.roles else check_code(spec, project, own_python=elsewhere)
    for name, one in role_specs(spec).items():
        seen = facts_of_code(one, root, code.listed, python, code.own_folders)
        found = check_code(one, seen, own_python=elsewhere)
        problems += [Misfit(f"roles.{name}.{each.key}", each.reason, each.hint) for each in found]
    refuse(file, problems)
    warned = [*(one for one in project.lacking if not elsewhere), *misspelt_arguments(spec, root, project.files)]
    _print_warnings([f"{file}: {_text_of(one)}" for one in warned])


def misspelt_arguments(spec: JobSpec, root: Path, files: Collection[str]) -> list[Misfit]:
    """Return a problem for each option in `run.args` that the script does not declare, but whose name is nearly that of
    an option which it declares.

    The list is empty if the script is not among `files`, the paths of the code in the project `root`, or if it cannot
    be parsed or accepts unknown options.
    """
    script = os.path.normpath(os.path.join(spec.run.workdir, spec.run.script or ""))
    if spec.run.script is None or script not in files or not spec.run.args:
        return []
    from launcher.submission.script_arguments import misspelt  # late: only for scripts that are given something

    found = misspelt((root / script).read_bytes(), spec.run.args)
    return [
        Misfit("run.args", f"run.args: {spec.run.script} has no option {one}", f"did you mean {near}?")
        for one, near in found.items()
    ]


def notifying_in(file: Path) -> Notifying | None:
    """Return who would be notified of a run of this spec, or None if nobody would; raise BadInput with all problems."""
    return notifying_of(read_with_defaults(file, ()).notify, file, project_of(file), os.environ)


def read_request(
    file: Path, *, on: str, overrides: tuple[str, ...], shipped: Shipped | None = None, root: Path | None = None,
    frozen: ProjectCode | None = None, beside: Mapping[str, Path] = MappingProxyType({}),
) -> Request:  # fmt: skip
    """Return the request for a run, checked as far as that is possible without querying the cluster.

    Raise BadInput with all problems. The project is the one that another machine has `shipped`, or `root`, or by
    default that of the file. `frozen` is the project's code as it was frozen earlier; `beside` are files to add to the
    code.
    """
    place = entry(on)
    defaults = place.defaults if shipped is None else (*place.defaults, *shipped.defaults)
    spec = read_with_defaults(file, overrides, defaults)
    where = of_kind(place.kind)
    root = shipped.root if shipped is not None else project_of(file) if root is None else root
    python = interpreter(spec, root, os.environ)
    code = frozen or code_of(root, spec, python, frozen=shipped is not None, beside=beside)
    project = replace(facts_of_code(spec, code.listed.root, code.listed, python, code.own_folders), path=str(root))
    live = live_imports(project, code) if shipped is None else []
    notifying = notifying_of(spec.notify, file, root, os.environ) if shipped is None else shipped.notifying
    wish = Request(
        file, spec, overrides, on, where, project, code.listed, python,
        shipped=shipped, defaults=defaults, notifying=notifying, live=live,
        roles=code_of_roles(spec, code, python, root),
    )  # fmt: skip
    refuse_roles(file, spec, where)
    if where.checks_first:
        where.check_first(code.listed)
        refuse(file, [*check_code(spec, project, own_python=True), *secret_problems(_unset(wish))])
    return wish


def check_on_cluster(wish: Request) -> Request:
    """Return the request, completed by the runs that it waits for, if the cluster offers what it needs; print warnings.

    If the run can wait only on this machine, the request's `cluster` becomes one that waits here and then starts the
    run on the real one. Raise BadInput with all problems if it cannot run.
    """
    machine = wish.cluster.machine(wish.spec)
    problems = spec_problems(wish, machine, _unset(wish))
    awaited, unknown = awaited_by(wish.spec.queue.after)
    wish, waits = waiting(replace(wish, awaited=awaited))
    problems += [*python_problems(wish.python, machine, wish.spec), *waits, *unknown]
    problems += store_problems(machine, wish.spec)
    refuse(wish.file, problems)
    _warn(wish, machine)
    return wish


def spec_problems(wish: Request, machine: Machine, unset: Collection[str]) -> list[Misfit]:
    """Return every problem of the request's spec and, if it has several programs, of their specs, on a cluster whose
    nodes are as `machine` says. `unset` has the names of secrets without a value, each of which is a problem.
    """
    if not wish.roles:
        return check(wish.spec, machine, wish.project, unset)
    return [*check_roles(wish.spec, machine, wish.roles), *secret_problems(unset)]


def code_of_roles(spec: JobSpec, code: ProjectCode, python: str, root: Path) -> dict[str, Project]:
    """Return {role: the facts about its code} for the roles of `spec`, or an empty dict for a run of one program.

    `code` is the project's code, which all roles share. The facts tell, for instance, which modules the role's program
    needs and the interpreter `python` lacks; as the path they have `root`, the project's folder.
    """
    return {
        name: replace(facts_of_code(one, code.listed.root, code.listed, python, code.own_folders), path=str(root))
        for name, one in role_specs(spec).items()
    }


def refuse_roles(file: Path, spec: JobSpec, where: Place) -> None:
    """Raise BadInput if the spec has roles, but the cluster supports none."""
    refuse(file, roles_problems(spec, where))


def roles_problems(spec: JobSpec, where: Place) -> list[Misfit]:
    """Return a problem if the spec has roles, but the cluster `where` supports none; else an empty list."""
    if not spec.roles or where.takes_roles:
        return []
    reason = f"on {where.kind} clusters all nodes of a run have one program, so it cannot have roles"
    hint = "submit it to this machine, `--on local`, to an SSH pool or to Slurm, or each program as a run of its own"
    return [Misfit("roles", reason, hint)]


def waiting(wish: Request) -> tuple[Request, list[Misfit]]:
    """Return (the request with a cluster that can wait until the run may start, the problems of conditions for the
    start, such as the end of another run, that neither the cluster nor this machine can wait for).

    The cluster is replaced by one that waits on this machine and then starts the run on the first one, if checkpoints
    have to be fetched here first, or if the first cluster cannot see a run that is waited for, or cannot limit how many
    of the runs submitted together are active.
    """
    problems = [one for one in queue_problems(wish) if wish.together or one.key != _AT_ONCE]
    unseen = [one.key for one in problems if one.key.startswith("queue.after")]
    uncounted = any(one.key == _AT_ONCE for one in problems)
    if wish.deferred or uncounted or (unseen and _are_going_on(wish.awaited, unseen)):
        left = [one for one in problems if not one.key.startswith(_DEFERRED_WAITS)]
        return replace(wish, cluster=DeferredCluster(wish.cluster)), left
    return wish, problems


def _are_going_on(awaited: Sequence[AwaitedRun], keys: Sequence[str]) -> bool:
    """Return whether none of the awaited runs that `keys` select has ended.

    The key `queue.after.0` selects the first of `awaited`, and so on; `queue.after` selects all. If none is selected,
    return True.
    """
    return all(
        ended_as(one) is None for index, one in enumerate(awaited) if {f"queue.after.{index}", "queue.after"} & {*keys}
    )


def queue_problems(wish: Request) -> list[Misfit]:
    """Return a problem for each condition to wait for that the cluster does not support, and for a start time that is
    over.
    """
    queue, where = wish.spec.queue, wish.cluster
    problems = where.queue_problems(wish.spec, wish.awaited)
    starts_at = None if queue.at is None or wish.shipped is not None else moment(queue.at, time.time())
    if starts_at is not None and starts_at < time.time():
        problems.append(Misfit("queue.at", f"{queue.at} is over"))
    return problems


def _warn(wish: Request, machine: Machine) -> None:
    """Print warnings about what is valid in the request but may not do what the user expects, such as a misspelt
    argument of the script, or GPUs that no option asks for. `machine` describes the nodes of the request's cluster.
    """
    words = [] if machine.own_python else [*wish.live]
    if machine.apart and not machine.own_python and _is_in_project(wish):
        words += map(_text_of, wish.project.lacking)
    if isinstance(wish.cluster, DeferredCluster):
        others = ", ".join(one.run_id for one in wish.awaited) or "runs that are submitted together"
        text = f"{wish.on} cannot wait for {others}: this machine does, and starts it then, as long as it is on"
        words.append(f"{text}\nhint: `launch status` has the wait go on where it was cut off")
    each = ranks_per_node(wish.spec.resources, machine)
    across = crosses_nodes(tensor_parallel(wish.spec.run.args), each) if wish.spec.resources.nodes.max > 1 else ""
    words += map(_text_of, misspelt_arguments(wish.spec, wish.code.root, wish.project.files))
    unused = _no_gpus_asked(wish, machine)
    words += filter(None, [crowded(wish.spec.resources, machine), across, unused, _no_buddies(wish, machine)])
    _print_warnings(words)


def _no_gpus_asked(wish: Request, machine: Machine) -> str:
    """Return a warning if the job requests no GPU although the cluster has some, else ""."""
    if not machine.gpus or without_unasked_gpus(wish.spec, machine, wish.project) is machine:
        return ""
    return (
        "no GPUs are asked for: the script imports nothing that uses one\nhint: resources.gpus_per_node=1 asks for one"
    )


def _no_buddies(wish: Request, machine: Machine) -> str:
    """Return a warning if the spec sets `checkpoint.buddy` (second copies of snapshots in another node's memory) and it
    has no effect, because the hosts share no disk and keep second copies on their disks; else "".
    """
    if not (wish.spec.checkpoint.buddy and machine.disks_apart):
        return ""
    return f"checkpoint.buddy does nothing on {wish.on}: its hosts have no disk in common, and keep second copies there"


def _print_warnings(words: Sequence[str]) -> None:
    """Print each warning on stderr; its further lines are hints."""
    for text in words:
        for line in f"warning: {text}".splitlines():
            news.say(line)


def _text_of(problem: Misfit) -> str:
    """Return the text of a problem with its hint."""
    return f"{problem.reason}\nhint: {problem.hint}"


def _is_in_project(wish: Request) -> bool:
    """Return whether nodes certainly have the interpreter that was checked on this machine, because it is in the
    project and ranks do not run in a container.
    """
    return Path(wish.python).is_relative_to(wish.project.path) and wish.spec.slurm.container is None


def python_problems(python: str, machine: Machine, spec: JobSpec) -> list[Misfit]:
    """Return a problem if `python`, the path of the interpreter of the ranks, does not exist, is no program, or is too
    old; else an empty list.

    Nothing is checked if nodes have interpreters of their own.
    """
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


def store_problems(machine: Machine, spec: JobSpec) -> list[Misfit]:
    """Return a problem if the packages for the object store in `checkpoint.copy_to` are not installed here; else an
    empty list, also if the nodes have a Python of their own, which cannot be checked from here.
    """
    if spec.checkpoint.copy_to is None or machine.own_python:
        return []
    from trainer.checkpoint_files.object_store import package_problem  # late: of use only where a store is named

    problem = package_problem(spec.checkpoint.copy_to)
    return [Misfit("checkpoint.copy_to", *problem)] if problem is not None else []


def _unset(wish: Request) -> Collection[str]:
    """Return the names of secrets without a value on this machine; none for a spec that another machine sent, since the
    values came with it.
    """
    return unset_secrets(wish.spec, Path(wish.project.path), os.environ) if wish.shipped is None else ()


def read_with_defaults(file: Path, overrides: Sequence[str], defaults: Defaults = ()) -> JobSpec:
    """Return the spec in the file with the cluster's defaults and the overrides; raise BadInput with all problems.

    `defaults` are pairs such as ("slurm.partition", "gpu"), for options that neither the file nor an override sets.
    Sections of plug-ins are loaded only if the spec cannot be read without them.
    """
    if file.suffix == ".py":
        hint = f"hint: `launch run {file}` runs it without one, `launch spec init --from {file}` writes one"
        raise BadInput(f"{file}: a Python script is no spec", hint)
    try:
        return read_spec(file, with_defaults(defaults, file, overrides))
    except BadInput:
        job = with_plugins(plugin_sections())
        if job == JOB:
            raise
        return read_spec(file, with_defaults(defaults, file, overrides, job), job)


def refuse(file: Path, problems: Collection[Misfit]) -> None:
    """Raise BadInput with the problems, each at its position in the file; do nothing if there are none."""
    if problems:
        raise BadInput(*problem_lines(file, problems))


def problem_lines(file: Path, problems: Collection[Misfit]) -> list[str]:
    """Return the lines of an error message about the problems, each at its position in the file."""
    lines = []
    for problem in problems:
        line, column = position(file.read_text(), problem.key)
        lines.append(f"{file}:{line}:{column}: {problem.key}: {problem.reason}")
        lines += [f"hint: {problem.hint}"] if problem.hint else []
    return lines


def plan_of(wish: Request, run_id: RunId, run_dir: Path, submitted_at: float) -> Plan:
    """Return the plan of the run with this id and directory, submitted at the Unix time `submitted_at`; its code has
    the digest "" until the code is frozen.
    """
    file = str(wish.file.resolve())
    place = RunIdentity(
        run_id, str(run_dir), wish.on, wish.cluster.kind, file, submitted_at, wish.defaults, wish.as_run.repeat,
        users_umask(),
    )  # fmt: skip
    code = FrozenCode("", len(wish.code.files), wish.code.bytes)
    machine = wish.cluster.machine(wish.spec)
    if wish.roles:
        plan = build_roles(wish.spec, wish.overrides, place, machine, wish.roles, code, wish.python)
    else:
        plan = build(wish.spec, wish.overrides, place, machine, wish.project, code, wish.python)
    told = wish.notifying.recipients if wish.notifying is not None else ()
    starts_at = plan.starts_at if wish.as_run.starts_at is None else wish.as_run.starts_at
    roles = (
        msgspec.structs.replace(one, first_attempt=wish.as_run.roles.get(parse_run_id(Path(one.run_dir).name), 1))
        for one in plan.roles
    )
    return msgspec.structs.replace(
        plan, told=tuple(one.label for one in told), awaited=wish.awaited, starts_at=starts_at, roles=tuple(roles)
    )


def prepare(
    file: Path, *, on: str, overrides: tuple[str, ...], shipped: Shipped | None = None
) -> tuple[Plan, CodeList]:
    """Return (the plan, the files that `submit` would freeze) for a run on the cluster `on`; nothing is started or
    written. Raise BadInput with all problems if the run cannot work there.

    `shipped` is the spec as another machine sent it, or None.
    """
    wish = check_on_cluster(read_request(file, on=on, overrides=overrides, shipped=shipped))
    root = registry.runs_root(Path(wish.project.path))
    run_id = new_run_id(wish.spec.name, taken(root))
    return plan_of(wish, run_id, root / run_id, time.time()), wish.code


def all_or_none(looks: Sequence[Callable[[], Request]], *, together: bool = False) -> list[Request]:
    """Return the requests that the functions `looks` read from specs, each checked on its cluster; raise BadInput with
    the problems of all.

    `together` marks them as submitted at once, so that the limit `queue.max_parallel` on how many of them are active
    counts.
    """
    wishes, problems = _each(looks, alone=len(looks) == 1)
    if not problems or not any(wish.cluster.checks_first for wish in wishes):
        wishes, more = _each(
            [partial(check_on_cluster, replace(wish, together=together)) for wish in wishes], alone=len(looks) == 1
        )
        problems += more
    if problems:
        raise BadInput(*problems)
    return wishes


def _each(steps: Sequence[Callable[[], Request]], *, alone: bool) -> tuple[list[Request], list[str]]:
    """Return (the requests that the functions `steps` returned, the lines of the problems that the others raised); with
    `alone`, raise the first error instead.
    """
    wishes, problems = list[Request](), list[str]()
    for step in steps:
        try:
            wishes.append(step())
        except BadInput as error:
            if alone:
                raise
            problems += error.lines
    return wishes, problems


def taken(root: Path) -> Callable[[RunId], bool]:
    """Return a function that returns whether a run id is in use, in the folder `root` or in the user's list of runs."""
    return lambda run_id: (root / run_id).exists() or registry.is_registered(run_id)
