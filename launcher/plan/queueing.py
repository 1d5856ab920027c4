"""Remove a plan's options to wait once the wait is over, and divide the GPUs that it got among its nodes. Pure
functions.
"""

from collections.abc import Collection

from msgspec.structs import asdict, replace

from launcher.plan.facts import Misfit
from launcher.plan.model import Plan
from launcher.spec.model import JobSpec, QueueOptions

_OF_THIS_MACHINE = ("now", "slots")  # where a cluster counts what its nodes have, they say nothing new
_USUAL = asdict(QueueOptions())


def not_taken(queue: QueueOptions, taken: Collection[str], kind: str) -> list[Misfit]:
    """Return one problem for each queue option that the spec sets and that is not in `taken`, the options that clusters
    of this kind support.
    """
    asked = [key for key, value in asdict(queue).items() if value != _USUAL[key] and key not in _OF_THIS_MACHINE]
    hint = f"{kind} clusters know {', '.join(taken)}" if taken else "on this machine, `--on local`, it is known"
    return [Misfit(f"queue.{key}", f"is not known to {kind} clusters", hint) for key in asked if key not in taken]


def priority_problems(queue: QueueOptions, called: str) -> list[Misfit]:
    """Return a problem if the spec asks for a priority above 0, else an empty list. It is for a scheduler that lets
    users only lower their priority; `called` is its name for the message.
    """
    if queue.priority <= 0:
        return []
    hint = "give the others a negative one: `--set queue.priority=-10`"
    return [Misfit("queue.priority", f"{called} lets you put your jobs back, not forward", hint)]


def at_once(spec: JobSpec) -> JobSpec:
    """Return the spec without its conditions to wait (hold, start time, awaited runs, max_parallel), for a run whose
    wait is over.
    """
    return replace(spec, queue=replace(spec.queue, hold=False, at=None, after=(), max_parallel=None))


def begun(plan: Plan) -> Plan:
    """Return the plan without its conditions to wait (hold, start time, awaited runs, max_parallel), for a run whose
    wait is over.
    """
    return replace(plan, spec=at_once(plan.spec), starts_at=None, awaited=())


def may_wait_here(plan: Plan) -> bool:
    """Return whether the run may have to queue on a machine that plays all its nodes: it uses GPUs or sets a queue
    option.
    """
    return devices_of(plan) > 0 or plan.spec.queue != QueueOptions()


def devices_of(plan: Plan) -> int:
    """Return how many GPUs the run takes of a machine that plays all its nodes, roles included; a spare shares those of
    the node it replaces.
    """
    return plan.gpus_per_node * plan.nodes_max + sum(map(devices_of, plan.roles))


def with_devices(plan: Plan, devices: tuple[str, ...]) -> Plan:
    """Return the plan with the GPUs `devices`, as CUDA_VISIBLE_DEVICES names them, divided in order among its nodes and
    then those of the plans in `plan.roles`.
    """
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
