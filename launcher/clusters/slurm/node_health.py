"""What Slurm knows of nodes that a run has lost."""

from collections.abc import Collection

from launcher.clusters.slurm.queries.nodes import read_nodes, show_nodes
from launcher.clusters.slurm.reach import ask
from launcher.errors import Unreachable
from launcher.plan.model import Plan
from launcher.rundir.records import Blame, Event
from launcher.words import Cause

_ASK_S = 5.0


def what_took_the_node(host: str, since: float) -> tuple[Cause, str]:
    """Why a job was started anew although its attempt on this first host, begun then, left no last word."""
    taken = f"Slurm took {host or 'the nodes'} back without leaving time for a last word"
    if not host:
        return Cause.PREEMPTED, taken
    try:
        node = read_nodes(ask(show_nodes([host]), limit_s=_ASK_S).out).get(host)
    except Unreachable:
        return Cause.PREEMPTED, taken
    if node is not None and node.is_down:
        reason = f": {node.reason}" if node.reason else ""
        return Cause.NODE_LOST, f"{host}, the first node, is {'+'.join(node.state).lower()}{reason}"
    if node is not None and node.booted_at is not None and node.booted_at > since:
        return Cause.NODE_LOST, f"{host}, the first node, was started anew"
    return Cause.PREEMPTED, taken


def lost_nodes(history: Collection[Event], attempt: int, plan: Plan, now: float) -> list[Blame]:
    """The hosts that were lost in this attempt and have not been heard of since."""
    last: dict[int, Event] = {}
    for event in history:
        if event.attempt == attempt and event.node is not None and event.kind in ("agent_lost", "agent_joined"):
            last[event.node] = event
    until = now + plan.spec.recovery.avoid_s
    return [
        Blame(plan.nodes[node].host, event.evidence or event.text, attempt, event.at, until)
        for node, event in sorted(last.items())
        if event.kind == "agent_lost" and node < len(plan.nodes)
    ]
