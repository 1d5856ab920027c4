"""Each kind of fault, alone: what `goodput.py --only` does to a training of ours, and to what of it."""

import contextlib
import signal

from lab import command

from launcher.run.identity import process_id
from launcher.run.processes import descendants
from tests.chaos.worlds import full_disk, killed, rank_signal, strike
from tests.lab.hosts import HostNode
from tests.lab.nodes import Cut, Node


def an_agent(world, target, *, leads=False):
    """Return the agent of a node that has a rank: node 0's, with which its attempt ends, or another's; or None."""
    found = [pid for note in world.newest_ranks() if (pid := world.agent_of(note)) and is_first(pid) == leads]
    return found[target % len(found)] if found else None


def is_first(agent):
    """Return whether this is the agent of node 0."""
    return command(agent).split(b"\0")[-2:] == [b"0", b""]


def agent_killed(*, leads=False):
    @contextlib.contextmanager
    def fault(world, target):
        agent = an_agent(world, target, leads=leads)
        yield agent is not None and strike(agent, signal.SIGKILL)

    return fault


@contextlib.contextmanager
def supervisor_killed(world, target):
    """On hosts one that does not lead."""
    agent = an_agent(world, target)
    found = [] if agent is None else [pid for pid in world.called("supervisor") if pid in world.of_machine(agent)]
    yield bool(found) and strike(found[0], signal.SIGKILL)


@contextlib.contextmanager
def nothing_warm(world, target):
    """A node's zygote, its standby and its rank: nothing is left there that has imported torch."""
    agent = an_agent(world, target)
    watchdogs = world.called("guard")
    theirs = [] if agent is None else [pid for pid in descendants(agent) if pid not in watchdogs]
    yield sum([strike(pid, signal.SIGKILL) for pid in theirs]) >= 3


def stopped(whole):
    """An agent that does not lead is stopped, and with `whole` all that its node has of the run."""

    @contextlib.contextmanager
    def fault(world, target):
        agent = an_agent(world, target)
        found = [] if agent is None else world.of_node(agent) if whole else [agent]
        hit = [(pid, process_id(pid)) for pid in found if strike(pid, signal.SIGSTOP)]
        yield bool(hit)
        for pid, identity in hit:
            if identity is not None and process_id(pid) == identity:
                strike(pid, signal.SIGCONT)

    return fault


@contextlib.contextmanager
def disk_filled(world, target):
    agent = an_agent(world, target)
    if agent is None:
        yield False
        return
    with full_disk(world, world.number_of(agent)) as hit:
        yield hit


def on_machine(harm, undo, *, leads=False):
    """The host of an agent is harmed, and mended afterwards."""

    @contextlib.contextmanager
    def fault(world, target):
        agent = an_agent(world, target, leads=leads)
        machine = None if agent is None else world.machines[world.number_of(agent)]
        if machine is not None:
            harm(machine)
        yield machine is not None
        if machine is not None:
            undo(machine)

    return fault


ONE_BY_ONE = {
    "kill-rank": rank_signal(signal.SIGKILL),
    "kill-agent": agent_killed(),
    "kill-zygote": killed("zygote"),
    "stop-rank": rank_signal(signal.SIGSTOP),
    "freeze-agent": stopped(whole=False),  # not soon after another death of that agent, for which it would stay away
    "kill-all-warm": nothing_warm,
    "kill-coordinator": agent_killed(leads=True),
    "freeze-node": stopped(whole=True),
    "full-disk": disk_filled,
}
ON_HOSTS = {
    "cut-both": on_machine(lambda host: host.cut(Cut.BOTH), Node.mend),
    "cut-link": on_machine(lambda host: host.cut(Cut.LINK), Node.mend),
    "power": on_machine(Node.power_off, HostNode.power_on),
    "power-leader": on_machine(Node.power_off, HostNode.power_on, leads=True),
}
LAST = {"kill-supervisor": supervisor_killed}  # nobody starts another one while its agent lives
