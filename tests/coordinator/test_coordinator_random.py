"""Whatever happens in whatever order, the coordinator keeps its promises and comes to an end."""

import random
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace
from simulated_cluster import Cluster, plan_of

from launcher.coordinator.effects import Drain, Move, ProvenDead
from launcher.spec.model import Budget, Recovery
from launcher.states import State
from launcher.wire.messages import HostLeaves
from tests.sizes import SCALE, SEED

RULES = Recovery(
    user_error=Budget(2, 0.5, 2.0),
    out_of_memory=Budget(2),
    killed=Budget(4, 0.5, 4.0),
    hang=Budget(2),
    communication=Budget(3),
    node_lost=Budget(4),
    launcher_fault=Budget(2),
    disk=Budget(3),
    hang_after_s=20.0,
    hang_at_start_s=20.0,
    no_progress=8,
)
NODES = st.integers(0, 4)
HOW_RANKS_END: list[dict[str, Any]] = ([
    {"signal": 9}, {"signal": 9, "oom": True}, {"signal": 15}, {"code": 3}, {"code": 75}, {"code": 0},
    {"code": 1, "error": "ValueError: x", "where": "a.py:1 in f"}, {"signal": 6, "done": True},
    {"code": 1, "error": "RuntimeError: Connection closed by peer"}, {"code": 1, "error": "MemoryError: y"},
    {"code": 22}, {"code": 22, "fenced": True}, {"code": 1, "error": "OSError: [Errno 28] No space left on device"},
])  # fmt: skip
LONG_STORMS = 150 * SCALE
CALM_ROUNDS = 40  # of 30 s


