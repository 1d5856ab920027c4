"""A cluster of simulated agents around the pure coordinator: time, wires and machines are plain values.

Agents behave as the real ones: in order on each wire, ranks die with their agent, and an agent whose lease has run out
ends its ranks and leaves. What must never happen is checked at every effect.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Any

import msgspec

from launcher.clock import ENDING_S, lease_of_ranks
from launcher.coordinator.coordinator import Coordinator
from launcher.coordinator.effects import (
    Disconnected,
    Drain,
    EndAttempt,
    Finish,
    In,
    KeepHang,
    Move,
    Now,
    Out,
    ProvenDead,
    Record,
    RecordExit,
    Send,
    StoodStill,
    Tick,
)
from launcher.coordinator.policy import budget_of, restarts_by_cause
from launcher.ids import parse_run_id
from launcher.node.lifeline import RankNews
from launcher.plan.model import FrozenCode, NodePlan, Plan, RankCommand
from launcher.run.hangs import GroupTimes, HangReport, RankLook
from launcher.run.records import AttemptEnd, Event, ProcessId, RankExit, RunState
from launcher.spec.model import JobSpec, NodeRange, Recovery, Resources, RunOptions
from launcher.states import Cause
from launcher.wire.messages import (
    CheckLink,
    ContinueInPlace,
    End,
    Entered,
    Exited,
    Fault,
    Follow,
    Heartbeat,
    HeartbeatAck,
    HostLeaves,
    Join,
    Leads,
    LinkSeen,
    Look,
    Looked,
    RankHeartbeat,
    Ready,
    Settled,
    Start,
    Started,
    Stop,
    StopAsked,
    Stopped,
    ToAgent,
    ToCoordinator,
    Welcome,
)

WALL = 1_700_000_000.0
DEFAULT_RULES = Recovery()
_pids = count(1000)


def plan_of(
    nodes: int = 2,
    *,
    least: int | None = None,
    spares: int = 0,
    ranks_each: int = 2,
    time_s: float | None = None,
    rules: Recovery = DEFAULT_RULES,
) -> Plan:
    least = nodes if least is None else least
    resources, rules = Resources(NodeRange(least, nodes), time_s=time_s), msgspec.structs.replace(rules, spares=spares)
    return Plan(
        run_id=parse_run_id("job-0001"), name="job", cluster="local", cluster_kind="local", submitted_at=WALL,
        spec_file="job.yaml", project="/p", run_dir="/r", workdir="code",
        spec=JobSpec("job", RunOptions(script="x.py"), resources=resources, recovery=rules),
        overrides=(), entry=RankCommand("script", "x.py", (), "python", ()), setup=None,
        nodes=tuple(NodePlan(i, f"127.0.0.{i + 1}", i >= nodes, None) for i in range(nodes + spares)),
        nodes_min=least, nodes_max=nodes, ranks_per_node=ranks_each, cpus_per_rank=1, gpus_per_node=0, env={},
        secrets=(), code=FrozenCode("", 0, 0),
    )  # fmt: skip


@dataclass
class SimRank:
    number: int
    local: int
    pid: int
    step: int | None = None
    active_at: float = 0.0
    frozen: bool = False
    can_continue: bool | None = None
    resizes: bool = False
    goes_back: bool = False
    waits: bool = False
    exit: RankExit | None = None


@dataclass
class Agent:
    """One node: the agent's process and its ranks."""

    index: int
    process: ProcessId
    buried: ProcessId | None = None  # the agent before, which its supervisor has seen die
    alive: bool = True
    connected: bool = False
    introduced: bool = False  # the Join of this connection has arrived: what is sent to the node reaches this agent
    frozen: bool = False
    ready: bool = True
    mute_start: bool = False  # never answers a Start
    preparing: str = ""  # while it is not ready
    fetched: int | None = None  # bytes, while it brings a checkpoint to its disk
    copies: bool = False  # what its ranks saved last still gets its second copy
    ignores_stop: bool = False
    leaves: str = ""  # what tells that its host is about to go
    sick: str = ""  # what a check of its devices would show
    unfit: str = ""  # what one has shown
    generation: int = 0
    opens: Start | None = None  # its ranks are forked when there is a rank 0
    ranks: list[SimRank] = field(default_factory=list)
    told: list[ToCoordinator] = field(default_factory=list)  # of this generation, to be told again after a cut
    seq: int = 0
    sent_at: dict[int, float] = field(default_factory=dict)
    leased_at: float = 0.0
    answered: int = 0
    took_s: float = 0.0
    joined_at: float = 0.0
    news: RankNews | None = None  # that it has told on this connection

    @property
    def live(self) -> list[SimRank]:
        return [rank for rank in self.ranks if rank.exit is None]


