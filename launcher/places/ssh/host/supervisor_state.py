"""A supervisor's state and its answers to the run's other supervisors; a thread answers from it while the supervisor
changes it. Slots are the GPUs or cores that the host has for a run, and a lost host has no part in the run for now.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path

from launcher.clock import boottime
from launcher.errors import Fenced, LaunchError, said_by_the_system
from launcher.ids import attempt_token
from launcher.places.ssh.host import record_copies
from launcher.places.ssh.host.attempt_on_host import AttemptOnHost
from launcher.places.ssh.host.ballot import Ballot
from launcher.places.ssh.host.supervisor_messages import (
    Agreed,
    Ask,
    Cancelled,
    Commit,
    Declined,
    OpenAttempt,
    Prepare,
    RecordsSaid,
    Rejoin,
    Replica,
    Returning,
    Settled,
    SupervisorQuestion,
    SupervisorReply,
    SupervisorStatus,
    Vote,
)
from launcher.places.ssh.host.supervisor_rpc import SupervisorRpc, addresses_of
from launcher.plan.model import Plan
from launcher.run.attempts import read_intent
from launcher.run.durable import make_dir, readable
from launcher.run.fence import check_fence, raise_fence
from launcher.run.identity import boot_id
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import AttemptEnd, RunState
from launcher.run.shared_event import SharedEvent
from launcher.states import Cause
from launcher.supervisor.agent_processes import AdoptedAgent, AgentPlace, AgentProcess
from launcher.supervisor.attempt_end import ask_to_stop
from launcher.supervisor.slots.take import Alone, Slots
from launcher.supervisor.wakeup import Wakeup

_RETAKEN_S, _RETAKE_S = 2.0, 0.02  # a process that was killed may hold them for a moment
_ToBeDone = Prepare | Commit | Cancelled | OpenAttempt | Rejoin | Replica | Settled | Vote


class SlotsLost(LaunchError):
    """Raised if other runs hold the slots that this host needs for its part in a run that continues."""


class Readiness:
    """The slots that this host holds for the run, and whether it may still release them, so that all hosts begin
    together.

    A host with all the slots it needs *prepares*: it keeps them until the leader reports whether all hosts have
    prepared. Then it begins, or may release them again.
    """

    def __init__(self, lock: threading.RLock, host: str) -> None:
        self._lock, self._host = lock, host
        self.told = False  # to begin, by the submitter
        self.gpus: tuple[str, ...] | None = None  # that are ours, () with CPU slots; None: we wait
        self.fds: tuple[int, ...] = ()  # that hold them
        self.waits_for = ""
        self.held_back = False  # the run waits for what comes before any host is wanted
        self.prepared = False
        self.preparations = 0  # how often it has
        self.began = False
        self._slots: Slots | None = None
        self._are_agents = False  # an adopted agent holds them, and this process does not

    def take(self, slots: Slots) -> None:
        """Take the host's slots if as many are free as the run needs, else set the reason for users in `waits_for`."""
        self._slots = slots
        self.gpus, self.fds = slots.try_take(), slots.fds
        self.waits_for = "" if self.gpus is not None else slots.ahead()

    def adopt(self, slots: Slots) -> None:
        """Record these slots as this host's, though an agent holds them: one that an earlier supervisor of the run had
        started, and that continues. When that agent exits, `retake` takes the slots for this process.
        """
        self._slots, self._are_agents, self.gpus, self.fds, self.waits_for = slots, True, (), (), ""

    def retake(self, within_s: float = _RETAKEN_S) -> None:
        """Take the slots that an adopted agent, one which an earlier supervisor had started, held until it exited; do
        nothing if no such agent held them. Raise SlotsLost if they are not free within `within_s`.
        """
        slots, until = self._slots, time.monotonic() + within_s
        if slots is None or not self._are_agents:
            return
        self._are_agents = False
        self.take(slots)
        while self.gpus is None and time.monotonic() < until:
            time.sleep(_RETAKE_S)
            self.take(slots)
        if self.gpus is None:
            raise SlotsLost(f"{self._host} has left its slots to another run: {self.waits_for}")

    def prepare(self) -> str:
        """Keep the slots from now on, until the leader's message Commit says whether all hosts begin. Return "", or why
        this host cannot: it has no slots.
        """
        if self.gpus is None:
            return "it has not what it needs"
        self.prepared = True
        self.preparations += 1
        return ""

    def begin(self, *, by_all: bool) -> str:
        """Begin if `by_all` says that all hosts are prepared. Otherwise no longer count as prepared, so that the slots
        may be released, unless this host has begun already. Return "", or the reason if nothing was done because this
        host had not prepared.
        """
        if not self.prepared:
            return "it has not prepared"
        self.began = self.began or by_all
        self.prepared = self.began
        return ""

    def begin_late(self, attempt: int) -> None:
        """Record that this host begins the attempt: the leader reports that the attempt has begun, and its message to
        this host was missed.

        Raise Fenced if this host does not hold its slots, because the run then continues without it.
        """
        with self._lock:
            if self.gpus is None:
                raise Fenced(f"attempt {attempt} has begun without {self._host}")
            self.began = True

    def take_back(self, preparation: int) -> None:
        """Become free to release slots again, because the leader no longer asks to keep them and its message about that
        was lost.

        `preparation` is the number of the request to keep slots that this holds for: do nothing if a newer one has
        come.
        """
        with self._lock:
            if self.preparations == preparation and not self.began:
                self.prepared = False

    def give_back(self) -> None:
        """Release the slots at once, prepared or not; the caller has made sure that the run has ended, and that nothing
        of it is left on this host.
        """
        if self._slots is not None:
            self._slots.release()

    def let_go(self, slots: Slots) -> bool:
        """Release the slots and return True; return False if this host has prepared to begin."""
        with self._lock:
            if self.prepared or self.began:
                return False
            self.gpus = None
            slots.release()
            return True


