"""What a spec says of waiting, as places that take runs look at it. Pure."""

from collections.abc import Collection

from msgspec.structs import asdict, replace

from launcher.plan.facts import Misfit
from launcher.plan.model import Plan
from launcher.spec.model import JobSpec, QueueOptions

_OF_THIS_MACHINE = ("now", "slots")  # where a cluster counts what its nodes have, they say nothing new
_USUAL = asdict(QueueOptions())


def not_taken(queue: QueueOptions, taken: Collection[str], kind: str) -> list[Misfit]:
    """Of what a spec asks, all that this kind of cluster cannot do."""
    asked = [key for key, value in asdict(queue).items() if value != _USUAL[key] and key not in _OF_THIS_MACHINE]
    hint = f"{kind} clusters know {', '.join(taken)}" if taken else "on this machine, `--on local`, it is known"
    return [Misfit(f"queue.{key}", f"is not known to {kind} clusters", hint) for key in asked if key not in taken]


def only_behind(queue: QueueOptions, called: str) -> list[Misfit]:
    """Where a scheduler lets its users step back and never forward."""
    if queue.priority <= 0:
        return []
    hint = "give the others a negative one: `--set queue.priority=-10`"
    return [Misfit("queue.priority", f"{called} lets you put your jobs back, not forward", hint)]


def at_once(spec: JobSpec) -> JobSpec:
    """The spec of a run that has waited for all that it was to wait for."""
    return replace(spec, queue=replace(spec.queue, hold=False, at=None, after=(), max_parallel=None))


def begun(plan: Plan) -> Plan:
    """The plan of such a run."""
    return replace(plan, spec=at_once(plan.spec), starts_at=None, awaited=())


def may_wait_here(plan: Plan) -> bool:
    """Whether anything of a plan is to be waited for on a machine that plays all nodes."""
    return devices_of(plan) > 0 or plan.spec.queue != QueueOptions()


def devices_of(plan: Plan) -> int:
    """How many GPUs a run takes of a machine that plays all its nodes; a spare has those of whom it stands in for."""
    return plan.gpus_per_node * plan.nodes_max + sum(map(devices_of, plan.roles))


def with_devices(plan: Plan, devices: tuple[str, ...]) -> Plan:
    """With these GPUs, shared out in the order of the nodes, and of the roles."""
    each = plan.gpus_per_node
    roles, left = [], devices[each * plan.nodes_max :]
    for role in plan.roles:
        mine, left = left[: devices_of(role)], left[devices_of(role) :]
        roles.append(with_devices(role, mine))
    firsts = [0 if node.spare else node.index * each for node in plan.nodes]
    return replace(
        plan,
        roles=tuple(roles),
        nodes=tuple(
            replace(node, gpus=devices[first : first + each]) for node, first in zip(plan.nodes, firsts, strict=True)
        ),
    )
