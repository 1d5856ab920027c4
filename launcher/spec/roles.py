"""Read a file with `roles:`, several programs of one run, as the spec of its main role, which contains those of the
others. Each role's spec is the options common to all, overridden by its own. All problems are reported at once. `root`
is the tree of the whole file, `own` the options that a role sets itself, `job` the table of a spec's options; `specs`
has None for a role whose spec could not be read.
"""

from collections.abc import Iterator
from collections.abc import Mapping as Values
from functools import partial

from msgspec.structs import replace

from launcher.spec.checks import spares_need_nodes
from launcher.spec.fields import role_section
from launcher.spec.kinds.sections import Section
from launcher.spec.merging import merged
from launcher.spec.model import JobSpec, Recovery, Role
from launcher.spec.order import circle
from launcher.spec.problems import Gather, Problem, Wrong, shown
from launcher.spec.tree import Mapping, Mark, Node, Scalar

_KEY = "roles"


def has_roles(root: Node | None) -> bool:
    """Return whether the root of a file's tree is a mapping with the key `roles`; it is None for an empty file."""
    return isinstance(root, Mapping) and _KEY in root.entries


def parse_roles(root: Mapping, job: Section) -> JobSpec:
    """Return the spec of a run with roles; raise Wrong with every problem.

    It is the spec of the main role (`main: true`), or of the first if none is main, with the others in `roles`.
    """
    # In a pool spares are the run's, whose roles have more nodes together: the plan knows what each place can do.
    job = replace(job, checks=tuple(check for check in job.checks if check is not spares_need_nodes))
    gather = Gather()
    roles = gather.take(_KEY, job.by_key[_KEY].kind.parse, root.entries[_KEY].value)
    of_table, written = gather.problems, root.entries[_KEY].value
    names = (
        [entry.key.text for entry in written if isinstance(entry.value, Mapping)]
        if isinstance(written, Mapping)
        else []
    )
    gather = Gather()
    specs = {name: gather.take(name, partial(_spec_of, root, job, name), root) for name in names}
    problems = [*of_table, *(_with_full_key(root, problem) for problem in gather.problems)]
    problems += _relation_problems(root, roles) if roles is not None else ()
    problems += _port_problems(root, roles) if roles is not None else ()
    problems += _colocation_problems(root, roles, specs) if roles is not None else ()
    problems += _problems_of_lone_ranks(root, roles, specs) if roles is not None else ()
    if problems or roles is None:
        raise Wrong(*dict.fromkeys(problems))
    own = _own_role(root)
    whole = {name: role if name == own else replace(role, spec=specs[name]) for name, role in roles.items()}
    spec = specs[own]
    if spec is None:
        raise Wrong
    return replace(spec, roles=whole)


