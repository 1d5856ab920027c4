"""Whatever happens in whatever order, the coordinator keeps its promises and comes to an end."""

from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, event, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from simulated_cluster import Cluster, plan_of

from launcher.agent.coordinator import ProvenDead
from launcher.spec.model import Budget, Recovery
from launcher.words import State

RULES = Recovery(
    user_error=Budget(2, 0.5, 2.0),
    out_of_memory=Budget(2),
    killed=Budget(4, 0.5, 4.0),
    hang=Budget(2),
    communication=Budget(3),
    node_lost=Budget(4),
    launcher_fault=Budget(2),
    hang_after_s=20.0,
    no_progress=8,
)
NODES = st.integers(0, 4)
ENDS = st.sampled_from([
    {"signal": 9}, {"signal": 9, "oom": True}, {"signal": 15}, {"code": 3}, {"code": 75}, {"code": 0},
    {"code": 1, "error": "ValueError: x", "where": "a.py:1 in f"}, {"signal": 6, "done": True},
    {"code": 1, "error": "RuntimeError: Connection closed by peer"}, {"code": 1, "error": "MemoryError: y"},
])  # fmt: skip
CALM_ROUNDS = 40  # of 30 s


class Storm(RuleBasedStateMachine):
    """Random weather over a small cluster; the promises are checked by the cluster itself at each effect."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(plan_of(1))
        self.calm = False

    @initialize(
        nodes=st.integers(1, 3), less=st.integers(0, 2), spares=st.integers(0, 2), each=st.integers(1, 3),
        time_s=st.sampled_from([None, None, None, 200.0]), up=st.sampled_from([True, True, True, False]),
    )  # fmt: skip
    def begin(self, nodes: int, less: int, spares: int, each: int, time_s: float | None, up: bool) -> None:
        plan = plan_of(nodes, least=max(1, nodes - less), spares=spares, ranks_each=each, time_s=time_s, rules=RULES)
        self.cluster = Cluster(plan)
        if up:
            self.all_come_up()
            self.cluster.advance(2)

    @property
    def over(self) -> bool:
        return self.cluster.end is not None

    def agent(self, index: int, **wanted: bool) -> bool:
        agent = self.cluster.agents.get(index)
        return agent is not None and all(getattr(agent, name) is value for name, value in wanted.items())

    # -- agents

    @rule(index=NODES, ready=st.booleans(), machine=st.sampled_from(["boot-1", "boot-1", "boot-2"]))
    def boots(self, index: int, ready: bool, machine: str) -> None:
        agent = self.cluster.agents.get(index)
        if index < len(self.cluster.plan.nodes) and (agent is None or not agent.alive):
            if agent is not None and agent.process.pid in self.cluster.zombies:
                return  # its keeper sees that it still lives
            if agent is not None and agent.process.boot_id != machine:
                self.cluster.excused.add(index)
            self.cluster.boot(index, ready=ready, machine=machine)

    @rule(index=NODES)
    def gets_ready(self, index: int) -> None:
        if self.agent(index, alive=True):
            self.cluster.make_ready(index)

    @rule()
    def all_come_up(self) -> None:
        for index in range(len(self.cluster.plan.nodes)):
            self.boots(index, True, "boot-1")
            self.gets_ready(index)
            self.is_back(index)
        self.cluster.settle()

    @rule(index=NODES, proof=st.booleans())
    def is_killed(self, index: int, proof: bool) -> None:
        if self.agent(index, alive=True, frozen=False):
            self.cluster.kill(index, proof=proof)

    @rule(index=NODES)
    def is_cut_off(self, index: int) -> None:
        if self.agent(index, alive=True, connected=True):
            self.cluster.cut(index)

    @rule(index=NODES)
    def is_back(self, index: int) -> None:
        if self.agent(index, alive=True, frozen=False, connected=False):
            self.cluster.connect(index)

    @rule(index=NODES)
    def freezes(self, index: int) -> None:
        if index and self.agent(index, alive=True, frozen=False):
            self.cluster.freeze(index)

    @rule(index=NODES)
    def thaws(self, index: int) -> None:
        if self.agent(index, alive=True, frozen=True):
            self.cluster.thaw(index)

    @rule(index=NODES, setup=st.booleans(), really=st.integers(0, 3))
    def has_a_fault(self, index: int, setup: bool, really: int) -> None:
        if not really and self.agent(index, alive=True, connected=True):
            self.cluster.fault(index, setup=setup, text="a fault")

    # -- ranks

    @rule(number=st.integers(0, 8), how=ENDS)
    def a_rank_ends(self, number: int, how: dict[str, Any]) -> None:
        live = [rank.number for agent in self.cluster.agents.values() if not agent.frozen for rank in agent.live]
        if live:
            self.cluster.end_rank(live[number % len(live)], **how)

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

    @rule(really=st.integers(0, 3))
    def all_finish(self, really: int) -> None:
        if not really and not self.cluster.zombies:
            self.cluster.finish_all()

    # -- wires and time

    @rule(index=NODES, up=st.booleans(), most=st.integers(1, 3))
    def something_arrives(self, index: int, up: bool, most: int) -> None:
        if self.agent(index):
            self.cluster.deliver(index, up=up, most=most)

    @rule()
    def everything_arrives(self) -> None:
        self.cluster.settle()

    @rule(index=NODES, behind=st.integers(0, 30))
    def an_old_message_arrives_again(self, index: int, behind: int) -> None:
        """A duplicate of what this node said in an earlier generation; wires keep order, so it is never newer."""
        agent = self.cluster.agents.get(index)
        said = self.cluster.said[index]
        if agent is None or not said or self.over:
            return
        generation, message = said[-1 - behind % len(said)]
        if generation < len(self.cluster.open_starts):
            self.cluster.feed(message)

    @rule(index=NODES)
    def stale_news_of_a_death(self, index: int) -> None:
        """About an agent long gone; this one is connected."""
        cluster = self.cluster
        quiet = self.agent(index, alive=True, connected=True) and not cluster.up[index] and not self.over
        known = quiet and cluster.spoke.get(index) == cluster.agents[index].process
        if known and index not in cluster.ghost_heard_at:
            cluster.feed(ProvenDead(index, "stale"))

    @rule(seconds=st.sampled_from([0.3, 1.0, 4.0, 16.0]), deliver=st.booleans())
    def time_passes(self, seconds: float, deliver: bool) -> None:
        self.cluster.advance(seconds, deliver=deliver)

    @rule(jump=st.sampled_from([-3600.0, 3600.0, 1e9]))
    def the_wall_clock_jumps(self, jump: float) -> None:
        self.cluster.wall_jump += jump

    @rule(kind=st.sampled_from(["cancel", "preempt", "preempt"]), index=NODES, really=st.integers(0, 3))
    def somebody_asks_to_stop(self, kind: str, index: int, really: int) -> None:
        if not really and self.agent(index, alive=True, connected=True):
            self.cluster.ask_stop(kind, index)

    # -- what must hold

    @invariant()
    def budgets_hold(self) -> None:
        self.cluster.check_budgets()

    @invariant()
    def it_is_never_asleep_for_good(self) -> None:
        """Not over: then a moment is set, or nobody has ever come."""
        awake = self.cluster.coordinator.next_deadline() is not None
        assert self.over or awake or self.cluster.plan.spec.recovery.hang_after_s is None

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
        cluster = self.cluster
        if cluster.broken:
            return  # what failed has been said
        for index, agent in list(cluster.agents.items()):
            if agent.frozen:
                cluster.thaw(index)
            if agent.alive and not agent.connected:
                cluster.connect(index)
            if agent.alive and not agent.ready:
                cluster.make_ready(index)
        cluster.stuck = set()
        for _ in range(CALM_ROUNDS):
            cluster.advance(30)
            if cluster.state().state is State.RUNNING:
                cluster.finish_all()
        assert cluster.end is not None, f"no end: {cluster.state()}"
        cluster.check_budgets()
        event(f"ended {cluster.end.state}, {cluster.end.cause}")
        event(f"{min(len(cluster.open_starts), 3)} generations or more")


Storm.TestCase.settings = settings(
    max_examples=200, stateful_step_count=60, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
TestStorm = Storm.TestCase
