"""What one message costs the coordinator: as many operations among many nodes as among few."""

import sys

import pytest

from launcher.coordinator.coordinator import Coordinator
from launcher.coordinator.effects import Now, Send
from launcher.run.hangs import RankLook
from launcher.run.records import ProcessId, RankExit
from launcher.spec.model import Recovery
from launcher.wire.messages import (
    CheckLink,
    Exited,
    Heartbeat,
    Join,
    Leads,
    LinkSeen,
    Look,
    Looked,
    RankHeartbeat,
    Ready,
    Start,
    Started,
)
from tests.simulated_cluster import WALL, handled, plan_of

FEW, MANY = 20, 400
LOST_PEER = "torch.distributed.DistBackendError: NCCL error: remote process exited"


class Run:
    """A coordinator of this many nodes, each with two ranks; it counts the operations that each message takes."""

    def __init__(self, nodes, **rules):
        self.nodes, self.mono = nodes, 0.0
        plan = plan_of(nodes, least=nodes // 2, rules=Recovery(**rules))
        self.coordinator = Coordinator(plan, 1, [], self.now())
        self.sent, self.asked = [], []

    def now(self):
        self.mono += 0.0001
        return Now(self.mono, WALL + self.mono, self.mono)

    def handle(self, message):
        """Return how many operations of the interpreter the message takes."""
        count, now = 0, self.now()

        def trace(frame, event, _):
            nonlocal count
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            count += event == "opcode"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            out = handled(self.coordinator, message, now)
            self.coordinator.next_deadline()
        finally:
            sys.settrace(before)
        self.sent += [effect.message for effect in out if isinstance(effect, Send)]
        checks = [effect for effect in out if isinstance(effect, Send) and isinstance(effect.message, CheckLink)]
        self.asked += [(effect.node, effect.message.number) for effect in checks]
        return count

    def of_each(self, make, nodes):
        """Return the cost of the dearest such message of these nodes, but for the last, which may complete a phase."""
        return max([self.handle(make(node)) for node in nodes][:-1])


def join(node):
    return Join(node, "127.0.0.1", ProcessId("host", "boot", 1000 + node, 1), 20_000)


def heartbeat(node, step, idle_s=0.0):
    ranks = tuple(RankHeartbeat(2 * node + local, idle_s, reported=True, frozen=False, step=step) for local in (0, 1))
    return Heartbeat(node, step, 1, ranks)


def failed(node):
    return Exited(node, RankExit(1, 2 * node, 0, node, 5000, code=1, error=LOST_PEER))


def killed(node):
    return Exited(node, RankExit(1, 2 * node, 0, node, 5000, signal=15))


def costs(nodes, end):
    """Return the cost of the dearest message of each kind."""
    run = Run(nodes)
    all_nodes = [*range(1, nodes), 0]
    found = {"join": run.of_each(join, all_nodes), "ready": run.of_each(Ready, all_nodes)}
    assert sum(isinstance(message, Start) for message in run.sent) == nodes
    run.handle(Leads(0, 1))
    found["started"] = run.of_each(lambda node: Started(node, 1, (1, 2), 20_000), all_nodes)
    for step in (1, 2, 3):
        found["heartbeat"] = run.of_each(lambda node, step=step: heartbeat(node, step), all_nodes)
    found["same"] = run.of_each(lambda node: Heartbeat(node, 4, 1, same=True), all_nodes)
    found["end"] = run.of_each(end, all_nodes)
    assert run.coordinator.snapshot(run.now()).state == "running"
    return found


@pytest.mark.parametrize("end", [failed, killed])
def test_a_message_costs_as_much_among_many_nodes_as_among_few(end):
    few, many = costs(FEW, end), costs(MANY, end)
    assert {kind for kind in few if many[kind] > 1.5 * few[kind]} == set(), (few, many)


def test_a_measured_link_costs_as_much_among_many_nodes_as_among_few():
    """Each answer had all the others looked at that were still awaited."""

    def dearest(nodes):
        run = Run(nodes, health=True)
        for node in [*range(1, nodes), 0]:
            run.handle(join(node))
            run.handle(Ready(node))
        costs = []
        while not any(isinstance(message, Start) for message in run.sent):
            asked, run.sent = [*run.asked], []
            run.asked.clear()
            assert asked
            costs += [run.handle(LinkSeen(node, number, 1e9, 1e-4)) for node, number in asked][:-1]
        return max(costs)

    few, many = dearest(FEW), dearest(MANY)
    assert many <= 1.5 * few, (few, many)


def test_a_look_at_a_rank_costs_as_much_among_many_nodes_as_among_few():
    """Each answer had all ranks looked at for those that were still awaited."""

    def dearest(nodes):
        run = Run(nodes, hang_after_s=2.0, hang_at_start_s=2.0)
        every = [*range(1, nodes), 0]
        for make in (join, Ready, lambda node: Started(node, 1, (1, 2), 20_000), lambda node: heartbeat(node, 1)):
            run.of_each(make, every)
        for pause_s in (5.0, 1.0):  # at the second all nodes have been heard of lately
            run.mono += pause_s
            run.of_each(lambda node: heartbeat(node, 1, idle_s=5.0), every)
        (number,) = {message.number for message in run.sent if isinstance(message, Look)}
        looks = [Looked(node, number, RankLook(2 * node + local, node)) for node in every for local in (0, 1)]
        return max([run.handle(look) for look in looks][:-1])

    few, many = dearest(FEW), dearest(MANY)
    assert many <= 1.5 * few, (few, many)
