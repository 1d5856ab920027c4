"""Make the plan of a run with several programs, called roles: one plan for each, with its own hosts and GPUs. Pure.
Below, `whole` is the run's spec, `specs` has the spec of each role by its name, and `machine` describes a node of the
cluster, or this machine, which plays all nodes of a local run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from launcher.plan.build import build, check, ranks_per_node
from launcher.plan.facts import Machine, Misfit, Project, RunIdentity
from launcher.plan.model import ROLES, FrozenCode, Plan
from launcher.plan.on_hosts import hosts_asked, with_hosts
from launcher.spec.model import JobSpec


def role_specs(spec: JobSpec) -> dict[str, JobSpec]:
    """Return {role: its spec}, the main role first, or an empty dict for a run of one program."""
    main = {name: structs.replace(spec, roles={}) for name, role in spec.roles.items() if role.spec is None}
    return main | {name: role.spec for name, role in spec.roles.items() if role.spec is not None}


def check_roles(whole: JobSpec, machine: Machine, projects: Mapping[str, Project]) -> list[Misfit]:
    """Return every problem of the roles' specs on this cluster, for each role and for all together.

    `whole` is the run's spec, and `projects` has the code of each role.
    """
    specs = {name: _with_gpus_asked(spec) for name, spec in role_specs(whole).items()}
    # What all nodes, or all GPUs, are enough for is asked of all roles together.
    alone = replace(machine, nodes=None, asked_gpus=None)
    found = []
    for name, spec in specs.items():
        of_place = _option_problems_on_hosts(whole, spec, machine) if machine.apart else _spare_problems_here(spec)
        for one in (*check(spec, alone, projects[name], ()), *of_place):
            found.append(Misfit(f"roles.{name}.{one.key}", one.reason, one.hint))
    if machine.disks_apart:
        found += _unseen_readiness(whole)
    together = _host_problems(specs, whole, machine) if machine.apart else _gpu_problems_here(specs, machine)
    return [*found, *together]


def _gpu_problems_here(specs: Mapping[str, JobSpec], machine: Machine) -> Iterator[Misfit]:
    """Yield a problem if the roles together ask for more GPUs than this machine has."""
    asked = sum(_gpus(spec) * spec.resources.nodes.max for spec in specs.values())
    if asked > len(machine.gpus):
        reason = f"ask for {asked} GPUs together, but this machine has {len(machine.gpus)}"
        yield Misfit("roles", reason, "write fewer at their resources.gpus_per_node")


def _host_problems(specs: Mapping[str, JobSpec], whole: JobSpec, machine: Machine) -> Iterator[Misfit]:
    """Yield a problem if the roles together ask for more nodes or GPUs of a node than there are, or if the spec sets
    `slurm.interface`, which a run with several roles cannot use.
    """
    firsts = first_hosts(whole)
    asked = max(firsts[name] + spec.resources.nodes.max for name, spec in specs.items())
    if machine.nodes is not None and asked > machine.nodes:
        there = "there is 1" if machine.nodes == 1 else f"there are {machine.nodes}"
        hint = "`colocate: ROLE` puts a role on the nodes of another one"
        yield Misfit("roles", f"ask for {asked} nodes together, but {there}", hint)
    most = len(machine.gpus) if machine.asked_gpus is None else machine.asked_gpus
    for names, gpus in _gpus_asked(specs, firsts):
        if gpus > most and len(names) > 1:
            reason = f"{', '.join(names)} ask for {gpus} GPUs of a node together, but it has {most}"
            yield Misfit("roles", reason, "write fewer at their resources.gpus_per_node")
    if machine.interface is not None:
        reason = "programs of one run find each other by the addresses of their nodes' names"
        yield Misfit("slurm.interface", reason, "leave it out")


def _unseen_readiness(whole: JobSpec) -> Iterator[Misfit]:
    """Yield a problem for each role that is ready once a file exists or a log has a line. It is called where each host
    has a disk of its own, on which other hosts cannot see the file or the log.
    """
    for name, role in whole.roles.items():
        way = role.ready
        if way is not None and (way.file or way.log):
            reason = "is on the disk of its host, which others do not see"
            yield Misfit(f"roles.{name}.ready", reason, "`port: true` or `path: /health` is seen from every host")


def _gpus_asked(specs: Mapping[str, JobSpec], firsts: Mapping[str, int]) -> Iterator[tuple[list[str], int]]:
    """Yield (names of roles that share nodes, number of GPUs that they ask for together on each node). `firsts` has the
    index of each role's first host; roles with the same first host share nodes.
    """
    for first in dict.fromkeys(firsts.values()):
        names = [name for name in specs if firsts[name] == first]
        yield names, sum(_gpus(specs[name]) for name in names)


def most_gpus_asked(whole: JobSpec) -> int:
    """Return the most GPUs that the roles of a run ask for on one node."""
    return max(gpus for _, gpus in _gpus_asked(role_specs(whole), first_hosts(whole)))


def _spare_problems_here(spec: JobSpec) -> Iterator[Misfit]:
    """Yield a problem if the role asks for a spare node, but has only one node in all. It is called where one machine
    plays all nodes, and a spare has to be one of them.
    """
    if spec.recovery.spares and spec.resources.nodes.max < 2:
        yield Misfit("recovery.spares", "a spare needs at least 2 nodes, got resources.nodes: 1")


def _option_problems_on_hosts(whole: JobSpec, spec: JobSpec, machine: Machine) -> Iterator[Misfit]:
    """Yield a problem for each option in `spec`, the spec of one role, that a role cannot have on a cluster, where each
    role keeps its nodes until the run ends.
    """
    nodes, time_s = spec.resources.nodes, whole.resources.time_s
    if nodes.min != nodes.max:
        yield Misfit("resources.nodes", "is a range, but nodes are divided among roles for good", "write one number")
    if spec.recovery.spares and not machine.elects:
        yield Misfit("recovery.spares", "nodes are divided among roles for good", "leave it out")
    if spec.resources.time_s not in (None, time_s):
        yield Misfit("resources.time", "all roles are one job", "write it in the main role, or beside `roles`")


def first_hosts(whole: JobSpec) -> dict[str, int]:
    """Return {role: index of the first of the run's hosts that it gets}.

    Roles follow one another, each with as many hosts as it has nodes; with `colocate` a role has those of another one.
    """
    firsts, free = dict[str, int](), 0
    specs = role_specs(whole)
    for name, spec in specs.items():
        if whole.roles[name].colocate is None:
            firsts[name], free = free, free + spec.resources.nodes.max
    return {name: firsts[whole.roles[name].colocate or name] for name in specs}


def build_roles(
    whole: JobSpec,
    overrides: tuple[str, ...],
    place: RunIdentity,
    machine: Machine,
    projects: Mapping[str, Project],
    code: FrozenCode,
    python: str,
) -> Plan:
    """Return the plan of the main role, which contains the plans of the others.

    `overrides` are the values of --set, `place` is the run's identity, `projects` has the code of each role and `code`
    the frozen copy of it all, and `python` is the interpreter of all ranks. Only roles that ask for a number of GPUs
    get any. A role with `restart: alone`, whose ranks are restarted one by one, has a plan for each rank.
    """
    plans: list[Plan] = []
    specs = {name: _with_gpus_asked(spec) for name, spec in role_specs(whole).items()}
    total = sum(_ranks(spec, machine) for spec in specs.values())
    firsts, taken = first_hosts(whole), dict[int, int]()
    left = machine.gpus
    for name, spec in specs.items():
        mine, left = left[: _gpus(spec) * spec.resources.nodes.max], left[_gpus(spec) * spec.resources.nodes.max :]
        share = machine
        if not machine.apart:
            share = replace(machine, cpus=max(1, machine.cpus * _ranks(spec, machine) // total), gpus=mine)
        alone = whole.roles[name].restart == "alone"
        each = ranks_per_node(spec.resources, machine)
        for part in range(_ranks(spec, machine) if alone else 1):
            where = place if not plans else replace(place, run_dir=_folder(place, f"{name}-{part}" if alone else name))
            asked = _spec_of_one_rank(spec, each) if alone else spec
            one = build(asked, overrides, where, share, projects[name], code, python)
            node, local = divmod(part, each) if alone else (0, 0)
            first = local * one.gpus_per_node
            if machine.apart:
                gpu, host = taken.get(firsts[name], 0) + first, firsts[name] + node
                one = structs.replace(one, first_host=host, first_gpu=gpu)
            else:
                one = _with_own_gpus(one, machine, mine[node * _gpus(spec) + first :])
            all_of_them, ports = whole.roles[name].restart == "all", whole.roles[name].ports
            plans.append(structs.replace(one, role=name, role_rank=part, restarts_all=all_of_them, ports=ports))
        taken[firsts[name]] = taken.get(firsts[name], 0) + _gpus(spec)
    main, *others = plans
    main = structs.replace(main, spec=structs.replace(main.spec, roles=whole.roles), roles=tuple(others))
    if not machine.elects:
        return main
    spares = max(spec.recovery.spares for spec in specs.values())
    return with_hosts(main, [("", "")] * (hosts_asked(main) + spares))


def _spec_of_one_rank(spec: JobSpec, ranks: int) -> JobSpec:
    """Return the spec of a single rank of a role, which gets one of `ranks` equal shares of the role's GPUs and memory
    on a node, and no spares.
    """
    asked = spec.resources
    memory_gb = None if asked.memory_gb is None else asked.memory_gb / ranks
    one, gpus = structs.replace(asked.nodes, min=1, max=1), (asked.gpus_per_node or 0) // ranks
    mine = structs.replace(asked, nodes=one, ranks_per_node=1, gpus_per_node=gpus, memory_gb=memory_gb)
    return structs.replace(spec, resources=mine, recovery=structs.replace(spec.recovery, spares=0))


def _folder(place: RunIdentity, name: str) -> str:
    """Return the run directory of the role `name`, below that of its run."""
    return f"{place.run_dir}/{ROLES}/{name}"


def _with_own_gpus(plan: Plan, machine: Machine, mine: Sequence[str]) -> Plan:
    """Return the plan with `mine`, GPUs of the one machine, divided among its nodes, which that machine plays: each
    gets the next `gpus_per_node` of them. A role that asks for none gets none, so that it does not see those of others.
    """
    if not machine.gpus:
        return plan
    each = plan.gpus_per_node
    nodes = [structs.replace(node, gpus=tuple(mine[node.index * each :][:each])) for node in plan.nodes]
    return structs.replace(plan, nodes=tuple(nodes))


def _with_gpus_asked(spec: JobSpec) -> JobSpec:
    """Return the spec of a role with 0 GPUs per node if it gives no number. In a run of one program that means all GPUs
    of each node, but several roles may share a node.
    """
    return structs.replace(spec, resources=structs.replace(spec.resources, gpus_per_node=_gpus(spec)))


def _gpus(spec: JobSpec) -> int:
    """Return how many GPUs the role asks for on each of its nodes."""
    return spec.resources.gpus_per_node or 0


def _ranks(spec: JobSpec, machine: Machine) -> int:
    """Return how many ranks the role has on all its nodes."""
    return ranks_per_node(spec.resources, machine) * spec.resources.nodes.max