def _relation_problems(root: Mapping, roles: Values[str, Role]) -> Iterator[Problem]:
    """Yield a problem for each wrong relation between roles, such as several main ones, none that ends the run, unknown
    names, and cycles in `after` or `follows`.
    """
    mains = [name for name, role in roles.items() if role.main]
    whole = root.entries[_KEY].key.mark
    serves = next((name for name, role in roles.items() if role.ready and (role.ready.port or role.ready.path)), None)
    if not mains and serves:
        hint = "write main: true in the role with whose end the run has ended"
        yield Problem(whole, f"no role is the main one, and {serves} serves others: the run has no end", hint, (_KEY,))
    for name in mains[1:]:
        hint = "the run ends when its main role is done: take it out of one of them"
        yield Problem(_mark(root, name, "main"), f"{mains[0]} is the main role already", hint, (_KEY, name, "main"))
    for name, role in roles.items():
        for other in role.after:
            key, mark = (_KEY, name, "after"), _mark(root, name, "after")
            if other not in roles:
                yield Problem(mark, f"no role {shown(other)}", key=key, word=other, options=tuple(roles))
            elif roles[other].ready is None:
                hint = f"write ready: {{port: true}} in {other}, or another of its options"
                yield Problem(mark, f"nothing says when {other} is ready", hint, key)
        for other in role.follows:
            if other not in roles:
                key, mark = (_KEY, name, "follows"), _mark(root, name, "follows")
                yield Problem(mark, f"no role {shown(other)}", key=key, word=other, options=tuple(roles))
        which = "main" if role.main else "first"
        if name == _own_role(root) and role.follows:
            hint = f"write restart: all in {role.follows[0]}: then all roles start again with it"
            reason = f"the {which} role follows no other: with its ranks all roles would start again"
            yield Problem(_mark(root, name, "follows"), reason, hint, (_KEY, name, "follows"))
        if name == _own_role(root) and role.restart == "alone":
            hint = f"only roles beside the {which} one may have it"
            reason = f"ranks of the {which} role belong together"
            yield Problem(_mark(root, name, "restart"), reason, hint, (_KEY, name, "restart"))
    for word, reason, needs in (
        ("after", "none of these could ever start", {name: role.after for name, role in roles.items()}),
        ("follows", "each of these would start the others again", {name: role.follows for name, role in roles.items()}),
    ):
        if around := circle(needs):
            told = ", ".join(f"{one} {word} {two}" for one, two in zip(around, [*around[1:], around[0]], strict=True))
            hint = f"take {word} out of one of them"
            yield Problem(_mark(root, around[0], word), f"{reason}: {told}", hint, (_KEY, around[0], word))


def _colocation_problems(
    root: Mapping, roles: Values[str, Role], specs: Values[str, JobSpec | None]
) -> Iterator[Problem]:
    """Yield a problem for each role whose `colocate` names a role on whose nodes it cannot be: an unknown one, one that
    has no nodes of its own, or one with fewer nodes. Also yield one if the main role (the first, if none is main) has
    `colocate`.
    """
    for name, role in roles.items():
        other, key, mark = role.colocate, (_KEY, name, "colocate"), _mark(root, name, "colocate")
        if other is None:
            continue
        mine, theirs = specs.get(name), specs.get(other)
        if other not in roles:
            yield Problem(mark, f"no role {shown(other)}", key=key, word=other, options=tuple(roles))
        elif name == _own_role(root):
            hint, which = f"write colocate: {name} in {other}, or in another role", "main" if role.main else "first"
            yield Problem(mark, f"the nodes of the {which} role are its own, and others may be on them", hint, key)
        elif roles[other].colocate is not None:
            hint = f"write colocate: {roles[other].colocate}" if roles[other].colocate != name else ""
            yield Problem(mark, f"{other} has no nodes of its own", hint, key)
        elif mine is not None and theirs is not None and mine.resources.nodes.max > theirs.resources.nodes.max:
            hint = f"write resources.nodes: {theirs.resources.nodes.max}, or fewer"
            yield Problem(mark, f"{other} has fewer nodes than {name}", hint, key)


def _problems_of_lone_ranks(
    root: Mapping, roles: Values[str, Role], specs: Values[str, JobSpec | None]
) -> Iterator[Problem]:
    """Yield a problem for each role whose ranks restart alone but which has a range of nodes, or has spares of its own;
    neither has a meaning for it.
    """
    for name, role in roles.items():
        spec, own = specs.get(name), _own(root, name)
        if role.restart != "alone" or spec is None:
            continue
        nodes = spec.resources.nodes
        if nodes.min != nodes.max:
            entry = own.find("resources", "nodes")
            mark, key = entry.value.mark if entry is not None else root.mark, (_KEY, name, "resources", "nodes")
            reason, hint = "is a range, but each rank restarts alone", f"write nodes: {nodes.max}, or restart: role"
            yield Problem(mark, reason, hint, key)
        if (spares := own.find("recovery", "spares")) is not None and spec.recovery.spares:
            reason, key = "no node steps in for a rank that restarts alone", (_KEY, name, "recovery", "spares")
            yield Problem(spares.value.mark, reason, "leave it out, or write restart: role", key)


