"""What a keeper knows, and its answers to the other keepers. A thread answers out of it while the keeper moves it."""

import threading
import time
from collections.abc import Callable, Mapping

from launcher.clusters.keeping.agent_processes import AgentProcess
from launcher.clusters.keeping.wakeup import Wakeup
from launcher.clusters.ssh.host import record_copies
from launcher.clusters.ssh.host.attempt_on_host import AttemptOnHost
from launcher.clusters.ssh.host.election import Election
from launcher.clusters.ssh.host.keeper_messages import (
    Agreed,
    Ask,
    Begin,
    Begun,
    Declined,
    KeeperQuestion,
    KeeperReply,
    KeeperStatus,
    Members,
    Promise,
    Propose,
    Replica,
)
from launcher.clusters.ssh.host.keeper_rpc import KeeperRpc
from launcher.clusters.ssh.slots.take import Slots
from launcher.errors import Fenced
from launcher.plan.model import Plan
from launcher.rundir.durable import make_dir
from launcher.rundir.fence import check_fence, fence, raise_fence
from launcher.rundir.layout import AttemptDir, RunDir


class Readiness:
    """What this host has for the run, and whether it may still give it back: all hosts of a run begin together.

    It has what it needs ─► pledged: it keeps that until the leader says whether all do ─► it begins, or is free again.
    """

    def __init__(self, lock: threading.RLock, host: str) -> None:
        self._lock, self._host = lock, host
        self.told = False  # to go on, by the submitter
        self.gpus: tuple[str, ...] | None = None  # that are ours, () with CPU slots; None: we wait
        self.fds: tuple[int, ...] = ()  # that hold them
        self.waits_for = ""
        self.pledged = False
        self.pledges = 0  # how often it has
        self.began = False

    def take(self, slots: Slots) -> None:
        """What the host has to give now, or why it is not enough."""
        self.gpus, self.fds = slots.try_take(), slots.fds
        self.waits_for = "" if self.gpus is not None else slots.ahead()

    def pledge(self) -> str:
        """Gives why not."""
        if self.gpus is None:
            return "it has not what it needs"
        self.pledged = True
        self.pledges += 1
        return ""

    def begin(self, *, by_all: bool) -> str:
        """All have pledged themselves, or not all have. Gives why it does neither begin nor let go."""
        if not self.pledged:
            return "it has not pledged itself"
        self.began = self.began or by_all
        self.pledged = self.began
        return ""

    def begin_late(self, attempt: int) -> None:
        """The leader has begun. Raises Fenced where we had not pledged ourselves: then it has without us."""
        with self._lock:
            if not self.pledged:
                raise Fenced(f"attempt {attempt} has begun without {self._host}")
            self.began = True

    def take_back(self, pledge: int) -> None:
        """The leader does not ask for it any more, and has not begun: we had not heard its word."""
        with self._lock:
            if self.pledges == pledge and not self.began:
                self.pledged = False

    def let_go(self, slots: Slots) -> bool:
        """Give the slots back, unless we have pledged ourselves to keep them."""
        with self._lock:
            if self.pledged or self.began:
                return False
            self.gpus = None
            slots.release()
            return True


