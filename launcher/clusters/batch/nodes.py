"""The nodes of an allocation: which is which of the plan's, how it is reached, which of them are lost."""

import socket
from collections.abc import Collection, Mapping

from launcher.clusters.batch.queue import Queue
from launcher.errors import LaunchError, Unreachable
from launcher.plan.model import Plan
from launcher.plan.on_hosts import with_hosts
from launcher.rundir.records import Blame, Event
from launcher.words import Cause

_ASK_S = 5.0


def seated(plan: Plan, hosts: Mapping[str, str]) -> Plan:
    """The plan with its nodes on these hosts: the run's own first, what is more than they are spares.

    Where the spec names an interface, only the host itself knows its address: it is left open.
    """
    left_open = plan.interface is not None
    return with_hosts(plan, [(host, "" if left_open else address) for host, address in hosts.items()])


def index_of(plan: Plan, host: str) -> int:
    """Which node of the plan this machine is."""
    for node in plan.nodes:
        if node.host == host:
            return node.index
    raise LaunchError(f"this machine is {host}, which is no node of the attempt's plan: {[n.host for n in plan.nodes]}")


def resolved(name: str, hint: str) -> str:
    """The address that a host's name, or address, resolves to. `hint`: what to do where there is none."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise LaunchError(f"no address for host {name}: {error}", hint) from error
    return str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0])


def what_took_the_node(queue: Queue, host: str, since: float) -> tuple[Cause, str]:
    """Why a job was started anew although its attempt on this first host, begun then, left no last word."""
    taken = f"{queue.called} took {host or 'the nodes'} back without leaving time for a last word"
    if not host:
        return Cause.PREEMPTED, taken
    try:
        node = queue.node(host, limit_s=_ASK_S)
    except Unreachable:
        return Cause.PREEMPTED, taken
    if node is not None and node.down:
        return Cause.NODE_LOST, f"{host}, the first node, is {node.text}"
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