def _spec_of(root: Mapping, job: Section, name: str, _: Node) -> JobSpec:
    """Return the spec of the role `name`. Raise Wrong with its problems, whose keys begin within the role, such as
    run.script instead of roles.NAME.run.script.
    """
    allowed, own, gather = role_section(job), _own(root, name), Gather()
    for key in (entry.key for entry in own if entry.key.text not in allowed.by_key):
        above = Problem(key.mark, "is of all roles", f"write {key.text} beside `roles`", (key.text,))
        gather.add(above if key.text in job.by_key else allowed.unknown(key))
    gather.close()
    common = {key: entry for key, entry in root.entries.items() if key != _KEY}
    mine = {key: entry for key, entry in own.entries.items() if key in job.by_key}
    spec: JobSpec = job.parse(merged(Mapping(common, root.mark), Mapping(mine, own.mark)))
    if not _is_main(own):
        spec = replace(spec, recovery=_side_role_recovery(spec.recovery, own, root))
    return spec


def _with_full_key(root: Mapping, problem: Problem) -> Problem:
    """Return the problem with its key as the user wrote it. `learner.run.script` becomes `roles.learner.run.script`, or
    `run.script` if the option is beside `roles` and not in the role.
    """
    name, *key = problem.key
    above = bool(key) and str(key[0]) in root.entries and str(key[0]) not in _own(root, str(name)).entries
    return replace(problem, key=tuple(key) if above else (_KEY, name, *key))


def _port_problems(root: Mapping, roles: Values[str, Role]) -> Iterator[Problem]:
    """Yield a problem for each role whose `ready` names a port that the role does not have, and for each role with a
    port whose addresses would be in the same environment variable as those of another role: role `a` with port `b`, and
    a role `a_b`.
    """
    for name, role in roles.items():
        port = role.ready.port if role.ready is not None else False
        if isinstance(port, str) and port not in role.ports:
            hint, key = f"write ports: {port} in {name}, or port: true", (_KEY, name, "ready", "port")
            yield Problem(_mark(root, name, "ready"), f"no port {shown(port)}", hint, key, port, role.ports)
        for other in {f"{name}_{port}" for port in role.ports} & roles.keys():
            reason = f"the addresses of one of them and of role {other} would have the same variable"
            yield Problem(_mark(root, name, "ports"), reason, "give one of them another name", (_KEY, name, "ports"))


def _own_role(root: Mapping) -> str:
    """Return the name of the role whose spec contains those of the others: the main role, or the first if none is main;
    "" if there are no roles.
    """
    table = root.entries[_KEY].value
    names = [entry.key.text for entry in table] if isinstance(table, Mapping) else []
    return next((name for name in names if _is_main(_own(root, name))), names[0] if names else "")


def _is_main(own: Mapping) -> bool:
    """Return whether a role's options say `main: true`."""
    entry = own.find("main")
    return entry is not None and isinstance(entry.value, Scalar) and entry.value.text == "true"


def _side_role_recovery(recovery: Recovery, own: Mapping, root: Mapping) -> Recovery:
    """Return the recovery options of a role other than the main one: without limits on hangs and progress, unless such
    a limit is written in the role (`own`) or in the file beside the roles (`root`).

    Its ranks wait for requests and make no steps, so that silence is no hang.
    """
    said = {key for tree in (own, root) for key in ("hang_after", "no_progress") if tree.find("recovery", key)}
    if "hang_after" not in said:
        recovery = replace(recovery, hang_after_s=None, hang_auto=False)
    return recovery if "no_progress" in said else replace(recovery, no_progress=None)


def _own(root: Mapping, name: str) -> Mapping:
    """Return the options that are written in the role `name`, without those beside `roles`; an empty mapping if it has
    none.
    """
    entry = root.find(_KEY, name)
    return entry.value if entry is not None and isinstance(entry.value, Mapping) else Mapping({}, root.mark)


def _mark(root: Mapping, name: str, key: str) -> Mark:
    """Return the position of the option `key` of the role `name`, or of the whole file if it is not written."""
    entry = root.find(_KEY, name, key)
    return entry.value.mark if entry is not None else root.mark