class KeeperState:
    """One keeper of a run: the attempt at hand, what this host has for it, its votes, and its way to the others."""

    rpc: KeeperRpc

    def __init__(self, run: RunDir, number: int, node: int) -> None:
        self._lock = threading.RLock()
        self.here = AttemptOnHost(run, number, node)
        self.node = node  # our number among the keepers, for good
        self.first_nodes = {one.host: one for one in self.plan.nodes}  # all hosts that keepers were started on
        self.ready = Readiness(self._lock, self.host)
        self.election = Election(node, [*self.first_nodes], number, self.plan.nodes[0].host)
        self.since = time.monotonic()

    @property
    def run(self) -> RunDir:
        return self.here.run

    @property
    def attempt(self) -> AttemptDir:
        return self.here.attempt

    @property
    def plan(self) -> Plan:
        return self.here.plan

    @property
    def host(self) -> str:
        return self.here.host

    @property
    def leads(self) -> bool:
        return self.here.leads

    @property
    def patience_s(self) -> float:
        return self.plan.spec.recovery.wait_s

    def agent(self) -> AgentProcess:
        return self.here.agent(self.ready.gpus, self.ready.fds)

    def move(self, number: int) -> None:
        """On to this attempt, whose plan is on disk."""
        with self._lock:
            self.here.move(number)
            self.election.move(number, self.plan.nodes[0].host)
            self.ready.pledged = False

    def stand(self, number: int) -> bool:
        """Our own vote for ourselves: whoever has it has not given it to another."""
        with self._lock:
            return not self._vote(number, self.node)

    def check_lead(self, statuses: Mapping[int, KeeperStatus]) -> None:
        """Raise Fenced where the run that we led goes on under another's lead."""
        check_fence(self.run, self.attempt.number)
        for one in statuses.values():
            if one.attempt >= self.attempt.number and one.led_by != self.host:
                raise Fenced(f"attempt {one.attempt} is led by {one.led_by}, not by {self.host}")

    def check_part_in(self, attempt: int) -> None:
        """Raise Fenced where the run is in a newer attempt, and nobody has proposed that to us."""
        if attempt > self.attempt.number and self.election.proposal is None:
            raise Fenced(f"attempt {attempt} goes on without {self.host}")

    def status(self) -> KeeperStatus:
        return KeeperStatus(
            node=self.node,
            attempt=self.attempt.number,
            has_slots=self.ready.gpus is not None,
            told=self.ready.told,
            began=self.ready.began,
            leads=self._leads_now(),
            leaderless=self.election.leaderless,
            waits_for=self.ready.waits_for,
            pledged=self.ready.pledged,
            promised=self.election.promised[0] if self.election.promised is not None else 0,
            led_by=self.election.leader,
        )

    def answering(self, wakeup: Wakeup) -> Callable[[KeeperQuestion], KeeperReply]:
        """What is called in the other thread for each question."""

        def answer(question: KeeperQuestion) -> KeeperReply:
            if isinstance(question, Ask):
                with self._lock:
                    return self.status()
            try:
                with self._lock:
                    why = self._against(question)
            finally:
                wakeup.wake()
            return Declined(why) if why else Agreed()

        return answer

    def _against(self, question: Begin | Begun | Members | Promise | Propose | Replica) -> str:
        """Do what we are asked to, or say why not."""
        match question:
            case Begin(attempt=attempt):
                return self.election.against_leader_of(attempt) or self.ready.pledge()
            case Begun(attempt=attempt, by_all=by_all):
                return self.election.against_leader_of(attempt) or self.ready.begin(by_all=by_all)
            case Members():
                return self.election.count(question)
            case Promise(attempt=attempt, node=node):
                return self._vote(attempt, node)
            case Propose():
                return self._take_up(question)
            case Replica():
                return self._keep(question)

    def _vote(self, attempt: int, node: int) -> str:
        """What holds older attempts back is on disk before the vote is given."""
        why = self.election.against_vote(attempt, node, fence(self.run))
        if why or self.election.promised == (attempt, node):
            return why
        if self.plan.disks_apart and node != self.node:
            raise_fence(self.run, attempt)  # on a disk that all share the new leader does, once it has spoken
            make_dir(self.run.attempt(attempt).path)  # the number is used up: what we might propose has a newer one
        self.election.promised = (attempt, node)
        return ""

    def _take_up(self, proposal: Propose) -> str:
        why = self.election.against_proposal(proposal)
        if not why:
            self.here.prepare(proposal)
            self.election.proposal = proposal
        return why

    def _keep(self, replica: Replica) -> str:
        why = self.election.against_record(replica)
        if not why:
            record_copies.put(self.run, replica)
        return why

    def _leads_now(self) -> bool:
        try:
            return self.leads
        except Fenced:
            return False
