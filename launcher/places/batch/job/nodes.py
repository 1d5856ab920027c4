"""The nodes of an allocation: which is which of the plan's, how it is reached, which of them are lost."""

import socket
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from launcher.errors import LaunchError, Unreachable
from launcher.places.batch.batch import BatchSystem
from launcher.plan.model import Plan
from launcher.plan.on_hosts import with_hosts
from launcher.run.durable import readable
from launcher.run.layout import AttemptDir
from launcher.run.records import NODE_UNFIT, AgentRecord, Blame, Endpoint, Event
from launcher.states import Cause

_ASK_S = 5.0
_REACH_S = 1.0
_SIGN_S = 2.0  # an agent leaves when its lease runs out, which is when it is lost here, and is back at once
_STEP_S = 0.1


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


def what_took_the_node(queue: BatchSystem, host: str, since: float) -> tuple[Cause, str]:
    """Why a job was started anew although its attempt on this first host, begun then, left no last word."""
    taken = f"{queue.called} took {host or 'the nodes'} back without leaving time for a last word"
    if not host:
        return Cause.PREEMPTED, taken
    try:
        node = queue.nodes([host], limit_s=_ASK_S).get(host)
    except Unreachable:
        return Cause.PREEMPTED, taken
    if node is not None and node.down:
        return Cause.NODE_LOST, f"{host}, the first node, is {node.text}"
    if node is not None and node.booted_at is not None and node.booted_at > since:
        return Cause.NODE_LOST, f"{host}, the first node, was started anew"
    return Cause.PREEMPTED, taken


def lost_nodes(history: Collection[Event], attempt: int, plan: Plan, now: float) -> list[Blame]:
    """The hosts that were lost in this attempt and have not been heard of since.

    Where our own is among them, it was we who heard nobody: none of them is known to be lost.
    """
    last: dict[int, Event] = {}
    for event in history:
        if event.attempt == attempt and event.node is not None and event.kind in ("agent_lost", "agent_joined"):
            last[event.node] = event
    if (own := last.get(0)) is not None and own.kind == "agent_lost":
        return []
    until = now + plan.spec.recovery.avoid_s
    return [
        Blame(plan.nodes[node].host, event.evidence or event.text, attempt, event.at, until)
        for node, event in sorted(last.items())
        if event.kind == "agent_lost" and node < len(plan.nodes)
    ]


def unfit_nodes(history: Collection[Event], attempt: int, plan: Plan, now: float) -> list[Blame]:
    """The hosts on which a device was found unfit in this attempt: an agent that is heard there does not mend it."""
    until = now + plan.spec.recovery.avoid_s
    found = {event.node: event for event in history if event.attempt == attempt and event.kind == NODE_UNFIT}
    return [
        Blame(plan.nodes[node].host, event.evidence, attempt, event.at, until)
        for node, event in found.items()
        if node is not None and node < len(plan.nodes)
    ]


def is_back(plan: Plan, attempt: AttemptDir, lost: Blame) -> bool:
    """Whether its keeper has begun another agent on this host since it was lost, and it answers again: then not the
    host was gone but the way to it, or to us."""
    node = next((node.index for node in plan.nodes if node.host == lost.host), None)
    if node is None or not attempt.agent(node).exists():
        return False
    return _has_a_new_agent(plan, attempt.agent(node), lost.at) and _answers(attempt, node)


def _has_a_new_agent(plan: Plan, agent: Path, lost_at: float) -> bool:
    """The clock of the disk may differ from ours, but not by half a lease; the agent before is older than a whole."""
    since = lost_at - plan.spec.recovery.lease_s / 2
    deadline = time.monotonic() + min(_SIGN_S, lost_at + _SIGN_S - time.time())
    while not (is_new := agent.stat().st_mtime > since) and time.monotonic() < deadline:
        time.sleep(_STEP_S)
    return is_new


def _answers(attempt: AttemptDir, node: int) -> bool:
    """Whether anything there says anything: that nobody listens at this port is an answer too."""
    agent, own = readable(attempt.agent(node), AgentRecord), readable(attempt.endpoint, Endpoint)
    if agent is None or own is None:
        return False
    try:
        socket.create_connection((agent.address, own.port), _REACH_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
