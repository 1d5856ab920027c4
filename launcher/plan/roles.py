"""Specs of several programs of one run → a plan of each, with its share of the machine. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from launcher.plan.build import build, check, ranks_per_node
from launcher.plan.facts import Machine, Misfit, Project, RunIdentity
from launcher.plan.model import ROLES, FrozenCode, Plan
from launcher.spec.model import JobSpec


def role_specs(spec: JobSpec) -> dict[str, JobSpec]:
    """Return the spec of each role by name, the main one first; empty for a run of one program."""
    main = {name: structs.replace(spec, roles={}) for name, role in spec.roles.items() if role.spec is None}
    return main | {name: role.spec for name, role in spec.roles.items() if role.spec is not None}


def check_roles(specs: Mapping[str, JobSpec], machine: Machine, projects: Mapping[str, Project]) -> list[Misfit]:
    """Return everything that cannot work here: of each role, and of all together."""
    found = []
    for name, spec in specs.items():
        for one in check(spec, machine, projects[name], ()):
            found.append(Misfit(f"roles.{name}.{one.key}", one.reason, one.hint))
    asked = sum(_gpus(spec) for spec in specs.values())
    if asked > len(machine.gpus):
        reason = f"ask for {asked} GPUs together, but this machine has {len(machine.gpus)}"
        found.append(Misfit("roles", reason, "write fewer at their resources.gpus_per_node"))
    return found


def build_roles(
    specs: Mapping[str, JobSpec],
    whole: JobSpec,
    overrides: tuple[str, ...],
    place: RunIdentity,
    machine: Machine,
    projects: Mapping[str, Project],
    code: FrozenCode,
    python: str,
) -> Plan:
    """Return the plan of the main role, which contains those of the others; only roles that ask for a number of
    GPUs get any.
    """
    plans: list[Plan] = []
    total = sum(_ranks(spec, machine) for spec in specs.values())
    left = machine.gpus
    for name, spec in specs.items():
        mine, left = left[: _gpus(spec)], left[_gpus(spec) :]
        asked = spec.resources if mine else structs.replace(spec.resources, gpus_per_node=0)
        share = replace(machine, cpus=max(1, machine.cpus * _ranks(spec, machine) // total), gpus=mine)
        alone = whole.roles[name].restart == "alone"
        count = _ranks(spec, machine) if alone else 1
        for part in range(count):
            resources = structs.replace(asked, ranks_per_node=1) if alone else asked
            where = place if not plans else replace(place, run_dir=_folder(place, f"{name}-{part}" if alone else name))
            one = build(
                structs.replace(spec, resources=resources), overrides, where, share, projects[name], code, python
            )
            one = structs.replace(_with_own_gpus(one, machine, mine), role=name, role_rank=part)
            plans.append(structs.replace(one, restarts_all=whole.roles[name].restart == "all"))
    main, *others = plans
    return structs.replace(main, spec=structs.replace(main.spec, roles=whole.roles), roles=tuple(others))


def _folder(place: RunIdentity, name: str) -> str:
    return f"{place.run_dir}/{ROLES}/{name}"


def _with_own_gpus(plan: Plan, machine: Machine, mine: Sequence[str]) -> Plan:
    """Return the plan with only these GPUs, so that a role without any does not see those of the others."""
    if not machine.gpus:
        return plan
    each = plan.gpus_per_node
    nodes = [structs.replace(node, gpus=tuple(mine[node.index * each :][:each])) for node in plan.nodes]
    return structs.replace(plan, nodes=tuple(nodes))


def _gpus(spec: JobSpec) -> int:
    return (spec.resources.gpus_per_node or 0) * spec.resources.nodes.max


def _ranks(spec: JobSpec, machine: Machine) -> int:
    asked = spec.resources if spec.resources.gpus_per_node else structs.replace(spec.resources, gpus_per_node=0)
    return ranks_per_node(asked, machine) * asked.nodes.max
