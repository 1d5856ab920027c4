"""The nodes of a batch job's allocation: which node of the plan each host is, its address, and which hosts are lost."""

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
from launcher.run.records import NODE_UNFIT, AgentRecord, Endpoint, Event, Exclusion
from launcher.states import Cause

ASK_S = 5.0  # how long a job's own supervisor waits for an answer about the job or its nodes
_REACH_S = 1.0
_SIGN_S = 2.0  # an agent leaves when its lease runs out, which is when it is lost here, and is back at once
STEP_S = 0.1


def with_allocated_hosts(plan: Plan, hosts: Mapping[str, str]) -> Plan:
    """Return the plan with its nodes on the allocated `hosts` (address by name), in their order: the first are as many
    as the run needs, the rest spares.

    If the spec names a network interface, the address stays empty, because only the host itself can find it.
    """
    left_open = plan.interface is not None
    return with_hosts(plan, [(host, "" if left_open else address) for host, address in hosts.items()])


def index_of(plan: Plan, host: str) -> int:
    """Return the index of the plan's node on this host; raise LaunchError if there is none."""
    for node in plan.nodes:
        if node.host == host:
            return node.index
    raise LaunchError(f"this machine is {host}, which is no node of the attempt's plan: {[n.host for n in plan.nodes]}")


def cause_without_end_record(queue: BatchSystem, host: str, since: float) -> tuple[Cause, str]:
    """Return (cause, text) of the failure of an attempt that left no end record before its job was started again.

    `host` was the attempt's first node, "" if unknown, and `since` its start as Unix time: the cause is that the node
    was lost if it is down or has rebooted since, otherwise a preemption.
    """
    taken = f"{queue.called} took {host or 'the nodes'} back without time to write how the attempt ended"
    if not host:
        return Cause.PREEMPTED, taken
    try:
        node = queue.nodes([host], limit_s=ASK_S).get(host)
    except Unreachable:
        return Cause.PREEMPTED, taken
    if node is not None and node.down:
        return Cause.NODE_LOST, f"{host}, the first node, is {node.text}"
    if node is not None and node.booted_at is not None and node.booted_at > since:
        return Cause.NODE_LOST, f"{host}, the first node, was rebooted"
    return Cause.PREEMPTED, taken


def lost_nodes(history: Collection[Event], attempt: int, plan: Plan, now: float) -> list[Exclusion]:
    """Return the hosts that were lost in attempt number `attempt` by the events in `history` and have not reported
    since, as exclusions that end `recovery.avoid_s` seconds after the time `now`.

    If this process's own host is among them, it was cut off itself; the result is then empty.
    """
    last: dict[int, Event] = {}
    for event in history:
        if event.attempt == attempt and event.node is not None and event.kind in ("agent_lost", "agent_joined"):
            last[event.node] = event
    if (own := last.get(0)) is not None and own.kind == "agent_lost":
        return []
    until = now + plan.spec.recovery.avoid_s
    return [
        Exclusion(plan.nodes[node].host, event.evidence or event.text, attempt, event.at, until)
        for node, event in sorted(last.items())
        if event.kind == "agent_lost" and node < len(plan.nodes)
    ]


def unfit_nodes(history: Collection[Event], attempt: int, plan: Plan, now: float) -> list[Exclusion]:
    """Return an exclusion for each host on which a device was found faulty in attempt number `attempt`, by the events
    in `history`: it is not to be used until `recovery.avoid_s` after the time `now`. A host counts even if its agent
    was started again since.
    """
    until = now + plan.spec.recovery.avoid_s
    found = {event.node: event for event in history if event.attempt == attempt and event.kind == NODE_UNFIT}
    return [
        Exclusion(plan.nodes[node].host, event.evidence, attempt, event.at, until)
        for node, event in found.items()
        if node is not None and node < len(plan.nodes)
    ]


def is_back(plan: Plan, attempt: AttemptDir, lost: Exclusion) -> bool:
    """Return whether the host `lost.host` is back: an agent has started there since the loss, and the machine answers,
    so that only the network to it was interrupted. Wait up to two seconds for the agent's record.
    """
    node = next((node.index for node in plan.nodes if node.host == lost.host), None)
    if node is None or not attempt.agent(node).exists():
        return False
    return _has_a_new_agent(plan, attempt.agent(node), lost.at) and _answers(attempt, node)


def _has_a_new_agent(plan: Plan, agent: Path, lost_at: float) -> bool:
    """Return whether the agent's record, the file `agent`, was written after the node was lost, at the Unix time
    `lost_at`; wait for that until two seconds after the loss.

    A record up to half a lease older counts as well, because the clocks of hosts differ.
    """
    since = lost_at - plan.spec.recovery.lease_s / 2
    deadline = time.monotonic() + min(_SIGN_S, lost_at + _SIGN_S - time.time())
    while not (is_new := agent.stat().st_mtime > since) and time.monotonic() < deadline:
        time.sleep(STEP_S)
    return is_new


def _answers(attempt: AttemptDir, node: int) -> bool:
    """Return whether the machine of the node's agent answers within a time limit when this process connects to it; a
    refused connection is an answer. Return False if its address is not recorded.
    """
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