def handled(coordinator: Coordinator, event: In, now: Now) -> list[Out]:
    """Have the coordinator handle the event as its server does; return the effects."""
    if isinstance(event, Heartbeat):
        answer = coordinator.acknowledge(event, now.mono)
        if answer is not None:
            return [Send(event.node, answer)]
    return coordinator.handle(event, now)


class Cluster:
    def __init__(
        self,
        plan: Plan,
        history: Iterable[Event] = (),
        attempt: int = 1,
        wall_jump: float = 0.0,
        used_s: float = 0.0,
    ) -> None:
        self.plan = plan
        self.mono = 100.0
        self.wall_jump = wall_jump
        self.events: list[Event] = list(history)
        self.own_events: list[Event] = []
        self.coordinator = Coordinator(plan, attempt, self.events, self.now, used_s=used_s)
        self.twin = Coordinator(plan, attempt, self.events, Now(self.mono, 5.0), used_s=used_s)
        self.agents: dict[int, Agent] = {}
        self.up: dict[int, deque[In]] = defaultdict(deque)
        self.down: dict[int, deque[ToAgent]] = defaultdict(deque)
        self.end: AttemptEnd | None = None
        self.broken = False
        self.said: dict[int, list[tuple[int, ToCoordinator]]] = defaultdict(list)  # with the generation it was said in
        self.sent: list[tuple[float, int, ToAgent]] = []
        self.exits: list[RankExit] = []
        self.hangs: dict[int, HangReport] = {}
        self.seen: dict[int, RankLook] = {}  # what a look at a rank would show
        self.entered: dict[int, list[GroupTimes]] = {}  # when a rank would tell to have entered collectives
        self.ahead_s: dict[int, float] = {}  # by how much the clock of a node is ahead
        self.heard_at: dict[ProcessId, float] = {}
        self.linked: set[int] = set()
        self.spoke: dict[int, ProcessId] = {}
        self.event: In = Tick()  # that is being handled
        self.stale_agents: dict[int, ProcessId] = {}  # as the coordinator knew them before that
        self.open_starts: dict[int, list[tuple[int, Start]]] = defaultdict(list)
        self.training = True
        self.checkpoint: int | None = None
        self.stuck: set[int] = set()  # ranks that make no progress; with one of them nobody does
        self.slow: dict[int, float] = {}  # nodes none of whose links carries more than that, a second; 0: nothing comes
        self.slow_links: dict[tuple[int, int], float] = {}
        self.zombies: set[int] = set()  # processes that may outlive what was decided: of frozen or stubborn agents

    @property
    def now(self) -> Now:
        return Now(self.mono, WALL + self.mono + self.wall_jump)

    @property
    def over(self) -> AttemptEnd:
        """Return how the attempt has ended; fail where it has not."""
        assert self.end is not None
        return self.end

    # -- the coordinator

    def feed(self, event: In) -> list[Out]:
        """Feed an event to the state machine and to its twin with another wall clock, and carry out the effects."""
        self.broken = True  # until every check has passed
        self.event = event
        self.stale_agents = {
            node.index: node.stale_agent for node in self.coordinator._nodes if node.stale_agent is not None
        }
        if isinstance(event, Join) and event.process == self.agents[event.node].process:
            self.agents[event.node].introduced = True
        out = handled(self.coordinator, event, self.now)
        twin = handled(self.twin, event, Now(self.mono, 5.0 - self.mono))
        assert [_timeless(one) for one in out] == [_timeless(one) for one in twin], "a wall clock decided something"
        for effect in out:
            self._carry_out(effect)
        self._note_heard(event)
        self._check_starts()
        deadline = self.coordinator.next_deadline()
        assert deadline is None or deadline > self.mono, "a deadline that is due already would spin"
        self.broken = False
        return out

    def _note_heard(self, event: In) -> None:
        match event:
            case Tick() | StoodStill() | ProvenDead() | Drain() | Move() | EndAttempt():
                pass
            case Disconnected(node=node):
                self.linked.discard(node)
            case Join(node=node, process=process):
                self.linked.add(node)
                self.spoke[node] = process
                self.heard_at[process] = self.mono
            case _ if event.node in self.linked:
                self.heard_at[self.spoke[event.node]] = self.mono
            case _:
                pass  # from the wire of an agent that is cut off: too late

    def _carry_out(self, effect: Out) -> None:
        assert self.end is None, f"{effect} after the end"
        match effect:
            case Send(node=node, message=message):
                self.sent.append((self.mono, node, message))
                agent = self.agents.get(node)
                if isinstance(message, Start):
                    self._check_clean(node, message)
                    self.open_starts[message.generation].append((node, message))
                if isinstance(message, ContinueInPlace):
                    self.open_starts[message.start.generation].append((node, message.start))
                if agent is not None and agent.alive and agent.connected and agent.introduced:
                    self.down[node].append(message)
            case Record(event=event):
                self._check_lost(event)
                self.events.append(event)
                self.own_events.append(event)
            case RecordExit(exit=exit_):
                self.exits.append(exit_)
            case KeepHang(number=number, report=report):
                self.hangs[number] = report
            case Finish(end=end, event=event):
                self.end = end
                self.events.append(event)
                self.own_events.append(event)

    # -- what must never happen

    def _check_clean(self, node: int, start: Start) -> None:
        """Check that no process of an older generation lives when the node starts a new one."""
        for agent in self.agents.values():
            live = agent.live if agent.process.pid not in self.zombies else []
            if start.joins and agent.index in (*dict(self.open_starts[start.generation]), *self._trains()):
                continue  # its ranks are told of the generation that they are in now, or will be once the new ones wait
            assert not live or agent.generation == start.generation, (
                f"generation {start.generation} starts on node {node} while node {agent.index} runs {agent.generation}"
            )

    def _check_starts(self) -> None:
        for generation, starts in self.open_starts.items():
            if all(start.joins for _, start in starts):
                continue  # it has not begun, and may never do
            by_place = sorted((start.group_rank, node, start) for node, start in starts)
            world = [start.first_rank + local for _, _, start in by_place for local in range(start.local_world_size)]
            first = by_place[0][2]
            assert world == list(range(first.world_size)), f"generation {generation} has ranks {world}"
            assert [place for place, _, _ in by_place] == list(range(first.group_world_size))
            assert by_place[0][1] == 0, "node 0 hosts the coordinator and must be in"
            assert len({node for _, node, _ in by_place}) == len(by_place)
            assert len({(start.master_addr, start.master_port) for _, _, start in by_place}) == 1
            assert self.plan.nodes_min <= len(by_place) <= self.plan.nodes_max
        assert sorted(self.open_starts) == list(range(1, len(self.open_starts) + 1))

    def _trains(self) -> tuple[int, ...]:
        """Members of a generation that others are about to join."""
        attempt = self.coordinator._attempt
        return attempt.current.members if attempt.joining is not None else ()

    def _check_lost(self, event: Event) -> None:
        if event.kind != "agent_lost" or event.node is None or isinstance(self.event, ProvenDead):
            return
        process = self.stale_agents.get(event.node, self.spoke[event.node])
        if isinstance(self.event, Join) and process == self.event.buried:
            return  # its own supervisor has seen it die
        if isinstance(self.event, Join) and self.event.process.boot_id != process.boot_id:
            return  # the machine was started anew since
        silent_s = self.mono - self.heard_at[process]
        lease_s = self.plan.spec.recovery.lease_s
        least_s = max(lease_s, lease_of_ranks(lease_s) + ENDING_S)
        assert silent_s >= least_s - 1e-6, f"given up after {silent_s} s: {event.text}"

    def check_budgets(self) -> None:
        for name, used in restarts_by_cause(self.events, 1 << 30).items():
            budget = budget_of(self.plan.spec.recovery, Cause(name))
            assert budget is not None
            ended = self.end is not None and self.end.cause == name and self.end.state.ended
            assert budget.restarts is None or used <= budget.restarts + ended, f"{name}: {used} of {budget.restarts}"

    # -- agents

    def boot(
        self, *indexes: int, ready: bool = True, machine: str = "boot-1", buries: bool = False, host: str = ""
    ) -> None:
        """Start an agent process on each of these nodes. `buries`: it knows that the one before is gone."""
        for index in indexes or range(len(self.plan.nodes)):
            before = self.agents.get(index)
            assert before is None or not before.alive
            process = ProcessId(host or f"host-{index}", machine, next(_pids), 1)
            buried = before.process if buries and before is not None else None
            self.agents[index] = Agent(index, process, buried=buried, ready=ready, leased_at=self.mono)
            self.connect(index)

    def connect(self, index: int) -> None:
        agent = self.agents[index]
        assert agent.alive
        if agent.connected:
            return
        agent.connected, agent.joined_at, agent.introduced, agent.news = True, self.mono, False, None
        self.down[index].clear()
        address = self.plan.nodes[index].address
        port = 20_000 + agent.process.pid
        replica_port = 40_000 + agent.process.pid if self.plan.disks_apart else 0
        ports = replica_port, 50_000 + agent.process.pid if self.plan.spec.recovery.health else 0
        self.up[index].append(Join(index, address, agent.process, port, agent.generation, agent.buried, *ports))
        self.up[index].append(HostLeaves(index, agent.leaves))
        if agent.unfit:
            self.up[index].append(Fault(index, False, agent.unfit, unfit=True))
        elif agent.ready:
            self.up[index].append(Ready(index))
        self.up[index].extend(agent.told)

    def say(self, index: int, message: ToCoordinator) -> None:
        agent = self.agents[index]
        if agent.alive and agent.connected and not agent.frozen:
            self.up[index].append(message)
            self.said[index].append((agent.generation, message))

    def host_leaves(self, index: int, text: str) -> None:
        """Something tells that this host is about to go; "": nothing does any more."""
        if self.agents[index].leaves != text:
            self.agents[index].leaves = text
            self.say(index, HostLeaves(index, text))

    def make_ready(self, index: int) -> None:
        if not self.agents[index].frozen and self.finds_fit(index):
            self.agents[index].ready = True
            self.say(index, Ready(index))

    def finds_fit(self, index: int) -> bool:
        """Return whether the agent's device check passes.

        If it finds a sick device, report a fault to the coordinator.
        """
        agent = self.agents[index]
        if agent.sick and not agent.unfit and self.plan.spec.recovery.health:
            agent.unfit, agent.ready = agent.sick, False
            self.say(index, Fault(index, False, agent.unfit, unfit=True))
        return not agent.unfit

    def cut(self, index: int) -> None:
        """The connection breaks; what was on its way is gone."""
        agent = self.agents[index]
        agent.connected = False
        self.down[index].clear()
        self.up[index] = deque(one for one in self.up[index] if isinstance(one, Disconnected | ProvenDead))
        self.up[index].append(Disconnected(index))

    def kill(self, index: int, *, proof: bool = True) -> None:
        """SIGKILL of an agent: its ranks die with it."""
        agent = self.agents[index]
        was_connected, agent.connected, agent.alive = agent.connected, False, False
        agent.ranks = []
        self.down[index].clear()
        if was_connected:
            self.up[index].append(Disconnected(index))
        if proof:
            self.up[index].append(ProvenDead(index, "its process is gone"))

    def freeze(self, index: int) -> None:
        agent = self.agents[index]
        agent.frozen = True
        self.zombies.add(agent.process.pid)

    def thaw(self, index: int) -> None:
        agent = self.agents[index]
        agent.frozen = False
        self._check_lease(agent)
        self.zombies.discard(agent.process.pid)

    def end_rank(self, number: int, tail: tuple[str, ...] = (), **how: Any) -> None:
        """A rank process ends by itself."""
        agent = next(agent for agent in self.agents.values() for rank in agent.live if rank.number == number)
        rank = next(rank for rank in agent.live if rank.number == number)
        self._end(agent, rank, tail, **{"code": 0} | how)

    def _end(self, agent: Agent, rank: SimRank, tail: tuple[str, ...] = (), **how: Any) -> None:
        log = f"logs/a0001.g{agent.generation:04d}/rank-{rank.number:05d}.log"
        if how.get("signal") is not None:
            how["code"] = None
        rank.exit = RankExit(agent.generation, rank.number, rank.local, agent.index, rank.pid, log=log, **how)
        told = Exited(agent.index, rank.exit, tail)
        agent.told.append(told)
        self.say(agent.index, told)
        if self.plan.disks_apart and not agent.live and not agent.copies:
            self.settle_copies(agent.index)

    def settle_copies(self, index: int) -> None:
        """Report to the coordinator that nothing that the agent's ranks saved waits for a second copy."""
        agent = self.agents[index]
        agent.copies = False
        told = Settled(index, agent.generation)
        agent.told.append(told)
        self.say(index, told)

    def finish_all(self) -> None:
        for agent in self.agents.values():
            for rank in agent.live:
                self._end(agent, rank, code=0, done=True)

    def _look(self, agent: Agent, message: Look) -> None:
        for rank in agent.live if message.generation == agent.generation else ():
            if message.times:
                told = tuple(self.entered.get(rank.number, ()))
                at = WALL + self.mono + self.ahead_s.get(agent.index, 0.0)
                self.say(agent.index, Entered(agent.index, message.number, rank.number, told, at, at))
                continue
            seen = self.seen.get(rank.number) or RankLook(rank.number, agent.index)
            state = "T" if rank.frozen else seen.state
            look = msgspec.structs.replace(seen, node=agent.index, state=state, step=rank.step)
            self.say(agent.index, Looked(agent.index, message.number, look))

    def _obey(self, agent: Agent, message: ToAgent) -> None:
        match message:
            case Welcome():
                agent.leased_at = max(agent.leased_at, agent.joined_at)
            case HeartbeatAck(seq=seq):
                sent_at = agent.sent_at.pop(seq, None)
                if sent_at is not None and sent_at >= agent.leased_at:
                    agent.answered, agent.took_s, agent.leased_at = seq, self.mono - sent_at, sent_at
            case CheckLink():
                self._measure(agent, message)
            case Look():
                self._look(agent, message)
            case Start():
                self._start(agent, message)
            case ContinueInPlace():
                self._go_on(agent, message)
            case Follow(generation=generation):
                if agent.opens is not None and agent.opens.generation == generation and not agent.mute_start:
                    self.fork(agent.index)
            case Stop():
                self._stop(agent, message)
            case End():
                agent.alive = agent.connected = False
                agent.ranks = []

    def _measure(self, agent: Agent, word: CheckLink) -> None:
        pair = min(agent.index, word.peer.node), max(agent.index, word.peer.node)
        rate = min(self.slow_links.get(pair, 1e9), *(self.slow.get(node, 1e9) for node in pair))
        self.say(agent.index, LinkSeen(agent.index, word.number, rate, 1e-4, "" if rate else "no answer"))

    def _start(self, agent: Agent, start: Start) -> None:
        assert not agent.live or agent.process.pid in self.zombies
        agent.generation, agent.opens = start.generation, start
        agent.ranks, agent.told = [], []
        if agent.mute_start:
            return
        if start.group_rank == 0:
            told = Leads(agent.index, start.generation)
            agent.told.append(told)
            self.say(agent.index, told)
        if start.group_rank == 0 or start.joins:
            self.fork(agent.index)

    def _go_on(self, agent: Agent, word: ContinueInPlace) -> None:
        """Keep those that stay, fork the others."""
        start, agent.told, kept = word.start, [], {rank.local: rank for rank in agent.ranks}
        assert agent.generation < start.generation
        if any(rank.exit is not None for rank in agent.ranks) and not self.finds_fit(agent.index):
            return
        agent.generation, agent.ranks = start.generation, []
        for local in range(start.local_world_size):
            number, rank = start.first_rank + local, kept[local]
            if number in word.survivors:
                rank.number = number
                agent.ranks.append(rank)
            else:
                assert rank.exit is not None or not rank.can_continue, "the place of a rank that stays"
                agent.ranks.append(SimRank(number, local, next(_pids), None, self.mono))
        pids = tuple(rank.pid for rank in agent.ranks)
        told: list[ToCoordinator] = [Started(agent.index, start.generation, pids, 30_000 + next(_pids))]
        for rank in agent.ranks:
            if rank.exit is not None:  # while the word was on its way
                rank.exit = msgspec.structs.replace(rank.exit, generation=start.generation, rank=rank.number)
                told.insert(0, Exited(agent.index, rank.exit))
        agent.told += told
        for one in told:
            self.say(agent.index, one)

    def fork(self, index: int) -> None:
        """The ranks of the generation that was to be started."""
        agent = self.agents[index]
        start, agent.opens = agent.opens, None
        assert start is not None
        agent.ranks = [
            SimRank(start.first_rank + local, local, next(_pids), None if start.joins else self.checkpoint, self.mono)
            for local in range(start.local_world_size)
        ]
        pids = tuple(rank.pid for rank in agent.ranks)
        told = Started(agent.index, start.generation, pids, 30_000 + next(_pids))
        agent.told.append(told)
        self.say(agent.index, told)

    def _stop(self, agent: Agent, stop: Stop) -> None:
        if agent.ignores_stop:
            self.zombies.add(agent.process.pid)
            return
        if agent.generation and agent.generation <= stop.generation:
            for rank in agent.live:
                how: dict[str, Any] = {"code": 0} if stop.grace_s else {"signal": 9}
                self._end(agent, rank, stopping=True, hung=rank.number in stop.hung, **how)
            if not stop.grace_s and any(
                rank.exit and (rank.exit.hung or not rank.exit.stopping) for rank in agent.ranks
            ):
                self.finds_fit(agent.index)
            agent.generation, agent.opens, agent.ranks = 0, None, []
        agent.told = []
        self.say(agent.index, Stopped(agent.index, stop.generation))
        if agent.ready:
            self.say(agent.index, Ready(agent.index))

    def _check_lease(self, agent: Agent) -> None:
        """Cut off for longer than its lease: it ends its ranks and leaves."""
        ends_at = agent.leased_at + lease_of_ranks(self.plan.spec.recovery.lease_s)
        if agent.alive and not agent.frozen and self.mono >= ends_at:
            self.kill(agent.index, proof=False)

    # -- time and delivery

    def deliver(self, index: int, *, up: bool, most: int = 1 << 30) -> None:
        """Deliver the messages of one connection, in order."""
        if up:
            for _ in range(min(most, len(self.up[index]))):
                if self.end is None:
                    self.feed(self.up[index].popleft())
            return
        agent = self.agents[index]
        for _ in range(min(most, len(self.down[index]))):
            if agent.alive and not agent.frozen and self.down[index]:
                self._obey(agent, self.down[index].popleft())

    def settle(self) -> None:
        """Deliver every message that is under way, until none is left."""
        while any(self.up[index] or self._can_read(agent) for index, agent in self.agents.items()) and self.end is None:
            for index in list(self.agents):
                self.deliver(index, up=True)
                self.deliver(index, up=False)

    def _can_read(self, agent: Agent) -> bool:
        return bool(self.down[agent.index]) and agent.alive and not agent.frozen

    def heartbeat(self, index: int, **how: Any) -> None:
        agent = self.agents[index]
        if not agent.alive or not agent.connected or agent.frozen:
            return
        agent.seq += 1
        agent.sent_at[agent.seq] = self.mono
        ranks = tuple(self._rank_heartbeat(rank, **how) for rank in agent.live)
        said: dict[str, Any] = {"preparing": agent.preparing, "answered": agent.answered, "took_s": agent.took_s}
        heartbeat = Heartbeat(index, agent.seq, agent.generation, ranks, agent.fetched, **said)
        news = RankNews.of(heartbeat, self.mono)
        if news.repeats(agent.news):
            heartbeat = msgspec.structs.replace(heartbeat, ranks=(), same=True)
        else:
            agent.news = news
        self.say(index, heartbeat)

    def _rank_heartbeat(self, rank: SimRank, **how: Any) -> RankHeartbeat:
        idle_s = self.mono - rank.active_at
        fields = {"reported": rank.step is not None, "step": rank.step, "checkpoint": self.checkpoint, **how}
        can: dict[str, Any] = {"can_continue": rank.can_continue, "resizes": rank.resizes}
        can["goes_back"] = rank.goes_back
        return RankHeartbeat(rank.number, idle_s, frozen=rank.frozen, waits=rank.waits, **can, **fields)

    def _train(self) -> None:
        """Make one step on all ranks, if none is missing or stuck."""
        joining = self.coordinator._attempt.joining
        waiting = joining.newcomers if joining is not None else set()
        live = [rank for agent in self.agents.values() if agent.index not in waiting for rank in agent.live]
        if not self.training or any(rank.number in self.stuck or rank.frozen for rank in live):
            return
        for rank in live:
            rank.step, rank.active_at = (rank.step or 0) + 1, self.mono

    def advance(self, seconds: float, *, deliver: bool = True, until: Callable[[], bool] = lambda: False) -> None:
        """Let this many seconds pass; every agent sends a heartbeat at each full second."""
        end = self.mono + seconds
        if deliver:
            self.settle()
        while self.mono < end and self.end is None and not until():
            deadline = self.coordinator.next_deadline()
            moment = min(end, float(int(self.mono) + 1), inf if deadline is None else deadline)
            self.mono = moment
            for agent in self.agents.values():
                self._check_lease(agent)
            if moment == int(moment):
                self._train()
                for index in self.agents:
                    self.heartbeat(index)
            if deliver:
                self.settle()
            if deadline is not None and self.mono >= deadline and self.end is None:
                self.feed(Tick())
                if deliver:
                    self.settle()

    # -- looking

    def state(self) -> RunState:
        return self.coordinator.snapshot(self.now)

    def starts(self, generation: int) -> dict[int, Start]:
        return dict(self.open_starts.get(generation, []))

    def stops(self, generation: int) -> list[tuple[int, Stop]]:
        return [(node, one) for _, node, one in self.sent if isinstance(one, Stop) and one.generation == generation]

    def recorded(self, kind: str) -> list[Event]:
        return [event for event in self.own_events if event.kind == kind]

    def ask_stop(self, kind: str, index: int = 0) -> None:
        self.say(index, StopAsked(index, kind))

    def fault(self, index: int, *, setup: bool, text: str, log: str | None = None) -> None:
        self.say(index, Fault(index, setup, text, log))


def _timeless(effect: Out) -> Out:
    match effect:
        case Record(event=event):
            return Record(_without(event, at=0.0))
        case Finish(end=end, event=event):
            return Finish(_without(end, ended_at=0.0), _without(event, at=0.0))
        case KeepHang(number=number, report=report):
            return KeepHang(number, msgspec.structs.replace(report, at=0.0))
        case _:
            return effect


def _without(record: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(record, **fields)
