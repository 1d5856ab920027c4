"""What a keeper knows of its run, its host and the attempt at hand; and its answers to the other keepers."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from typing import Self, assert_never

import msgspec

from launcher.clusters.keeping.agent_processes import AgentProcess, agent_process
from launcher.clusters.keeping.allocation import claim_attempt
from launcher.clusters.keeping.attempt_end import first_state, pass_on_stop, write_end
from launcher.clusters.keeping.own_log import log_to
from launcher.clusters.keeping.wakeup import Wakeup
from launcher.clusters.ssh.host import record_copies
from launcher.clusters.ssh.host.keeper_rpc import (
    Agreed,
    Ask,
    Begin,
    Begun,
    Declined,
    KeeperRpc,
    KeeperStatus,
    Members,
    Promise,
    Propose,
    Question,
    Replica,
    Reply,
)
from launcher.clusters.ssh.host.slots import Demand, Slots
from launcher.errors import Exit, Fenced
from launcher.plan.model import NodePlan, Plan
from launcher.plan.on_hosts import kept_at
from launcher.rundir.attempts import attempts, read_intent, read_plan
from launcher.rundir.durable import make_dir, read_record, sync_dir, write_record
from launcher.rundir.fence import check_fence, fence, raise_fence
from launcher.rundir.identity import this_process
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import AttemptEnd, Handle, Intent, RunState
from launcher.words import Cause, State


class KeeperState:
    """One keeper's place. The council's thread answers out of it, the main thread moves it; hence the lock."""

    council: KeeperRpc

    def __init__(self, run: RunDir, attempt: AttemptDir, plan: Plan, intent: Intent, node: int) -> None:
        self.run, self.attempt, self.plan, self.intent = run, attempt, plan, intent
        self.node = node  # among the keepers, for good
        self.host = plan.nodes[node].host
        self._first_nodes = {one.host: one for one in plan.nodes}
        self._hosts = tuple(one.host for one in plan.nodes)  # by their numbers among the keepers
        self.before: AttemptDir | None = None
        self.gpus: tuple[str, ...] | None = None  # that are ours, () with CPU slots; None: we wait
        self.fds: tuple[int, ...] = ()  # that hold them
        self.told = False  # to go on
        self.pledged = False  # to keep what it has until the leader says whether all do
        self.pledge = 0  # how often
        self.began = False  # all do
        self.leaderless = False
        self.since = time.monotonic()
        self.waits_for = ""
        self.proposal: Propose | None = None
        # Who counts, by their numbers among the keepers; several only while the leader changes it.
        self.rolls: tuple[frozenset[int], ...] = (frozenset(range(len(plan.nodes))),)
        self._rolls_version = (0, 0)  # of which attempt's leader, and which of its words
        self._promised: tuple[int, int] | None = None
        self._lock = threading.Lock()

    @classmethod
    def take(cls, run: RunDir, number: int, node: int) -> Self:
        attempt = run.attempt(number)
        return cls(run, attempt, read_plan(run, number), read_intent(attempt), node)

    @property
    def index(self) -> int:
        """Which node of the plan at hand this host is."""
        return self._index_in(self.plan)

    @property
    def leads(self) -> bool:
        return self.index == 0

    @property
    def members(self) -> frozenset[int]:
        """Those who count whatever becomes of a change that the leader has begun."""
        return frozenset.intersection(*self.rolls)

    @property
    def counted(self) -> frozenset[int]:
        """Those who count by any roll: each may have to agree."""
        return frozenset.union(*self.rolls)

    @property
    def stamp(self) -> int:
        return int(self.plan.submitted_at * 1000)

    @property
    def demand(self) -> Demand:
        return Demand(self.plan.gpus_per_node, self.plan.ranks_per_node * self.plan.cpus_per_rank)

    @property
    def cpus(self) -> int:
        return len(os.sched_getaffinity(0))

    @property
    def patience_s(self) -> float:
        return self.plan.spec.recovery.wait_s

    def node_plans(self) -> dict[str, NodePlan]:
        """All hosts that the keepers were started on."""
        return self._first_nodes

    # -- the attempt at hand

    def agent_process(self) -> AgentProcess:
        """Our node's agent: it has the GPUs that we hold and sees no others, none at all where we hold none."""
        return agent_process(self.plan, self.attempt, self.index, keep=self.fds, gpus=self.gpus)

    def log_to(self) -> None:
        make_dir(self.attempt.node(self.index))
        log_to(self.attempt.keeper_log if self.leads else self.attempt.node_keeper_log(self.index))

    def present(self) -> None:
        """Be known as the keeper of the attempt here: who asks, or ends it, looks for us."""
        if self.leads or self.plan.disks_apart:
            write_record(self.attempt.handle, Handle("local", keeper=this_process()))

    def open_attempt(self) -> None:
        """Take it up: there is one process that does, and nothing older writes here any more. Raises Fenced."""
        self.log_to()
        started = self.attempt.started if self.leads else self.attempt.node_started(self.index)
        if not claim_attempt(started):
            raise Fenced(f"attempt {self.attempt.number} of {self.run.path.name} has its keeper already")
        self.present()
        raise_fence(self.run, self.attempt.number)
        if self.leads:
            write_record(self.run.state, self._starting())

    def move(self, number: int) -> None:
        """On to this attempt, whose plan and intent are on disk."""
        with self._lock:
            attempt = self.run.attempt(number)
            self.plan, self.intent = read_plan(self.run, number), read_intent(attempt)
            self.before, self.attempt = self.attempt, attempt
            self.leaderless, self.proposal, self.pledged = False, None, False

    def take_over_stop(self) -> None:
        pass_on_stop(self.before, self.attempt)

    def let_go(self, slots: Slots) -> bool:
        """Give the slots back, unless we have promised to keep them."""
        with self._lock:
            if self.pledged or self.began:
                return False
            self.gpus = None
            slots.release()
            return True

    def begin_late(self) -> None:
        """The leader has begun. Raises Fenced where we had not pledged ourselves: then it has without us."""
        with self._lock:
            if not self.pledged:
                raise Fenced(f"attempt {self.attempt.number} has begun without {self.host}")
            self.began = True

    def take_back(self, pledge: int) -> None:
        """The leader does not ask for it any more, and has not begun: we had not heard its word."""
        with self._lock:
            if self.pledge == pledge and not self.began:
                self.pledged = False

    def stand(self, number: int) -> bool:
        """Our own vote for ourselves: whoever has it has not given it to another."""
        with self._lock:
            return isinstance(self._promise(number, self.node), Agreed)

    def check_lead(self, standings: Mapping[int, KeeperStatus]) -> None:
        """Raise Fenced where the run that we led goes on under another's lead."""
        check_fence(self.run, self.attempt.number)
        for one in standings.values():
            if one.attempt >= self.attempt.number and one.led_by != self.host:
                raise Fenced(f"attempt {one.attempt} is led by {one.led_by}, not by {self.host}")

    def accept(self, proposal: Propose) -> None:
        """The next attempt as its leader wants it, on this disk. Raises Fenced."""
        raise_fence(self.run, proposal.intent.attempt)
        if self.plan.disks_apart:
            attempt = self.run.attempt(proposal.intent.attempt)
            make_dir(attempt.path)
            sync_dir(self.run.attempts)
            write_record(attempt.plan, self.localized(proposal.plan))
            write_record(attempt.intent, proposal.intent)

    def localized(self, plan: Plan) -> Plan:
        """Another host's plan with what is this host's own."""
        return kept_at(plan, self.plan.run_dir, self.plan.entry.python)

    def discard(self) -> None:
        """The submitter is gone and nobody was told to go: there has never been such an attempt."""
        if self.plan.disks_apart and len(attempts(self.run)) == 1:
            shutil.rmtree(self.run.path, ignore_errors=True)

    def give_up(self, why: str) -> None:
        """Our own fault is said where people look; the others notice that we are gone."""
        if self.leads and read_record(self.attempt.end, AttemptEnd) is None:
            end = AttemptEnd(State.FAILED, Cause.LAUNCHER_FAULT, Exit.LAUNCHER_FAULT, 0.0, why)
            write_end(self.run, self.attempt, end, self.plan)

    def _starting(self) -> RunState:
        before = read_record(self.run.state, RunState)
        if before is None:
            return first_state(self.plan, self.attempt.number)
        if before.attempt == self.attempt.number and before.state is State.QUEUED:
            return msgspec.structs.replace(before, state=State.STARTING, message="starting agents")
        return before

    def _index_in(self, plan: Plan) -> int:
        for node in plan.nodes:
            if node.host == self.host:
                return node.index
        raise Fenced(f"{self.host} has no part in this attempt any more")

    # -- the others' questions

    def answering(self, bell: Wakeup) -> Callable[[Question], Reply]:
        """What the council calls, in its own thread."""

        def answer(question: Question) -> Reply:
            try:
                with self._lock:
                    return self._answer(question)
            finally:
                if not isinstance(question, Ask):
                    bell.wake()

        return answer

    def _answer(self, question: Question) -> Reply:
        match question:
            case Ask():
                return self._standing()
            case Begin(attempt=attempt):
                return self._pledge(attempt)
            case Begun(attempt=attempt, by_all=by_all):
                return self._begin(attempt, by_all=by_all)
            case Replica():
                return self._keep(question)
            case Members():
                return self._count(question)
            case Promise(attempt=attempt, node=node):
                return self._promise(attempt, node)
            case Propose():
                return self._consider(question)
            case _:
                assert_never(question)

    def _standing(self) -> KeeperStatus:
        return KeeperStatus(
            node=self.node,
            attempt=self.attempt.number,
            has_slots=self.gpus is not None,
            began=self.began,
            pledged=self.pledged,
            told=self.told,
            leads=self._leads_now(),
            leaderless=self.leaderless,
            waits_for=self.waits_for,
            promised=self._promised[0] if self._promised is not None else 0,
            led_by=self.plan.nodes[0].host,
        )

    def _leads_now(self) -> bool:
        try:
            return self.leads
        except Fenced:
            return False

    def _count(self, word: Members) -> Reply:
        """As the leader says, unless somebody has our vote: it may have been elected by those who counted then."""
        version = word.attempt, word.version
        if word.attempt != self.attempt.number or self._is_promised(above=word.attempt):
            return Declined(f"attempt {self.attempt.number} is the newest here, or a newer one is promised")
        if version <= self._rolls_version or not word.rolls:
            return Declined("a newer word of the leader is known here")
        self.rolls, self._rolls_version = tuple(map(frozenset, word.rolls)), version
        return Agreed()

    def _pledge(self, attempt: int) -> Reply:
        if attempt != self.attempt.number or self.gpus is None:
            return Declined("it has not what it needs")
        if self._is_promised(above=attempt):
            return Declined("a newer attempt is promised to another")
        self.pledged = True
        self.pledge += 1
        return Agreed()

    def _begin(self, attempt: int, *, by_all: bool) -> Reply:
        if attempt != self.attempt.number or not self.pledged or self._is_promised(above=attempt):
            return Declined("it has not pledged itself")
        self.began = self.began or by_all
        self.pledged = self.began
        return Agreed()

    def _keep(self, replica: Replica) -> Reply:
        """A record of whoever leads the attempt, or of a candidate that had our vote and says how the attempt ended."""
        if not 0 <= replica.node < len(self._hosts) or replica.attempt < self.attempt.number:
            return Declined(f"attempt {self.attempt.number} is the newest here")
        if not (self._leads_there(replica) or self._is_promised(above=replica.attempt - 1, to=replica.node)):
            return Declined(f"{self._hosts[replica.node]} does not lead attempt {replica.attempt}")
        record_copies.put(self.run, replica)
        return Agreed()

    def _leads_there(self, replica: Replica) -> bool:
        known, plan = self._newest()
        leads = plan.nodes[0].host == self._hosts[replica.node]
        deposed = self.leaderless and self._is_promised(above=replica.attempt)  # else the vote came to nothing
        return leads and replica.attempt >= known and not deposed

    def _newest(self) -> tuple[int, Plan]:
        """The attempt that was proposed to us, or that we are in."""
        if self.proposal is not None:
            return self.proposal.intent.attempt, self.proposal.plan
        return self.attempt.number, self.plan

    def _is_promised(self, above: int, to: int | None = None) -> bool:
        """A newer attempt than that is, to anybody or to this one."""
        return self._promised is not None and self._promised[0] > above and to in (None, self._promised[1])

    def _promise(self, attempt: int, node: int) -> Reply:
        """One vote an attempt, and none against a leader that we hear, nor for somebody who does not count any more."""
        if node not in self.members:
            return Declined("it does not count any more")
        if self._promised == (attempt, node):
            return Agreed()
        if not self.leaderless:
            return Declined("it hears its leader")
        if fence(self.run) >= attempt:
            return Declined(f"attempt {fence(self.run)} is the newest here")
        if self._is_promised(above=attempt - 1):
            return Declined(f"attempt {attempt} is promised to another")
        if self.plan.disks_apart and node != self.node:
            raise_fence(self.run, attempt)  # on a disk that all share the new leader does, once it has spoken
            make_dir(self.run.attempt(attempt).path)  # the number is used up: what we might propose has a newer one
        self._promised = (attempt, node)
        return Agreed()

    def _consider(self, proposal: Propose) -> Reply:
        """Of the leader whom we follow, or of the candidate that has our vote."""
        number, (newest, plan) = proposal.intent.attempt, self._newest()
        if number <= newest or self._is_promised(above=number):
            return Declined(f"attempt {newest} is the newest here, or a newer one is promised")
        if proposal.plan.nodes[0].host not in self._may_lead(number, newest, plan):
            return Declined(f"{proposal.plan.nodes[0].host} has not our vote")
        self.accept(proposal)
        self.proposal = proposal
        return Agreed()

    def _may_lead(self, number: int, newest: int, plan: Plan) -> set[str]:
        """A candidate that had our vote and came to nothing does not bind us for ever."""
        leader = set() if self._is_promised(above=number - 1) else {plan.nodes[0].host}
        voted = self._promised is not None and self._promised[0] > newest
        return leader | ({self._hosts[self._promised[1]]} if voted and self._promised else set())