class SupervisorState:
    """The state of one supervisor: the present attempt, the slots that its host has for it, its votes, and its
    connections.

    Each host of a run has one supervisor, and one of them leads the attempt.
    """

    rpc: SupervisorRpc  # set once it is known at which address to listen

    def __init__(self, run: RunDir, number: int, node: int) -> None:
        self._lock = threading.RLock()  # held while an answer is written to disk, however long that takes
        self._shown = threading.Lock()  # held only while values that `status` reports together change
        self._copying = threading.Lock()
        self._kept: dict[str, Replica] = {}  # what this process has made durable last of each record
        self.secret = read_intent(run.attempt(number)).token  # came over SSH; later tokens are made of it
        self.here = AttemptOnHost(run, number, node)
        self.node = node  # our number among the supervisors, for good
        self.first_nodes = {one.host: one for one in self.plan.nodes}  # all hosts that supervisors were started on
        self.ready = Readiness(self._lock, self.host)
        self.ballot = Ballot(run, node, [*self.first_nodes], number, on_disk=self.plan.disks_apart)
        self.roles_opened: dict[str, int] = {}  # the newest attempt of each role of which the leader has sent records
        self.accepted_by = frozenset(range(len(self.first_nodes)))  # hosts, of the attempt that this host leads
        self.returning = False  # it was restarted, and does not know the running attempt yet
        self.since = time.monotonic()
        self.to_be_told: Sequence[int] = ()  # hosts without the record of the end when this supervisor leaves
        self.coordinator_due_at = inf  # `boottime` from when on our coordinator should speak
        self.starts_from = 0.0  # `boottime` from when on no ranks of the last attempt run anywhere
        self.place: AgentPlace | None = None  # the standby that the attempt before has left to be the next one's agent
        self.adopted: AdoptedAgent | None = None  # whose supervisor was killed, and which runs on this host
        self._alone = Alone(self.plan.run_id)

    @property
    def run(self) -> RunDir:
        """Return the run that this supervisor supervises."""
        return self.here.run

    @property
    def attempt(self) -> AttemptDir:
        """Return the attempt that is running now."""
        return self.here.attempt

    @property
    def plan(self) -> Plan:
        """Return the plan of the present attempt."""
        return self.here.plan

    @property
    def host(self) -> str:
        """Return this host's name in the plan."""
        return self.here.host

    @property
    def leads(self) -> bool:
        """Return whether this host leads the present attempt."""
        return self.here.leads

    @property
    def leader(self) -> str:
        """Return the host that leads the present attempt."""
        return self.plan.nodes[0].host

    @property
    def patience_s(self) -> float:
        """Return the seconds for which hosts wait for each other, `recovery.wait` of the spec."""
        return self.plan.spec.recovery.wait_s

    @property
    def role_names(self) -> tuple[str, ...]:
        """Return the names of the run's side roles, those beside its main one, each of which is also the name of the
        role's folder. If the ranks of a role restart alone, each of them has a folder, and its name is returned
        instead.
        """
        return tuple(Path(one.run_dir).name for one in self.plan.roles)

    def agent(self, records_due: SharedEvent | None = None) -> AgentProcess:
        """Return a new agent for this host, not yet started, with the GPUs and slots that this host holds. If an agent
        was adopted (one that runs already, and whose supervisor was killed), return that one, but only once.

        The coordinator, if it runs in the agent, sets `records_due` when records are to be copied to other hosts at
        once. Raise SlotsLost if the slots that an adopted agent held until it exited cannot be taken again.
        """
        adopted, self.adopted = self.adopted, None
        if adopted is not None:
            return adopted
        self.ready.retake()
        agent = self.here.agent(self.ready.gpus, self.ready.fds, records_due)
        agent.place, self.place = self.place, None
        return agent

    def move(self, number: int) -> None:
        """Change to attempt `number`, whose plan is on disk, and forget that its predecessor's leader was lost."""
        with self._lock, self._shown:
            self.here.move(number)
            self.ballot.move()
            self.ready.prepared = False
            self.roles_opened.clear()
            self._alone.clear()

    def rejoin(self, said: OpenAttempt) -> None:
        """Change to the running attempt, which its leader reports in `said`, if that is newer than the present one, and
        record that this host takes part in it. That the attempt's plan has this host is not checked here.
        """
        with self._lock:
            if said.attempt > self.attempt.number:
                with suppress(Fenced):
                    raise_fence(self.run, said.attempt)
                self.here.prepare(said, self.first_nodes, attempt_token(self.secret, said.attempt))
            self.ballot.join(said)
        if said.attempt > self.attempt.number:
            self.move(said.attempt)

    def step_back(self) -> None:
        """Take no part in the run until this host rejoins: no attempt counts as prepared or begun here, and the other
        supervisors' requests are declined, except to cancel.
        """
        self.returning, self.ready.prepared, self.ready.began = True, False, False
        self.leader_answered()

    def has_ended(self) -> bool:
        """Return whether the present attempt's end record, as this host has it, says that the run has ended. Return
        False if there is none yet, or it cannot be read.
        """
        end = readable(self.attempt.end, AttemptEnd)
        return end is not None and end.state.ended

    def running_attempt(self) -> OpenAttempt | None:
        """Return the message that lets a lost host join the attempt that runs now and that this host leads. Return None
        if this host does not lead or waits to be elected, the attempt has not begun yet, or the run has ended with it.
        """
        if not self.leads or self.ballot.leaderless or not self.ready.began or self.has_ended():
            return None
        names, here = [node.host for node in self.plan.nodes], len(self.plan.nodes) - len(self.plan.away)
        return self.opening(self.attempt.number, names[:here], None, names[here:])

    def opening(self, number: int, hosts: Sequence[str], cause: Cause | None, away: Sequence[str]) -> OpenAttempt:
        """Return the message that announces attempt `number`, which this host leads, on `hosts`.

        `cause` is why the attempt before ended, and hosts in `away` are lost and may return.
        """
        records = self.ballot.records()
        said = RecordsSaid(records.attempt, records.length, records.digest)
        return OpenAttempt(number, self.node, tuple(hosts), cause, tuple(away), self.ballot.before(), said)

    def lose_leader(self) -> None:
        """Record that the leader was silent for a whole lease. Runs that wait for this host's slots can then see that
        it is leaderless.
        """
        self.ballot.leaderless = True
        self._alone.set()

    def leader_answered(self) -> None:
        """Record that the leader has answered, so that this host is not leaderless any more. A vote that this host is
        about to give is given first.
        """
        with self._lock:
            self.ballot.leaderless = False
        self._alone.clear()

    def stand(self, above: int) -> int | None:
        """Choose a number for a new attempt, above `above` and above all for which this host has voted, record its vote
        for itself as the leader of that attempt, and return the number.

        Return None, without a vote, if the host has already accepted an attempt after the present one.
        """
        with self._lock:
            if self.ballot.accepted is not None:
                return None
            number = max(self.ballot.voter.next_number, above + 1)
            self.ballot.keep(self.ballot.voter.stand(number))
            return number

    def open(self, number: int, voters: Sequence[int]) -> bool:
        """Record that attempt `number`, for which this host was elected leader, is opened, with the hosts of the
        indexes `voters` as its voters. Return False, and record nothing, if this host has voted for another meanwhile.
        """
        with self._lock:
            if self.ballot.voted != (number, self.node):
                return False
            self.ballot.keep(self.ballot.voter.open(number, voters))
            return True

    def settle(self, number: int) -> None:
        """Record that enough voters have accepted attempt `number`, so that earlier ones are over. Only the supervisor
        that leads this attempt calls it.
        """
        with self._lock:
            self.ballot.settle(Settled(number, self.node))

    def check_lead(self, statuses: Mapping[int, SupervisorStatus]) -> None:
        """Raise Fenced if the run, which this host led, continues under another leader: by the fence on this disk, or
        by `statuses`, the answers of the other hosts' supervisors by host number.
        """
        check_fence(self.run, self.attempt.number)
        for one in statuses.values():
            if one.settled and one.attempt >= self.attempt.number and one.led_by != self.host:
                raise Fenced(f"attempt {one.attempt} is led by {one.led_by}, not by {self.host}")

    def check_part_in(self, attempt: int) -> None:
        """Raise Fenced if `attempt` is newer than this host's attempt, as the run then continues without this host. Do
        nothing if this host has accepted the attempt after its own.
        """
        if attempt > self.attempt.number and self.ballot.accepted is None:
            raise Fenced(f"attempt {attempt} continues without {self.host}")

    def status(self) -> SupervisorStatus:
        """Return this supervisor's state, without waiting for disk writes that would make it seem to be gone."""
        with self._shown:
            return self._status()

    def _status(self) -> SupervisorStatus:
        """Return this supervisor's state; the caller holds the lock."""
        voter, apart = self.ballot.voter, self.plan.disks_apart
        return SupervisorStatus(
            node=self.node,
            attempt=self.attempt.number,
            has_slots=self.ready.gpus is not None,
            told=self.ready.told,
            began=self.ready.began,
            leads=not self.ballot.leaderless and self._leads_now(),
            leaderless=self.ballot.leaderless,
            accepted=voter.newest.attempt if apart else self.attempt.number,
            settled=voter.settled or not apart,
            has_vote=self._has_vote() or not apart,
            history=self.ballot.records().length if apart else 0,
            waits_for=self.ready.waits_for,
            prepared=self.ready.prepared,
            voted_for=self.ballot.voted[0] if apart else 0,
            led_by=self.leader,
            held_back=self.ready.held_back,
            silent_s=self._coordinators_silence_s(),
        )

    def _returning(self) -> Returning:
        """Return the state of this host for others, while it has come back and does not take part yet."""
        return Returning(self.ballot.voter.newest.attempt, self.has_begun_here(), self._has_vote())

    def has_begun_here(self) -> bool:
        """Return whether this host has begun the present attempt under this supervisor or an earlier one, as its disk
        has it.
        """
        return (self.attempt.started if self.leads else self.attempt.node_started(self.here.index)).exists()

    def _coordinators_silence_s(self) -> float:
        """Return for how many seconds the coordinator on this host has been silent: since it last wrote state.json, or
        since `coordinator_due_at`, when it was expected to begin, if that is later. The result is 0 while no
        coordinator is expected to run here.
        """
        last = readable(self.run.state, RunState)
        known = last is not None and last.attempt == self.attempt.number and last.boot_id == boot_id()
        spoke_at = last.monotonic_s if last is not None and known else 0.0
        return max(0.0, boottime() - max(self.coordinator_due_at, spoke_at))

    def answering(self, wakeup: Wakeup) -> Callable[[SupervisorQuestion, str], SupervisorReply]:
        """Return a function that answers a question of another supervisor, given the question and the asker's address.
        It is called in the thread of the connections.

        After a question that may have changed this state it wakes this supervisor through `wakeup`; a request to cancel
        also sets `wakeup.stop_asked`.
        """

        def answer(question: SupervisorQuestion, asker: str) -> SupervisorReply:
            """Carry out the question and return the answer."""
            if isinstance(question, Ask):
                return self._returning() if self.returning else self.status()
            if self.returning and not isinstance(question, Cancelled):
                return Declined("it has come back, and does not take part yet")
            if isinstance(question, Replica) and not self._copying.acquire(blocking=False):
                return Declined("it still writes the record before")
            try:
                with self._lock:
                    why = self._against_asker(question, asker)
                    if isinstance(question, Rejoin) and not why:
                        return self.running_attempt() or Declined("it does not lead")
                    why = why or self._carry_out(question)
                    wakeup.stop_asked |= isinstance(question, Cancelled) and not why
            except OSError as error:  # the peer asks again; waiting here would make this host seem gone
                why = said_by_the_system(error)
            except LaunchError as error:  # such as a damaged record of ours
                why = str(error)
            finally:
                if isinstance(question, Replica):
                    self._copying.release()
                wakeup.wake()
            return Declined(why) if why else Agreed()

        return answer

    def _against_asker(self, question: _ToBeDone, asker: str) -> str:
        """Return why the question is refused, or "" if it is not. `asker` is the address from which it came; this must
        be one of the host that the question names as its sender.
        """
        match question:
            case Prepare() | Commit():
                name = self.leader
            case (
                Cancelled(node=node)
                | OpenAttempt(node=node)
                | Rejoin(node=node)
                | Replica(node=node)
                | Settled(node=node)
                | Vote(node=node)
            ):
                name = self.ballot.hosts[node] if 0 <= node < len(self.ballot.hosts) else f"node {node}"
        known = self.first_nodes.get(name)
        if known is not None and asker in addresses_of(known.address):
            return ""
        return f"{asker} does not speak for {name[:100] or 'nobody'}"

    def _carry_out(self, question: _ToBeDone) -> str:
        """Carry out a request of another supervisor of the run: to prepare or begin an attempt, to vote for a leader,
        to keep copied records, or to cancel, for example. A request to rejoin is not allowed here.

        Return why the request is refused, or "".
        """
        match question:
            case Prepare(attempt=attempt):
                return self._against_leader_of(attempt) or self.ready.prepare()
            case Commit(attempt=attempt, by_all=by_all):
                return self._against_leader_of(attempt) or self.ready.begin(by_all=by_all)
            case Vote():
                return self._vote(question)
            case OpenAttempt():
                return self._take_up(question)
            case Settled():
                self.ballot.settle(question)
                return ""
            case Replica():
                return self._keep(question)
            case Cancelled():
                ask_to_stop(self.attempt, "cancel")
                return ""
            case Rejoin():
                raise AssertionError("it is answered with more than a word")

    def _against_leader_of(self, attempt: int) -> str:
        """Return why a message from the leader of `attempt` is refused, or "" if it is not.

        It is refused if this supervisor's present attempt is another one, or, where nodes share no disk, if this host
        has voted for a newer one.
        """
        if attempt != self.attempt.number or (self.plan.disks_apart and self.ballot.voted[0] > attempt):
            return f"attempt {self.attempt.number} is the newest here, or a newer one has its vote"
        return ""

    def _vote(self, asked: Vote) -> str:
        """Vote for the host that asks to lead a new attempt, if the rules allow that; return why not, or "".

        Before the vote counts, a fence is written to disk that stops older attempts from writing here.
        """
        why = "there is no vote if all hosts have one disk" if not self.plan.disks_apart else ""
        if not self._has_vote() and self.ballot.hosts[asked.node] != self.leader:
            why = f"it has no vote in attempt {self.attempt.number}"
        why = why or self.ballot.against_vote(asked, self.leader)
        if not why and self.ballot.voted != (asked.attempt, asked.node):
            raise_fence(self.run, asked.attempt)
            make_dir(self.run.attempt(asked.attempt).path)  # the number is used up here too
            self.ballot.vote(asked)
        return why

    def _take_up(self, said: OpenAttempt) -> str:
        """Accept the attempt that its leader sent; return why it is refused, or "". It is refused, for instance, if
        this host has accepted a newer one, has voted in a newer one or for another leader, or lacks some of the
        leader's history.

        A newer attempt is accepted once its plan and intent are written here. The attempt may also be the present one:
        a host that came back into it accepts it only later, once it has received the run's history.
        """
        apart, newest = self.plan.disks_apart, self.attempt.number
        why = "" if apart or said.attempt > newest else f"attempt {newest} is the newest here"
        why = why or self.ballot.against_open(said)
        if why or self.ballot.voter.newest.attempt == said.attempt:
            return why
        if said.attempt > self.attempt.number:
            raise_fence(self.run, said.attempt)
            self.here.prepare(said, self.first_nodes, attempt_token(self.secret, said.attempt))
        self.ballot.accept(said)
        if said.attempt <= self.attempt.number:
            self.ballot.accepted = None
        return ""

    def _keep(self, replica: Replica) -> str:
        """Write the record of the run that another host, the leader or one elected to lead, has sent into the run's
        folder here, unless it is there already. Return why it is refused, or "".
        """
        if not self.ballot.comes_before(replica):
            self.ballot.outrun_by = max(replica.attempt, self.ballot.outrun_by)
        why = self.ballot.against_record(replica)
        if why and self.ballot.keeps_for(replica) and not record_copies.is_history(replica.name):
            why = ""  # a piece of the history would count as committed
        names = self.role_names
        if why or (self._kept.get(replica.name) == replica and record_copies.is_there(self.run, replica, names)):
            return why  # asked again: the answer came too late the first time, from a slow disk
        record_copies.put(self.run, replica, names, cuts=self.ballot.elected(replica.node))
        self._kept[replica.name] = replica
        if replica.attempt == self.attempt.number and (opened := record_copies.opens(replica.name)) is not None:
            self.roles_opened[opened.role] = opened.attempt
        return ""

    def _has_vote(self) -> bool:
        """Return whether this host may vote: it is a host of the present attempt, and a voter in the newest attempt
        that it has accepted. A host that came back to an attempt votes only from the next attempt on.
        """
        names = [node.host for node in self.plan.nodes if node.index not in self.plan.away]
        return self.host in names and self.ballot.voter.has_vote

    def _leads_now(self) -> bool:
        """Return whether this host leads the present attempt; False if that attempt has no node on this host any more,
        for which the property `leads` raises Fenced.
        """
        try:
            return self.leads
        except Fenced:
            return False