class Storm(RuleBasedStateMachine):
    """Random weather over a small cluster; the promises are checked by the cluster itself at each effect."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(plan_of(1))

    @initialize(
        nodes=st.integers(1, 3), less=st.integers(0, 2), spares=st.integers(0, 2), each=st.integers(1, 3),
        time_s=st.sampled_from([None, None, None, 200.0]), up=st.sampled_from([True, True, True, False]),
        apart=st.booleans(), mode=st.sampled_from(["warm", "hot"]), health=st.booleans(),
    )  # fmt: skip
    def begin(
        self,
        nodes: int,
        less: int,
        spares: int,
        each: int,
        time_s: float | None,
        up: bool,
        apart: bool,
        mode: str,
        health: bool,
    ) -> None:
        rules = replace(RULES, mode=mode, health=health)
        plan = plan_of(nodes, least=max(1, nodes - less), spares=spares, ranks_each=each, time_s=time_s, rules=rules)
        self.cluster = Cluster(msgspec.structs.replace(plan, disks_apart=apart))
        if up:
            self.all_come_up()
            self.cluster.advance(2)

    @property
    def over(self) -> bool:
        return self.cluster.end is not None

    def node(self, number: int) -> int:
        return number % len(self.cluster.plan.nodes)

    def agent(self, index: int, **wanted: bool) -> bool:
        agent = self.cluster.agents.get(index)
        return (
            agent is not None and not self.over and all(getattr(agent, name) is value for name, value in wanted.items())
        )

    # -- agents

    @rule(number=NODES, ready=st.booleans(), anew=st.booleans())
    def boots(self, number: int, ready: bool, anew: bool) -> None:
        index = self.node(number)
        agent = self.cluster.agents.get(index)
        if not self.over and (agent is None or not agent.alive):
            if agent is not None and agent.process.pid in self.cluster.zombies:
                return  # its supervisor sees that it still lives
            same = agent is None or not anew
            machine = "boot" if agent is None else agent.process.boot_id
            self.cluster.boot(index, ready=ready, machine=machine if same else f"{machine}+")

    @rule(number=NODES)
    def falls_sick(self, number: int) -> None:
        index = self.node(number)
        if self.agent(index, alive=True):
            self.cluster.agents[index].sick = "memory: expected 1, got 2"

    @rule(number=NODES, rate=st.sampled_from([0.0, 1e6, 1e9]))
    def has_slow_links(self, number: int, rate: float) -> None:
        self.cluster.slow[self.node(number)] = rate

    @rule(number=NODES)
    def gets_ready(self, number: int) -> None:
        index = self.node(number)
        if self.agent(index, alive=True):
            self.cluster.make_ready(index)

    @rule()
    def all_come_up(self) -> None:
        for index in range(len(self.cluster.plan.nodes)):
            self.boots(index, True, False)
            self.gets_ready(index)
            self.is_back(index)
        self.cluster.settle()

    @rule(number=NODES, proof=st.booleans())
    def is_killed(self, number: int, proof: bool) -> None:
        index = self.node(number)
        if self.agent(index, alive=True, frozen=False):
            self.cluster.kill(index, proof=proof)

    @rule(number=NODES)
    def is_cut_off(self, number: int) -> None:
        index = self.node(number)
        if self.agent(index, alive=True, connected=True):
            self.cluster.cut(index)

    @rule(number=NODES)
    def is_back(self, number: int) -> None:
        index = self.node(number)
        if self.agent(index, alive=True, frozen=False, connected=False):
            self.cluster.connect(index)

    @rule(number=NODES)
    def freezes(self, number: int) -> None:
        index = self.node(number)
        if index and self.agent(index, alive=True, frozen=False):
            self.cluster.freeze(index)

    @rule(number=NODES)
    def thaws(self, number: int) -> None:
        index = self.node(number)
        if self.agent(index, alive=True, frozen=True):
            self.cluster.thaw(index)

    @rule(number=NODES, setup=st.booleans(), really=st.integers(0, 9))
    def has_a_fault(self, number: int, setup: bool, really: int) -> None:
        index = self.node(number)
        if not really and self.agent(index, alive=True, connected=True):
            self.cluster.fault(index, setup=setup, text="a fault")

    @rule(number=NODES, really=st.integers(0, 3))
    def is_drained(self, number: int, really: int) -> None:
        if not really and not self.over:
            self.cluster.feed(Drain(self.node(number)))

    @rule(number=NODES, leaves=st.booleans())
    def its_host_goes(self, number: int, leaves: bool) -> None:
        index = self.node(number)
        if self.agent(index, alive=True):
            self.cluster.host_leaves(index, "/run/host-goes is there" if leaves else "")

    @rule(number=NODES, to=st.none() | NODES, really=st.integers(0, 2))
    def its_ranks_move(self, number: int, to: int | None, really: int) -> None:
        if not really and not self.over:
            self.cluster.feed(Move(self.node(number), None if to is None else self.node(to)))

    # -- ranks

    @rule(number=st.integers(0, 8), how=st.sampled_from(HOW_RANKS_END), after_s=st.sampled_from([0.0, 0.5, 3.0]))
    def a_rank_ends(self, number: int, how: dict[str, Any], after_s: float) -> None:
        self.cluster.advance(after_s)
        live = [rank.number for agent in self.cluster.agents.values() if not agent.frozen for rank in agent.live]
        if live:
            self.cluster.end_rank(live[number % len(live)], **how)

    @rule(resizes=st.booleans(), goes_back=st.booleans())
    def all_ranks_can_stay(self, resizes: bool, goes_back: bool) -> None:
        for agent in self.cluster.agents.values():
            for rank in agent.live:
                rank.can_continue, rank.resizes, rank.goes_back = True, resizes, goes_back
        self.cluster.advance(2.0)

    @rule()
    def those_that_join_are_there(self) -> None:
        for agent in self.cluster.agents.values():
            for rank in agent.live:
                rank.waits = True
        self.cluster.advance(2.0)

    @rule(number=st.integers(0, 8))
    def a_rank_gets_stuck(self, number: int) -> None:
        self.cluster.stuck = {number}

    @rule()
    def nothing_is_stuck(self) -> None:
        self.cluster.stuck = set()

    @rule()
    def a_checkpoint_is_made(self) -> None:
        steps = [rank.step for agent in self.cluster.agents.values() for rank in agent.live if rank.step is not None]
        self.cluster.checkpoint = max([*steps, self.cluster.checkpoint or 0])

    @rule(node=NODES)
    def copies_take_their_time(self, node: int) -> None:
        if node in self.cluster.agents:
            self.cluster.agents[node].copies = True

    @rule(node=NODES)
    def copies_are_made(self, node: int) -> None:
        agent = self.cluster.agents.get(node)
        if agent is not None and agent.copies and not agent.live and not agent.frozen:
            self.cluster.settle_copies(node)

    @rule(really=st.integers(0, 9))
    def all_finish(self, really: int) -> None:
        if not really and not self.cluster.zombies:
            self.cluster.finish_all()

    # -- wires and time

    @rule(number=NODES, up=st.booleans(), most=st.integers(1, 3))
    def something_arrives(self, number: int, up: bool, most: int) -> None:
        index = self.node(number)
        if self.agent(index):
            self.cluster.deliver(index, up=up, most=most)

    @rule()
    def everything_arrives(self) -> None:
        self.cluster.settle()

    @rule(number=NODES, behind=st.integers(0, 30))
    def an_old_message_arrives_again(self, number: int, behind: int) -> None:
        """A duplicate of what this node said in an earlier generation; wires keep order, so it is never newer."""
        index = self.node(number)
        agent = self.cluster.agents.get(index)
        said = self.cluster.said[index]
        if agent is None or not said or self.over:
            return
        generation, message = said[-1 - behind % len(said)]
        open_one = self.cluster.coordinator._attempt.generation
        if open_one is not None and generation < open_one.number:
            self.cluster.feed(message)

    @rule(number=NODES)
    def stale_news_of_a_death(self, number: int) -> None:
        """About an agent long gone; this one is connected."""
        index = self.node(number)
        cluster = self.cluster
        quiet = self.agent(index, alive=True, connected=True) and not cluster.up[index] and not self.over
        known = quiet and cluster.spoke.get(index) == cluster.agents[index].process
        if known and index not in cluster.stale_agents:
            cluster.feed(ProvenDead(index, "stale"))

    @rule(seconds=st.sampled_from([0.3, 1.0, 4.0, 16.0]), deliver=st.booleans())
    def time_passes(self, seconds: float, deliver: bool) -> None:
        self.cluster.advance(seconds, deliver=deliver)

    @rule(jump=st.sampled_from([-3600.0, 3600.0, 1e9]))
    def the_wall_clock_jumps(self, jump: float) -> None:
        self.cluster.wall_jump += jump

    @rule(kind=st.sampled_from(["cancel", "preempt", "preempt"]), number=NODES, really=st.integers(0, 9))
    def somebody_asks_to_stop(self, kind: str, number: int, really: int) -> None:
        index = self.node(number)
        if not really and self.agent(index, alive=True, connected=True):
            self.cluster.ask_stop(kind, index)

    # -- what must hold

    @invariant()
    def budgets_hold(self) -> None:
        self.cluster.check_budgets()

    @invariant()
    def it_is_never_asleep_for_good(self) -> None:
        assert self.over or self.cluster.coordinator.next_deadline() is not None

    @invariant()
    def the_snapshot_agrees(self) -> None:
        state = self.cluster.state()
        assert state.generation == len(self.cluster.open_starts)
        assert state.state.ended == (self.over and self.cluster.end.state.ended)  # type: ignore[union-attr]
        assert len({rank.rank for rank in state.ranks}) == len(state.ranks)
        if state.state is State.RUNNING:
            assert [rank.rank for rank in state.ranks] == list(range(state.world_size or 0))

    def teardown(self) -> None:
        """Calm weather: every agent that lives is in touch; then it must end, in success or for a named cause."""
        if not self.cluster.broken:  # else what failed has been said
            self.come_to_an_end()
            event(f"{min(len(self.cluster.open_starts), 4)} generations or more")

    def come_to_an_end(self) -> None:
        cluster = self.cluster
        for index, agent in list(cluster.agents.items()):
            if agent.frozen:
                cluster.thaw(index)
            if agent.alive and not agent.connected:
                cluster.connect(index)
            if agent.alive and not agent.ready:
                cluster.make_ready(index)
            agent.leaves = ""
            cluster.say(index, HostLeaves(index, ""))
        cluster.stuck = set()
        for _ in range(CALM_ROUNDS):
            for node in cluster.agents:
                self.copies_are_made(node)
            cluster.advance(30)
            if cluster.state().state is State.RUNNING:
                cluster.finish_all()
        assert cluster.end is not None, f"no end: {cluster.state()}"
        cluster.check_budgets()


Storm.TestCase.settings = settings(
    max_examples=200 * SCALE, stateful_step_count=60, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
TestStorm = Storm.TestCase


@pytest.mark.timeout(120 * SCALE)
def test_long_weather() -> None:
    """The same, longer and rougher: mostly a cluster at work, to which everything happens at some time."""
    met: Counter[str] = Counter()
    for seed in range(SEED * 1000, SEED * 1000 + LONG_STORMS):
        print("seed", seed)
        storm = Storm()
        live_through(storm, random.Random(seed))
        met.update(str(one.cause) for one in storm.cluster.recorded("failure"))
        met["generations"] += len(storm.cluster.open_starts)
    assert met["generations"] > 2 * LONG_STORMS
    assert set(met) >= {"killed", "user_error", "hang", "communication", "node_lost", "preempted", "out_of_memory"}


def live_through(storm: Storm, draw: random.Random) -> None:
    nodes = draw.randint(1, 4)
    least = max(1, nodes - draw.randint(0, 2))
    rules = replace(RULES, no_progress=None, killed=Budget(9), node_lost=Budget(9), communication=Budget(9))
    plan = plan_of(nodes, least=least, spares=draw.randint(0, 2), ranks_each=draw.randint(1, 3), rules=rules)
    storm.cluster = Cluster(msgspec.structs.replace(plan, disks_apart=draw.random() < 0.5))
    storm.all_come_up()
    for _ in range(80):
        happen(storm, draw)
        storm.budgets_hold()
        storm.it_is_never_asleep_for_good()
        storm.the_snapshot_agrees()
        if storm.over:
            return
    storm.come_to_an_end()


def happen(storm: Storm, draw: random.Random) -> None:
    node, flag = draw.randrange(6), draw.random() < 0.5
    weather: list[tuple[int, Any]] = [
        (30, lambda: storm.time_passes(draw.choice([0.3, 1.0, 4.0, 16.0]), draw.random() < 0.8)),
        (25, lambda: storm.something_arrives(node, flag, draw.randint(1, 4))),
        (12, lambda: storm.a_rank_ends(draw.randrange(12), draw.choice(HOW_RANKS_END), draw.choice([0.0, 0.5, 3.0]))),
        (5, lambda: storm.is_cut_off(node)),
        (8, lambda: storm.is_back(node)),
        (8, storm.all_come_up),
        (2, lambda: storm.freezes(node)),
        (4, lambda: storm.thaws(node)),
        (6, lambda: storm.an_old_message_arrives_again(node, draw.randrange(30))),
        (3, lambda: storm.is_killed(node, flag)),
        (6, lambda: storm.boots(node, flag, draw.random() < 0.3)),
        (2, lambda: storm.a_rank_gets_stuck(draw.randrange(6))),
        (2, storm.nothing_is_stuck),
        (1, lambda: storm.somebody_asks_to_stop("preempt", node, draw.randrange(3))),
        (4, lambda: storm.stale_news_of_a_death(node)),
        (2, lambda: storm.its_host_goes(node, flag)),
        (4, storm.a_checkpoint_is_made),
        (2, lambda: storm.copies_take_their_time(node)),
        (2, lambda: storm.copies_are_made(node)),
        (2, lambda: storm.the_wall_clock_jumps(draw.choice([-3600.0, 1e6]))),
    ]
    draw.choices([what for _, what in weather], [weight for weight, _ in weather])[0]()
