"""Test which supervisor may lead, begin, write and end, on separate disks, without network or agents."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import msgspec
import pytest
from run_folder import dead_process, plan_of, state_of

from launcher.clock import boottime
from launcher.errors import Exit, Fenced
from launcher.node.environment import node_environment
from launcher.places.ssh.comeback import returning_supervisor as comeback
from launcher.places.ssh.host import follower, host_supervisor, leader, presence, record_copies, supervisor_state
from launcher.places.ssh.host.follower import Follower, TakeOver
from launcher.places.ssh.host.host_supervisor import QueueWatch
from launcher.places.ssh.host.leader import (
    HostWatch,
    Leader,
    LeaderStop,
    avoid_silent,
    elect,
    end_as_announced,
    enough,
    open_next,
    propose,
)
from launcher.places.ssh.host.record_copies import RecordReplicator
from launcher.places.ssh.host.supervisor_messages import (
    Agreed,
    Ask,
    Cancelled,
    Commit,
    Declined,
    OpenAttempt,
    Prepare,
    RecordsSaid,
    Replica,
    SupervisorStatus,
    Vote,
)
from launcher.places.ssh.host.supervisor_rpc import ASK_S
from launcher.places.ssh.host.supervisor_state import SlotsLost, SupervisorState
from launcher.plan.model import NodePlan
from launcher.run.attempts import new_attempt, newest, read_plan
from launcher.run.avoided import avoid, avoided
from launcher.run.durable import (
    Damaged,
    append_line,
    read_lines,
    read_record,
    write_record,
)
from launcher.run.fence import fence, raise_fence
from launcher.run.identity import boot_id, this_process
from launcher.run.layout import RunDir
from launcher.run.records import AttemptEnd, Event, Exclusion, Intent, NodeState, ProcessId, RunState, StopRequest
from launcher.spec.model import Budget, Recovery
from launcher.states import Cause, State
from launcher.supervisor.allocation import StopSignal
from launcher.supervisor.attempt_end import (
    announce_end,
    ask_to_stop,
    cancelled,
    first_state,
    is_cancelled,
    settle_end,
    write_end,
)
from launcher.wire.frames import proof_of

ENDED = AttemptEnd(State.QUEUED, Cause.NODE_LOST, Exit.NODE_LOST, 0.0, "restart 1 of 20")
SECRET, KEY = "5e" * 32, b"key"
BOUND_S = 20.0
SUCCEEDED = AttemptEnd(State.SUCCEEDED, None, Exit.OK, 0.0)


class Wakeup:
    """One that is rung by hand."""

    stop_asked = False

    def wake(self):
        pass

    def sleep(self, timeout_s):
        pass

    def wait(self, timeout_s):
        pass


class FakeRpc:
    """A supervisor's place among the others."""

    def __init__(self, table, me):
        self._table, self.me = table, me
        self.others = tuple(number for number in range(table.size) if number != me)

    def peer(self, number):
        return SimpleNamespace(host=f"host{number}")

    def all_gone(self, for_s):
        return self._table.gone

    def suspect(self, host):
        pass

    def ask(self, question, whom=None, limit_s=0.0):
        chosen = self.others if whom is None else [number for number in whom if number in self.others]
        there = {number: self._table.connected(self.me, number) for number in chosen}
        self._table.asking.number = self.me
        try:
            said = {number: self._table.said(one, question) for number, one in there.items() if one is not None}
        finally:
            del self._table.asking.number
        return {number: answer for number, answer in said.items() if answer is not None}

    def ask_one(self, question, whom, limit_s=0.0):
        return self.ask(question, [whom]).get(whom)


class Table:
    """`supervisors`, the first of which leads attempt 1; who is in `silent` neither asks nor is asked."""

    def __init__(self, root, size=3, nodes_min=2, apart=True, **recovery):
        self.size, self.silent, self.deaf_to, self.gone = size, set(), {}, False
        self.listen = lambda question: None
        self.asking = threading.local()  # who asks, by the address that its connection has
        self.relays = {}  # at whose place somebody stands who passes all on, and to whom
        self.wakeups = [Wakeup() for _ in range(size)]
        self.supervisors = [
            self._member(root / f"host{number}" / "run", number, nodes_min, apart, recovery) for number in range(size)
        ]
        self._answers = [
            member.answering(wakeup) for member, wakeup in zip(self.supervisors, self.wakeups, strict=True)
        ]

    def _member(self, path, number, nodes_min, apart, recovery):
        path.mkdir(parents=True)
        plan = plan_of(path)
        nodes = tuple(NodePlan(one, f"127.0.0.{one + 1}", False, None, host=f"host{one}") for one in range(self.size))
        spec = msgspec.structs.replace(plan.spec, recovery=Recovery(**{"wait_s": 0.0, "lease_s": 0.0, **recovery}))
        more = {"nodes": nodes, "spec": spec, "nodes_min": nodes_min, "nodes_max": self.size, "disks_apart": apart}
        run = RunDir(path)
        attempt, _ = new_attempt(run, "pool", "submit", None, msgspec.structs.replace(plan, **more), secret=SECRET)
        raise_fence(run, attempt.number)
        member = SupervisorState(run, attempt.number, number)
        member._alone = SimpleNamespace(set=lambda: None, clear=lambda: None)  # no mark for this machine's queue
        member.rpc, member.ready.gpus, member.ready.told = FakeRpc(self, number), (), True
        return member

    def reach(self, one, other):
        return one == other or not self.silent & {one, other}

    def connected(self, me, number):
        """Return the supervisors that are connected to this one, or None for none."""
        if number not in self.relays:
            return number if self.reach(me, number) else None
        behind = self.relays[number]
        ours, theirs = ((f"127.0.0.{one + 1} 1" for one in ends) for ends in ((me, number), (number, behind)))
        same = proof_of(KEY, "client", *ours, "nonces") == proof_of(KEY, "client", *theirs, "nonces")
        return behind if same and self.reach(me, behind) else None

    def said(self, number, question):
        """Return the host's answer, or None if the message does not arrive."""
        leader = int(self.supervisors[number].leader.removeprefix("host"))
        asker = getattr(self.asking, "number", getattr(question, "node", leader))
        self.listen(question)
        deaf = type(question) in self.deaf_to.get(number, ())
        return None if deaf else self._answers[number](question, f"127.0.0.{asker + 1}")

    def vote(self, attempt, node):
        """Request a vote, as that host does."""
        records = self.supervisors[node].ballot.records()
        return Vote(attempt, node, RecordsSaid(records.attempt, records.length, records.digest))

    def deafen(self, number, *kinds):
        self.deaf_to[number] = kinds

    def lose(self, *numbers):
        """Cut these hosts off, as the others have noticed."""
        self.silent = set(numbers)
        for number, member in enumerate(self.supervisors):
            member.ballot.leaderless = number not in self.silent

    def freeze(self, number, for_s=60.0):
        """Freeze a host's coordinator for so long, as the others have noticed; its supervisor answers."""
        self.supervisors[number].coordinator_due_at = boottime() - for_s
        for one, member in enumerate(self.supervisors):
            member.ballot.leaderless = one != number

    def watches(self):
        return [QueueWatch(member, every_s=0.0) for member in self.supervisors]

    def end_by(self, number):
        """Have this host take over, and end the run if that was announced; return the number of its attempt."""
        member = self.supervisors[number]
        attempt = TakeOver(member).look()
        for one in self.supervisors:
            if one.ballot.voter.newest.attempt == attempt:
                one.move(attempt)
        end_as_announced(member)
        leader.send_end(member)
        return attempt

    def end(self, number):
        return read_record(self.supervisors[number].attempt.end, AttemptEnd)

    def state(self, number):
        return read_record(self.supervisors[number].run.state, RunState)


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path)


@pytest.fixture
def agents(monkeypatch):
    """Agents that were there and have left because all was done."""

    class AgentProcesses:
        signalled = False

        def __init__(self, posts, *_, **__):
            posts[0].last = Exit.OK

        def all_gone(self, for_good):
            return True

        def signal_first(self):
            AgentProcesses.signalled = True

        def watch(self, until, *, bring_back):
            assert until is not None, "it would wait for ever"

    monkeypatch.setattr(follower, "AgentProcesses", AgentProcesses)
    return AgentProcesses


def test_who_has_no_agent_any_more_notices_a_lost_leader_itself(tmp_path, agents):
    """Its agent had left for an attempt that came to nothing, then the leader was heard again. It waited for ever."""
    table = Table(tmp_path, lease_s=1000.0)
    follows = Follower(table.supervisors[1], table.wakeups[1])
    follows._agent.last = Exit.FENCED << 8
    follows._leader_heard_at -= 2000.0
    assert not follows._is_deserted()  # it is heard
    assert not table.supervisors[1].ballot.leaderless
    table.lose(0)
    table.supervisors[1].ballot.leaderless = False
    follows._leader_heard_at -= 2000.0
    assert follows._run_agent() == 2  # with the third host, which hears no leader either
    assert table.supervisors[1].ballot.leaderless


def test_a_host_whose_attempt_is_to_be_followed_does_not_leave(tmp_path, agents):
    """The leader had too few hosts for the next attempt. The others' supervisors exited after one lease, and the run
    failed with all its hosts up."""
    table = Table(tmp_path, lease_s=1000.0)
    follows = Follower(table.supervisors[1], table.wakeups[1])
    write_record(follows._supervisor.attempt.end, ENDED)
    follows._agent.last = Exit.OK
    follows._leader_heard_at -= 2000.0
    table.lose(0)
    table.supervisors[1].ballot.leaderless = False
    assert follows._run_agent() == 2


def test_a_host_whose_agent_was_killed_has_a_leader_until_the_lease_is_over(table, agents):
    """It was elected at once, while its old leader counted it as a follower, and both had ranks."""
    follows = Follower(table.supervisors[1], table.wakeups[1])
    agent = follows._agent
    for left_s, lost in ((-1.0, True), (1000.0, False)):
        agent.lease = SimpleNamespace(until=boottime() + left_s)
        agent.died(signal.SIGKILL)
        assert agent.may_have_lost_coordinator() == lost
    table.silent = {0}
    assert not follows._is_leader_gone_too() and follows._next_look() is not None
    for silent in (set(), {0}):
        agent.killed_under_lease, table.silent = boottime() - 1.0, silent
        assert follows._is_leader_gone_too() == bool(silent)
        assert not follows._is_leader_gone_too(), "it was asked"


def test_a_host_whose_agent_has_left_and_which_knows_no_end_elects_another_leader(tmp_path, agents):
    """The leader was lost between its word to the agents and the copy of its end: the others left, too."""
    table = Table(tmp_path, lease_s=1000.0)
    follows = Follower(table.supervisors[1], table.wakeups[1])
    follows._agent.last = Exit.OK
    follows._leader_heard_at -= 2000.0
    table.lose(0)
    table.supervisors[1].ballot.leaderless = False
    assert follows._run_agent() == 2


def test_a_vote_that_is_being_written_is_given_before_its_host_has_a_leader_again(table, monkeypatch):
    """Its agent was brought back in between, and its old leader counted it as a follower."""
    table.lose(0)
    member, begun, goes_on, heard = table.supervisors[2], threading.Event(), threading.Event(), []

    def raise_slowly(run, number):
        begun.set()
        assert goes_on.wait(60.0)
        raise_fence(run, number)

    monkeypatch.setattr(supervisor_state, "raise_fence", raise_slowly)
    votes = threading.Thread(target=table.said, args=(2, table.vote(2, 1)))
    votes.start()
    assert begun.wait(60.0)
    answers = threading.Thread(target=lambda: (member.leader_answered(), heard.append(member.ballot.voted)))
    answers.start()
    goes_on.set()
    for thread in (votes, answers):
        thread.join()
    assert heard == [(2, 1)]


def test_who_votes_for_a_newer_attempt_does_not_enter_one_that_it_had_accepted(tmp_path):
    """It left instead, fenced by its own vote."""
    table = Table(tmp_path, size=5, nodes_min=1)
    table.lose(0)
    for number in (3, 4):
        table.deafen(number, OpenAttempt)
    assert TakeOver(table.supervisors[1]).look() is None
    member = table.supervisors[2]
    assert member.ballot.accepted.attempt == 2
    assert isinstance(table.said(2, table.vote(3, 1)), Agreed) and member.ballot.accepted is None


@pytest.mark.parametrize("accepts", [0, 2])
def test_nobody_leaves_for_an_attempt_that_may_have_come_to_nothing(tmp_path, accepts):
    """The candidate was lost once one host had accepted: either that host's leader or its followers left for good."""
    table = Table(tmp_path, size=4, nodes_min=1)
    table.lose(0)
    table.silent = set()
    for number in {0, 2, 3} - {accepts}:
        table.deafen(number, OpenAttempt)
    table.supervisors[0].ballot.leaderless = True
    assert taken(table, table.supervisors[1], [2, 3] if accepts else [0, 2, 3]) is None
    table.supervisors[accepts].move(2)
    table.deaf_to, table.silent = {}, {1}
    if accepts:
        table.supervisors[0].check_lead({2: table.supervisors[2].status()})
    else:
        for number in (2, 3):
            Follower(table.supervisors[number], table.wakeups[number])._is_deserted()


class Slots:
    """The slots of a host on which an older run waits."""

    fds = ()
    released = False

    def try_take(self):
        return ()

    def ahead(self):
        return ""

    def contested(self):
        return True

    def enqueue(self):
        pass

    def release(self):
        self.released = True


def proposed(table, member, others, cause):
    """Return what the host proposes if it leads and sees these others."""
    return propose(member, {number: table.supervisors[number].status() for number in others}, cause)


def taken(table, member, others):
    """Return what the host takes over if it does not lead and sees these others."""
    elected = elect(member, {number: table.supervisors[number].status() for number in others})
    return open_next(member, elected, None, leads=False) if elected is not None else None


def taken_over(table):
    """The first host is cut off, and the second leads attempt 2 with the third."""
    table.lose(0)
    assert TakeOver(table.supervisors[1]).look() == 2
    for member in table.supervisors[1:]:
        member.move(2)


# -- one leader


def test_a_leader_whose_run_was_taken_over_leaves_and_changes_nothing(table):
    taken_over(table)
    table.silent = set()
    live = [(table.state(number), fence(table.supervisors[number].run)) for number in (1, 2)]
    with pytest.raises(Fenced, match="attempt 2 is led by host1"):
        Leader(table.supervisors[0], table.wakeups[0])._follow(ENDED)
    assert [(table.state(number), fence(table.supervisors[number].run)) for number in (1, 2)] == live
    assert newest(table.supervisors[0].run).number == 1


def test_a_leader_whose_run_has_ended_without_it_leaves_once_it_is_told(table):
    """It was frozen meanwhile. It waited `wait` five times over for supervisors that had all left."""
    taken_over(table)
    write_end(table.supervisors[1].run, table.supervisors[1].attempt, SUCCEEDED, table.supervisors[1].plan)
    table.silent = set()
    assert leader.send_end(table.supervisors[1]) == [0]  # what it has not taken tells it that the run went on
    table.silent = {1, 2}
    with pytest.raises(Fenced, match="attempt 2 continues without host0"):
        Leader(table.supervisors[0], table.wakeups[0])._follow(ENDED)
    assert table.end(0) is None


def test_an_exclusion_is_on_every_host_of_the_attempt_in_which_it_counts(table):
    """It is copied with the history that each of them has before it accepts the attempt."""
    now = time.time()
    avoid(table.supervisors[0].run, [Exclusion("host1", "its disk is full", 1, now, now + 3600.0)])
    assert proposed(table, table.supervisors[0], [1, 2], Cause.DISK) == 2
    for member in table.supervisors:
        assert [exclusion.host for exclusion in avoided(member.run)] == ["host1"]
        assert [node.host for node in read_plan(member.run, 2).nodes] == ["host0", "host2", "host1"]


def test_only_who_leads_an_attempt_writes_its_records(table):
    taken_over(table)
    table.silent = set()

    def says(node, attempt):
        return type(table.said(2, Replica(node, attempt, "avoided", -1, "[]")))

    assert [says(0, 1), says(0, 2), says(1, 1), says(9, 2), says(1, 2)] == [Declined] * 4 + [Agreed]


def test_a_supervisor_that_waits_for_its_disk_says_how_it_is_all_the_same(table, monkeypatch):
    """Who did not would be counted out after a lease: an fsync may take as long."""
    fsync, waits, goes_on = os.fsync, threading.Event(), threading.Event()
    said = []

    def slow(fd):
        waits.set()
        assert goes_on.wait(BOUND_S)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", slow)
    record = Replica(0, 1, "avoided", -1, "[]")
    writing = threading.Thread(target=lambda: said.append(table.said(2, record)))
    asking = threading.Thread(target=lambda: said.extend(table.said(2, one) for one in (Ask(), record)))
    try:
        writing.start()
        assert waits.wait(BOUND_S)
        asking.start()
        asking.join(BOUND_S)
        assert [type(one) for one in said] == [SupervisorStatus, Declined], "and takes nothing more meanwhile"
    finally:
        goes_on.set()
        writing.join()
        asking.join()
    assert said[2:] == [Agreed()] == [table.said(2, record)]


@pytest.mark.parametrize(("name", "at", "data"), [("avoided", -1, "[]"), ("events", 0, '{"a":1}\n')])
def test_a_record_that_is_sent_again_is_written_again_only_where_it_is_not_there(table, monkeypatch, name, at, data):
    """Else a leader that waits a second would hear of none from a disk that takes longer."""
    member, record = table.supervisors[2], Replica(0, 1, name, at, data)
    path = member.run.avoided if name == "avoided" else member.run.events
    assert table.said(2, record) == Agreed()
    syncs = []
    monkeypatch.setattr(os, "fsync", syncs.append)
    assert table.said(2, record) == Agreed() and syncs == []
    path.write_text("damaged")
    assert table.said(2, record) == Agreed() and syncs
    assert path.read_text() == data


def test_a_proposal_that_too_few_take_up_is_no_attempt(table):
    member = table.supervisors[0]
    table.deafen(1, OpenAttempt)
    table.deafen(2, OpenAttempt)
    assert proposed(table, member, [1, 2], None) is None
    assert newest(member.run).number == 1
    assert not member.ballot.voter.settled
    table.deaf_to = {}
    assert proposed(table, member, [1, 2], None) == 3, "the number may be known to somebody"
    assert [one.ballot.voter.settled for one in table.supervisors] == [True] * 3


def test_who_accepted_an_attempt_that_too_few_others_did_is_asked_again_by_its_leader(tmp_path):
    """It waited for that leader, which waited for it to miss a leader: the run stood still for five times `wait`."""
    table = Table(tmp_path, size=5)
    table.lose(0)
    for number in (3, 4):
        table.deafen(number, OpenAttempt)
    candidate = TakeOver(table.supervisors[1])
    assert candidate.look() is None
    table.supervisors[2].move(2)
    assert not table.supervisors[2].ballot.leaderless
    table.deaf_to = {}
    assert candidate.look() == 3
    assert table.supervisors[2].ballot.accepted.attempt == 3


def test_a_leader_whose_number_had_a_vote_takes_a_newer_one(table):
    assert taken(table, table.supervisors[1], [0, 2]) is None, "they hear their leader"
    table.lose(0)
    assert isinstance(table.said(2, table.vote(2, 1)), Agreed)
    table.silent = set()
    assert proposed(table, table.supervisors[0], [2], None) == 3


def test_a_candidate_with_an_older_history_has_no_vote(table):
    """Restarts that the lost leader had counted would not count any more."""
    for number in (0, 2):
        append_line(table.supervisors[number].run.events, Event(0.0, 1, "failure", "a rank was killed"))
    table.lose(0)
    answer = table.said(2, table.vote(2, 1))
    assert isinstance(answer, Declined) and "older than its own" in answer.why
    assert [TakeOver(table.supervisors[number]).look() for number in (1, 2)] == [None, 2]
    assert table.supervisors[1].run.events.read_bytes() == table.supervisors[2].run.events.read_bytes()
    assert table.supervisors[1].ballot.accepted.hosts[0] == "host2"


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_history_that_is_damaged_on_one_host_holds_nobody_up(table, damaged):
    """Its host is older by that; the others go on, and it gets the history of whoever leads."""
    for member in table.supervisors:
        for text in "abc":
            append_line(member.run.events, Event(0.0, 1, "failure", text))
    path = table.supervisors[damaged].run.events
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"b"', b"\0\0\0"))
    table.lose(0)
    if damaged == 0:
        table.silent = set()
        assert proposed(table, table.supervisors[0], [1, 2], None) is None
        table.supervisors[0].ballot.leaderless = True
    took = [number for number in (1, 2) if TakeOver(table.supervisors[number]).look() is not None]
    assert len(took) == 1 and took != [damaged]
    assert path.read_bytes().startswith(whole)


@pytest.mark.parametrize("had_all", [True, False])
def test_what_a_host_has_beyond_a_new_leaders_history_goes(table, had_all):
    """Nobody acknowledged it: its host had an older attempt, or it was written after it had lost its leader."""
    member = table.supervisors[2]
    for one in table.supervisors[: 3 if had_all else 2]:
        append_line(one.run.events, Event(0.0, 1, "failure", "a"))
    whole = member.run.events
    write_end(member.run, member.attempt, cancelled(), member.plan)
    assert proposed(table, table.supervisors[0], [1], None) == 2
    for one in table.supervisors[:2]:
        one.move(2)
    table.supervisors[0].ready.began = True
    again = started_again(table, 2)
    again.rejoin(comeback.running_attempt(again))
    again.returning = False
    assert proposed(table, table.supervisors[0], [1, 2], None) == 3
    assert whole.read_bytes() == table.supervisors[0].run.events.read_bytes()


def test_what_nobody_else_has_of_a_lost_leaders_history_goes_where_the_run_went_on_without_it(table):
    old, lost = table.supervisors[0], Event(0.0, 1, "failure", "nobody heard of it")
    append_line(old.run.events, lost)
    taken_over(table)
    table.silent = set()
    table.supervisors[1].ready.began = True
    member = started_again(table, 0)
    member.rejoin(comeback.running_attempt(member))
    member.returning = False
    assert proposed(table, table.supervisors[1], [0, 2], None) == 3
    assert old.run.events.read_bytes() == table.supervisors[1].run.events.read_bytes()
    assert lost not in read_lines(old.run.events, Event)


@pytest.mark.parametrize(
    ("silent", "waits"), [("lost", False), ("waiting", False), ("up", True), ("unknown", True), (None, True)]
)
def test_ranks_start_once_those_of_hosts_without_the_new_attempt_have_ended(tmp_path, silent, waits):
    """One that missed it may train on for a lease, unless the coordinator has seen that nothing runs there."""
    table = Table(tmp_path, lease_s=1000.0)
    member, now = table.supervisors[0], boottime()
    member.ready.began = True
    states = ("up", "up", silent) if silent is not None else ()
    nodes = tuple(NodeState(number, "", state, host=f"host{number}") for number, state in enumerate(states))
    write_record(member.run.state, state_of(member.run.id, nodes=nodes))
    table.silent = {2}
    assert proposed(table, member, [1], Cause.NODE_LOST) == 2
    assert (member.starts_from >= now + 1000.0) == waits and (member.starts_from <= boottime()) == (not waits)


def test_two_parts_of_four_hosts_never_both_go_on(tmp_path):
    """{0, 3} and {1, 2}: the leader goes on with half of the voters, and the others are not more than half."""
    table = Table(tmp_path, size=4, nodes_min=1)
    table.silent = {1, 2}
    assert proposed(table, table.supervisors[0], [3], None) == 2
    for number in (0, 3):
        table.supervisors[number].move(2)
    table.lose(0, 3)
    assert [TakeOver(table.supervisors[number]).look() for number in (1, 2)] == [None, None]
    table.silent = {0, 1, 2}
    table.supervisors[3].ballot.leaderless = True
    assert TakeOver(table.supervisors[3]).look() is None
    table.silent = {0}
    answer = table.said(3, table.vote(9, 1))
    assert isinstance(answer, Declined) and "older than its own" in answer.why


def test_a_candidate_has_given_its_own_vote(table):
    table.lose(0)
    table.deafen(2, Vote)
    assert TakeOver(table.supervisors[1]).look() is None
    assert isinstance(table.said(1, table.vote(2, 2)), Declined)


def test_a_candidate_that_is_lost_after_its_votes_is_followed_by_another(tmp_path):
    table = Table(tmp_path, size=5)
    table.lose(0)
    assert [type(table.said(number, table.vote(2, 1))) for number in (2, 3, 4)] == [Agreed] * 3
    table.silent = {0, 1}
    assert TakeOver(table.supervisors[2]).look() == 3
    table.silent = set()
    assert isinstance(table.said(3, table.vote(2, 1)), Declined)
    assert taken(table, table.supervisors[1], [3, 4]) is None


def test_a_host_that_accepts_an_attempt_while_others_answer_it_does_not_take_over(table):
    """It had compared its own new records with their old ones: it and the new leader fenced each other, and the run
    ended."""
    table.lose(0)
    candidate, late = table.supervisors[1:]
    ask = late.rpc.ask

    def slowly_asked(question, *limits, **more):
        said, late.rpc.ask = ask(question, *limits, **more), ask
        assert TakeOver(candidate).look() == 2
        return said

    late.rpc.ask = slowly_asked
    assert TakeOver(late).look() is None
    assert late.ballot.accepted.attempt == 2
    assert candidate.ballot.voted == (2, 1), "which nobody has outrun"


def test_a_supervisor_does_not_lead_whose_coordinator_is_frozen(table):
    table.freeze(0)
    assert TakeOver(table.supervisors[1]).look() == 2
    proposal = table.supervisors[2].ballot.accepted
    assert (proposal.hosts, proposal.away) == (("host1", "host2"), ("host0",))
    for member in table.supervisors[1:]:
        member.move(2)
    with pytest.raises(Fenced, match="attempt 2 is led by host1"):
        Leader(table.supervisors[0], table.wakeups[0])._follow(ENDED)


def test_of_two_hosts_none_takes_over_from_a_frozen_coordinator(tmp_path):
    """The guard of its agent ends it, and then its own supervisor goes on."""
    table = Table(tmp_path, size=2, nodes_min=1)
    table.freeze(0)
    assert TakeOver(table.supervisors[1]).look() is None
    assert proposed(table, table.supervisors[0], [1], Cause.NODE_LOST) == 2


@pytest.mark.parametrize(
    ("age_s", "boot", "attempt", "replaced"),
    [
        (1.0, None, 1, False),
        (14.0, None, 1, True),
        (20.0, None, 1, True),
        (1.0, "another", 1, True),
        (1.0, None, 0, True),
    ],
)
def test_a_coordinator_lives_as_long_as_it_speaks(tmp_path, age_s, boot, attempt, replaced):
    """By its own word, on the clock of its own machine."""
    table = Table(tmp_path, lease_s=15.0)
    table.freeze(0)
    leader = table.supervisors[0]
    said = {"boot_id": boot or boot_id(), "monotonic_s": boottime() - age_s}
    write_record(leader.run.state, state_of(leader.run.id, attempt=attempt, **said))
    assert TakeOver(table.supervisors[1]).look() == (2 if replaced else None)
    assert table.supervisors[1].ballot.leaderless == replaced


def test_a_leader_without_an_agent_at_work_is_not_waited_to_speak(table):
    """It waits for hosts, or for its next attempt: who is to speak then is the supervisor."""
    assert [member.status().silent_s for member in table.supervisors] == [0.0] * 3


def test_who_is_left_where_all_others_have_no_supervisor_any_more_waits_for_nobody(tmp_path):
    """It had missed how the run ended, and held its slots for five times `wait`."""
    table = Table(tmp_path, wait_s=60.0)
    table.lose(0, 2)
    look = TakeOver(table.supervisors[1])
    look._give_up_at = time.monotonic() + 60.0
    assert look.look() is None
    assert table.end(1) is None, "they are silent: they may be there"
    table.gone = True
    assert look.look() is None
    assert (table.end(1).cause, table.end(1).alone) == (Cause.NODE_LOST, True)


def test_a_host_whose_disk_ended_a_generation_comes_last_in_the_next_attempt(table):
    member = table.supervisors[0]
    for node, attempt in ((1, 1), (0, 1), (2, 0)):
        append_line(member.run.events, Event(time.time(), attempt, "failure", "no space", node=node, cause=Cause.DISK))
    leader.exclude_lost_hosts(member)
    assert [(exclusion.host, exclusion.evidence) for exclusion in avoided(member.run)] == [("host1", "no space")]
    assert proposed(table, member, [1, 2], Cause.KILLED) == 2
    assert [node.host for node in read_plan(member.run, 2).nodes] == ["host0", "host2", "host1"]


def test_a_host_that_is_unfit_comes_last_and_the_one_that_leads_where_a_person_resumes(table):
    member = table.supervisors[0]
    for node in (0, 1):
        told = Event(time.time(), 1, "node_unfit", "left out", node=node, evidence=f"cuda:{node}: memory")
        append_line(member.run.events, told)
    leader.exclude_lost_hosts(member)
    assert {exclusion.host: exclusion.evidence for exclusion in avoided(member.run)} == {
        "host0": "cuda:0: memory",
        "host1": "cuda:1: memory",
    }
    assert proposed(table, member, [1, 2], Cause.NODE_LOST) == 2
    assert [node.host for node in read_plan(member.run, 2).nodes] == ["host0", "host2", "host1"]


# -- a host that was lost comes back


def started_again(table, number, begun=1):
    """Return the supervisor after a restart, which has only what is on its disk."""
    before = table.supervisors[number]
    member = SupervisorState(before.run, begun, number)
    member._alone = SimpleNamespace(set=lambda: None, clear=lambda: None)
    member.rpc, member.returning = FakeRpc(table, number), True
    table.supervisors[number], table._answers[number] = member, member.answering(table.wakeups[number])
    return member


@pytest.mark.parametrize("case", ["", "it has voted", "the attempt only ends the run"])
def test_the_agent_of_a_host_that_has_voted_for_another_is_not_brought_back(table, agents, monkeypatch, case):
    """It joined the leader before, which counted it as a voter and started ranks beside those of the new one."""
    member, looks = table.supervisors[2], []

    def watch(_agents, until, *, bring_back):
        looks.append(bring_back)
        raise Fenced("enough")

    monkeypatch.setattr(agents, "watch", watch)
    monkeypatch.setattr(agents, "start", lambda _: looks.append("started"), raising=False)
    monkeypatch.setattr(agents, "end", lambda *_, **__: None, raising=False)
    if case == "it has voted":
        member.ballot.vote(table.vote(2, 1))
    if case == "the attempt only ends the run":
        announce_end(table.supervisors[1].run, table.supervisors[1].attempt, SUCCEEDED)
        taken_over(table)
    with pytest.raises(Fenced, match="enough"):
        Follower(member, table.wakeups[2]).carry_out()
    assert looks == {"it has voted": [False], "the attempt only ends the run": [True], "": ["started", True]}[case]


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("begun", [False, True])
def test_a_host_that_comes_back_before_the_run_has_begun_waits_with_the_others(tmp_path, monkeypatch, number, begun):
    """The run needed it and waited for ever, though all its hosts were up: it took part only in runs that go on."""
    table, waits = Table(tmp_path, nodes_min=3, wait_s=0.1), []
    again = started_again(table, number)
    for member in table.supervisors:
        member.ready.began = begun
    again.ready.began = again.ready.told = False
    monkeypatch.setattr(comeback, "running_attempt", lambda _: None)
    monkeypatch.setattr(comeback, "slots_for", lambda *_: LeftSlots(after=0))
    monkeypatch.setattr(
        comeback, "wait_and_run", lambda member, *_, **__: waits.append((member.returning, member.ready.told))
    )
    comeback.come_back(again, table.wakeups[number], ())
    assert waits == ([] if begun else [(False, True)])


class LeftSlots(Slots):
    """Slots that an adopted agent has held, and that are free `after` so many tries."""

    def __init__(self, after):
        self.after = after

    def try_take(self):
        self.after -= 1
        return None if self.after >= 0 else ("7",)


def test_slots_that_an_adopted_agent_has_held_are_taken_as_it_leaves(table):
    ready = table.supervisors[1].ready
    ready.adopt(LeftSlots(after=2))
    assert ready.gpus == ()
    ready.retake()
    assert ready.gpus == ("7",)
    ready.adopt(LeftSlots(after=10_000))
    with pytest.raises(SlotsLost, match="host1 has left its slots to another run"):
        ready.retake(within_s=0.0)
    assert ready.gpus is None


def test_a_host_whose_slots_went_to_another_run_as_its_adopted_agent_left_comes_back_again(tmp_path, monkeypatch):
    """Meanwhile it has no vote, as the others may not wait for it."""
    table = Table(tmp_path, lease_s=50.0)
    member, parts = started_again(table, 1), []
    table.supervisors[0].ready.began = True
    left = [SimpleNamespace(), None, None]
    monkeypatch.setattr(comeback.AdoptedAgent, "found", lambda *_: left.pop(0))
    monkeypatch.setattr(comeback, "slots_for", lambda *_: LeftSlots(after=0))

    def carry_on(supervisor, wakeup, again):
        parts.append((supervisor.adopted is not None, supervisor.ready.gpus, type(table.said(1, Ask()))))
        if supervisor.adopted is not None:
            raise SlotsLost("gone")
        return Exit.OK

    monkeypatch.setattr(comeback, "carry_on", carry_on)
    monkeypatch.setattr(comeback, "say", parts.append)
    assert comeback.come_back(member, table.wakeups[1], ()) == Exit.OK
    assert parts == [(True, (), SupervisorStatus), "gone", (False, ("7",), SupervisorStatus)]


def test_a_host_that_had_followed_again_votes_a_lease_after_its_leader_was_heard(tmp_path, monkeypatch):
    """It voted at once if its slots were lost later, as it had been started long before."""
    table, now, asked = Table(tmp_path, lease_s=50.0, wait_s=1000.0), [0.0], []
    member, left = started_again(table, 1), [SimpleNamespace()]

    def carry_on(*_, **__):
        now[0] += 500.0
        raise SlotsLost("gone")

    def is_missed(_):
        asked.append(now[0])
        table.wakeups[1].stop_asked = True
        return False

    monkeypatch.setattr(comeback, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(comeback.AdoptedAgent, "found", lambda *_: left.pop() if left else None)
    monkeypatch.setattr(comeback, "slots_for", lambda *_: LeftSlots(after=0))
    monkeypatch.setattr(comeback, "carry_on", carry_on)
    monkeypatch.setattr(comeback, "is_missed", is_missed)
    monkeypatch.setattr(table.wakeups[1], "wait", lambda for_s: now.__setitem__(0, now[0] + for_s))
    table.silent = {0, 2}
    assert comeback.come_back(member, table.wakeups[1], ()) == Exit.OK
    assert asked and asked[0] > 550.0


def test_a_run_that_has_not_begun_waits_for_its_turn_though_a_new_leader_is_elected(tmp_path, monkeypatch):
    """All hosts lost power, and the leader was not back: the others began a run that was on hold."""
    table, calls = Table(tmp_path, nodes_min=2, wait_s=60.0), []
    table.silent = {0}
    members = [started_again(table, number) for number in (1, 2)]
    monkeypatch.setattr(comeback, "slots_for", lambda *_: LeftSlots(after=0))
    monkeypatch.setattr(comeback, "wait_and_run", lambda one, *_: calls.append((one.attempt.number, one.ready.began)))
    with ThreadPoolExecutor(2) as pool:
        [*pool.map(lambda one: comeback.come_back(one, table.wakeups[one.node], ()), members)]
    assert calls == [(2, False)] * 2


@pytest.mark.parametrize("apart", [True, False])
def test_a_coordinator_of_an_attempt_that_this_host_leads_no_more_is_not_adopted(tmp_path, monkeypatch, apart):
    table = Table(tmp_path, apart=apart)
    monkeypatch.setattr(comeback.AdoptedAgent, "found", lambda *_: "the agent")
    member = started_again(table, 0)
    assert comeback.agent_left(member) == "the agent", "a run with a shared disk adopted none"
    if apart:
        member.ballot.vote(table.vote(2, 1))
    else:
        raise_fence(member.run, 2)
    assert comeback.agent_left(member) is None
    write_end(table.supervisors[1].run, table.supervisors[1].attempt, SUCCEEDED, table.supervisors[1].plan)
    assert comeback.agent_left(started_again(table, 1)) is None, "the run has ended"


def test_who_comes_back_takes_part_in_what_goes_on_and_has_no_vote_before_the_next_attempt(table):
    taken_over(table)
    table.silent = set()
    table.supervisors[1].ready.began = True
    member = started_again(table, 0)
    assert isinstance(table.said(0, table.vote(3, 1)), Declined), "it does not know yet what goes on"
    member.rejoin(comeback.running_attempt(member))
    member.returning = False
    assert (member.attempt.number, member.leads, member.status().has_vote) == (2, False, False)
    assert [node.host for node in member.plan.nodes] == ["host1", "host2", "host0"]
    assert member.plan.away == (2,)
    assert (
        read_record(member.attempt.intent, Intent).token
        == read_record(table.supervisors[1].attempt.intent, Intent).token
    )
    member.ballot.leaderless = True
    assert isinstance(table.said(0, table.vote(3, 2)), Declined), "the leader alone may go on: nobody else may then"
    member.ballot.leaderless = False
    member.ready.gpus = ()
    assert proposed(table, table.supervisors[1], [0, 2], None) == 3
    assert table.supervisors[2].ballot.accepted.hosts == ("host1", "host2", "host0"), "which was blamed"
    member.move(3)
    assert member.status().has_vote


def test_a_voter_that_comes_back_counts_again_once_it_has_the_history(table):
    """It was cut off while the attempt was opened, and does not know what its leader has acknowledged."""
    leads = table.supervisors[0]
    table.deafen(2, OpenAttempt)
    assert proposed(table, leads, [1, 2], None) == 2
    for number in (0, 1):
        table.supervisors[number].move(2)
    table.deaf_to = {}
    leads.ready.began = True
    append_line(leads.run.events, Event(0.0, 2, "failure", "a rank was killed"))
    member = started_again(table, 2)
    member.rejoin(comeback.running_attempt(member))
    member.returning = False
    hearing = HostWatch(leads, table.wakeups[0])
    hearing.close()
    hearing.look()
    assert member.status().accepted == 1 and leads.accepted_by == {1}
    record_copies.copy_records(leads.run, leads.attempt, leads.rpc, (), [2])
    hearing.look()
    hearing.look()
    status = member.status()
    assert (status.accepted, status.settled, status.has_vote) == (2, True, True)
    assert leads.accepted_by == {1, 2}


def test_who_has_voted_for_a_newer_attempt_takes_records_and_no_history_of_a_leader_that_it_hears_again(table):
    """The leader took its copies for committed; the host that had its vote led later, without them."""
    member = table.supervisors[2]
    table.lose(0)
    assert isinstance(table.said(2, table.vote(2, 1)), Agreed)
    member.leader_answered()
    table.silent = set()
    event = msgspec.json.encode(Event(0.0, 1, "failure", "a rank was killed")).decode() + "\n"
    assert isinstance(table.said(2, Replica(0, 1, record_copies.EVENTS, 0, event)), Declined)
    state = msgspec.json.encode(state_of(member.run.id)).decode()
    assert isinstance(table.said(2, Replica(0, 1, "state", -1, state)), Agreed)


@pytest.mark.parametrize(("voted_for", "generation", "restarts"), [(2, 0, True), (2, 1, False), (1, 0, False)])
def test_a_leader_restarts_whose_hosts_have_voted_for_a_newer_attempt_before_ranks_start(
    table, voted_for, generation, restarts
):
    """It waited for their agents, which could not find it, for five times `wait`."""
    leads, member = table.supervisors[0], table.supervisors[2]
    write_record(leads.run.state, msgspec.structs.replace(first_state(leads.plan, 1), generation=generation))
    if voted_for > 1:
        table.lose(0)
        assert isinstance(table.said(2, table.vote(voted_for, 1)), Agreed)
        table.silent = set()
    leads.ready.began = True
    member = started_again(table, 2)  # host 1 is lost before it opens the attempt, host 2 comes back
    member.rejoin(comeback.running_attempt(member))
    member.here.open(again=True)
    member.returning, member.ready.gpus, table.silent = False, (), {1}
    hearing = HostWatch(leads, table.wakeups[0])
    hearing.close()
    hearing.look()
    assert LeaderStop(table.wakeups[0], leads.attempt, None, hearing).to_end() is restarts
    assert (read_record(leads.attempt.stop, StopRequest) is not None) is restarts
    if restarts:
        assert settle_end(leads.run, leads.attempt, leads.plan, None).state is State.QUEUED
        assert proposed(table, leads, [2], None) == 3


def test_only_who_leads_says_what_goes_on_and_of_an_attempt_of_its_own(table):
    member = started_again(table, 2)
    assert comeback.running_attempt(member) is None, "it has not begun"
    table.supervisors[0].ready.began = True
    said = comeback.running_attempt(member)
    assert (said.attempt, said.hosts) == (1, ("host0", "host1", "host2"))
    forged = [
        msgspec.structs.replace(said, hosts=("host1", "host0", "host2")),
        msgspec.structs.replace(said, hosts=("host0", "host1")),
        msgspec.structs.replace(said, hosts=("host0", "host2", "host2")),
        msgspec.structs.replace(said, away=("stranger",)),
        msgspec.structs.replace(said, hosts=()),
        msgspec.structs.replace(said, attempt=0),
    ]
    assert [member.ballot.is_attempt_of(0, one, 1) for one in forged] == [False] * 6
    assert member.ballot.is_attempt_of(0, said, 1)
    write_record(table.supervisors[0].attempt.end, SUCCEEDED)
    assert comeback.running_attempt(member) is None, "it is over"


def test_its_vote_binds_a_supervisor_that_is_started_again(table):
    """One vote an attempt: it was forgotten with the process."""
    table.lose(0)
    assert isinstance(table.said(2, table.vote(2, 1)), Agreed)
    member = started_again(table, 2)
    member.returning, member.ballot.leaderless = False, True
    assert isinstance(table.said(2, table.vote(2, 2)), Declined)


def test_nobody_comes_back_by_votes_of_which_one_number_is_another(table):
    """It might have voted twice."""
    table.lose(0)
    assert isinstance(table.said(2, table.vote(2, 1)), Agreed)
    path = table.supervisors[2].ballot.path
    path.write_bytes(path.read_bytes().replace(b"[2,1]", b"[2,0]"))
    with pytest.raises(Damaged, match="checksum"):
        started_again(table, 2)


# -- how it ended


def test_a_candidate_without_a_restart_left_says_so_to_all(tmp_path):
    table = Table(tmp_path, node_lost=Budget(0))
    table.lose(0)
    assert table.end_by(1) == 2
    assert [table.end(number).state for number in (1, 2)] == [State.FAILED] * 2
    assert not table.watches()[2].look()


def test_a_run_that_ends_while_it_waits_for_slots_does_not_wait_for_them_first(tmp_path):
    table = Table(tmp_path, node_lost=Budget(0))
    watches = table.watches()
    table.lose(0)
    for number in (1, 2):
        table.supervisors[number].ready.gpus = () if number == 2 else None
    assert watches[1].look()
    assert table.supervisors[1].attempt.number == 2
    assert not watches[1].look() and not watches[2].look()
    assert [table.end(number).state for number in (1, 2)] == [State.FAILED] * 2


def test_a_promise_leaves_the_newest_attempt_its_last_word(table):
    table.lose(0)
    member = table.supervisors[2]
    assert isinstance(table.said(2, table.vote(2, 1)), Agreed)
    write_end(member.run, member.attempt, cancelled(), member.plan)
    assert table.end(2).state is State.CANCELLED
    assert TakeOver(member).look() == 3
    with pytest.raises(Fenced):
        write_end(member.run, member.run.attempt(1), SUCCEEDED, member.plan)


def test_who_has_not_heard_how_it_ended_is_to_be_told_when_the_supervisor_has_left(table, monkeypatch):
    """It stayed until the others had refused it for a while, and left where a cut does that."""
    said, sent = table.said, []
    monkeypatch.setattr(table, "said", lambda number, question: None if number == 1 else said(number, question))
    monkeypatch.setattr(leader, "Allocation", lambda *_, **__: SimpleNamespace(carry_out=ends))
    monkeypatch.setattr(host_supervisor.late_messages, "send", lambda run, word, hosts: sent.append((run, word, hosts)))
    member = table.supervisors[0]
    member.rpc.close = lambda: None

    def ends():
        write_end(member.run, member.attempt, SUCCEEDED, member.plan)
        return SUCCEEDED

    assert host_supervisor.to_its_end(member, lambda: host_supervisor.carry_on(member, table.wakeups[0])) == 0
    assert table.end(2).state is State.SUCCEEDED
    assert sent == [(member.run, "end", ["host1"])]


def test_of_a_cancel_whoever_cancels_tells_all(table, monkeypatch):
    monkeypatch.setattr(leader, "Allocation", lambda *_, **__: SimpleNamespace(carry_out=cancelled))
    table.wakeups[0].stop_asked = True
    table.silent = {1}
    assert Leader(table.supervisors[0], table.wakeups[0]).carry_out() is None
    assert table.supervisors[0].to_be_told == ()


# -- hosts that come and go


def test_a_host_that_is_avoided_is_used_again_and_comes_last(tmp_path):
    table = Table(tmp_path, nodes_min=3)
    member = table.supervisors[0]
    now = time.time()
    avoid(member.run, [Exclusion("host1", "", 1, now, now + 60.0)])
    assert enough(member, [1, 2], leads=True) and not enough(member, [2], leads=True)
    assert proposed(table, member, [1, 2], None) == 2
    assert [node.host for node in read_plan(member.run, 2).nodes] == ["host0", "host2", "host1"]


def test_a_host_that_has_no_part_in_the_attempt_is_not_avoided_again(table):
    member = table.supervisors[0]
    assert proposed(table, member, [2], None) == 2
    member.move(2)
    avoid_silent(member, {1, 2})
    assert [exclusion.host for exclusion in avoided(member.run)] == ["host2"]


def test_a_host_that_missed_the_proposal_leaves(table, agents):
    left_out = Follower(table.supervisors[2], table.wakeups[2])
    table.deafen(2, OpenAttempt)
    assert proposed(table, table.supervisors[0], [1, 2], None) == 2
    table.supervisors[0].move(2)
    with pytest.raises(Fenced, match="attempt 2 continues without host2"):
        left_out._is_deserted()


@pytest.mark.parametrize("leads", [0, 1])
def test_a_host_that_missed_the_proposal_leaves_once_somebody_has_records_of_what_goes_on(tmp_path, agents, leads):
    """Its disk was full for that moment. It stayed until its agent had waited for its coordinator in vain."""
    table = Table(tmp_path, size=5)
    table.deafen(2, OpenAttempt)
    if leads:
        table.lose(0)
        assert TakeOver(table.supervisors[1]).look() == 2
    else:
        assert proposed(table, table.supervisors[0], [1, 2, 3, 4], None) == 2
    write_end(
        table.supervisors[leads].run, table.supervisors[leads].run.attempt(2), SUCCEEDED, table.supervisors[leads].plan
    )
    table.supervisors[leads].move(2)
    leader.send_end(table.supervisors[leads])
    with pytest.raises(Fenced, match="attempt 2 continues without host2"):
        Follower(table.supervisors[2], table.wakeups[2])._run_agent()
    with pytest.raises(Fenced, match="attempt 2 continues without host2"):
        QueueWatch(table.supervisors[2]).look()


# -- what it may use


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(("held", "seen"), [(("2", "3"), "2,3"), ((), "")])
def test_ranks_see_the_gpus_that_their_supervisor_holds_and_no_others(table, monkeypatch, held, seen, apart):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    member = table.supervisors[2]
    member.here.plan, member.ready.gpus = msgspec.structs.replace(member.plan, disks_apart=apart), held
    member.here.open()
    plan = read_plan(member.run, 1)  # as the agent does
    environment = node_environment(member.agent().environment, plan, plan.nodes[2], 1, {})
    assert (environment["CUDA_VISIBLE_DEVICES"], environment["CUDA_DEVICE_ORDER"]) == (seen, "PCI_BUS_ID")


# -- a stop


def test_a_supervisor_that_comes_back_is_the_one_that_a_cancel_asks(table):
    """On one disk nobody knew of it, and its ranks were killed without their grace."""
    member = table.supervisors[2]
    member.here.plan = msgspec.structs.replace(member.plan, disks_apart=False)
    member.here.open()
    write_record(member.attempt.node_started(2), dead_process())
    member.here.open(again=True)
    assert read_record(member.attempt.node_started(2), ProcessId) == this_process()


def test_a_stop_whose_ring_was_heard_elsewhere_is_heard(table, agents):
    table.wakeups[2].stop_asked = True
    assert Follower(table.supervisors[2], table.wakeups[2])._run_agent() is None
    assert agents.signalled


def test_who_is_to_stop_does_not_begin(table):
    table.wakeups[0].stop_asked = True
    ask_to_stop(table.supervisors[0].attempt, "cancel")
    assert not host_supervisor._wait_for_slots(table.supervisors[0], table.wakeups[0], Slots())
    assert [table.end(number).state for number in range(3)] == [State.CANCELLED] * 3


def test_a_cancel_that_was_meant_for_the_attempt_before_is_one(table):
    member = table.supervisors[0]
    assert proposed(table, member, [1, 2], None) == 2
    ask_to_stop(member.attempt, "cancel")
    member.move(2)
    table.wakeups[0].stop_asked = True
    assert StopSignal(table.wakeups[0], member.attempt, member.here.before).to_end() and is_cancelled(member.attempt)


@pytest.mark.parametrize("number", [0, 2])
def test_any_supervisor_hears_of_a_cancel_from_any_host_of_the_run(table, number):
    """The hosts that were reached had no supervisor any more, and nobody knew but them."""
    assert isinstance(table._answers[number](Cancelled(1), "127.0.0.9"), Declined)
    assert not table.wakeups[number].stop_asked
    assert isinstance(table.said(number, Cancelled(1)), Agreed)
    assert table.wakeups[number].stop_asked and is_cancelled(table.supervisors[number].attempt)


def test_who_hears_of_a_cancel_while_it_looks_for_its_leader_ends_at_once(table, agents):
    table.lose(0, 1)
    member = table.supervisors[2]
    TakeOver(member).open()
    table.silent = {0}
    assert isinstance(table.said(2, Cancelled(1)), Agreed)
    assert Follower(member, table.wakeups[2])._run_agent() is None
    assert (table.end(2).state, table.end(2).alone) == (State.CANCELLED, True)


def test_slots_are_free_before_all_others_know_how_it_ended(table, monkeypatch):
    """The next submit found its first host taken by a run that had ended."""
    slots, released = Slots(), []
    member = table.supervisors[0]
    member.ready.take(slots)
    ended = SimpleNamespace(carry_out=lambda: SUCCEEDED)
    monkeypatch.setattr(leader, "Allocation", lambda *_, **__: ended)
    monkeypatch.setattr(RecordReplicator, "close", lambda *_: released.append(slots.released))
    assert Leader(member, table.wakeups[0]).carry_out() is None
    assert released == [True]


# -- before it begins


def test_who_waits_without_a_leader_takes_the_run_over(table):
    watches = table.watches()
    assert all(watch.look() for watch in watches) and not any(member.ballot.leaderless for member in table.supervisors)
    table.silent = {0}
    for watch in (watches[1], watches[2], watches[1], watches[2]):
        assert watch.look()
    assert [member.attempt.number for member in table.supervisors] == [1, 2, 2]
    assert host_supervisor._all_begin(table.supervisors[1]) and table.supervisors[2].ready.began
    assert [exclusion.host for exclusion in avoided(table.supervisors[1].run)] == ["host0"]
    table.silent = set()
    with pytest.raises(Fenced, match="led by host1"):
        host_supervisor._all_begin(table.supervisors[0])
    table.supervisors[0].ready.gpus = None
    with pytest.raises(Fenced, match="led by host1"):
        watches[0].look()


def test_who_waits_in_an_attempt_that_its_leader_could_not_open_looks_for_another(tmp_path):
    """Its leader waited for it to hear no leader, and it heard that one until all gave up."""
    table = Table(tmp_path, size=5)
    table.lose(0)
    for number in (3, 4):
        table.deafen(number, OpenAttempt)
    watch = table.watches()[2]
    assert TakeOver(table.supervisors[1]).look() is None
    assert all(watch.look() for _ in range(2))
    assert (table.supervisors[2].attempt.number, table.supervisors[2].ballot.leaderless) == (2, True)


def test_a_leader_that_is_back_after_a_promise_begins_anew(table):
    watches = table.watches()
    table.lose(0)
    assert isinstance(table.said(2, table.vote(2, 1)), Agreed)
    table.silent = set()
    assert isinstance(table.said(2, Prepare(1)), Declined)
    assert not host_supervisor._all_begin(table.supervisors[0])
    assert all(watch.look() for watch in watches)
    assert host_supervisor._all_begin(table.supervisors[0])
    assert [(member.attempt.number, member.ready.began) for member in table.supervisors] == [(3, True)] * 3


def test_who_is_left_alone_says_which_hosts_are_missed_and_what_a_person_can_do(table):
    table.silent = {0, 1}
    write_record(table.supervisors[2].run.state, state_of(table.supervisors[2].run.id, checkpoint=1200))
    watch = table.watches()[2]
    assert watch.look() and not watch.look()
    end = table.end(2)
    assert (end.state, end.cause, end.state.ended) == (State.INTERRUPTED, Cause.NODE_LOST, True)
    assert "1 of its 3 hosts answer, too few to continue: since " in end.message
    assert "host0, host1 did not; the checkpoint of step 1200 is the newest" in end.message
    assert f"launch resume {table.supervisors[2].plan.run_id} --without host0 --without host1" in end.message


@pytest.mark.parametrize("gpus", [(), None])
def test_a_host_without_which_it_began_begins_later_or_leaves_if_it_lacks_its_slots(table, gpus):
    watch = table.watches()[2]
    table.silent = {2}
    assert host_supervisor._all_begin(table.supervisors[0])
    table.silent, table.supervisors[2].ready.gpus = set(), gpus
    if gpus is None:
        with pytest.raises(Fenced, match="attempt 1 has begun without host2"):
            watch.look()
    else:
        assert watch.look() and table.supervisors[2].ready.began


def test_a_host_that_missed_the_word_to_begin_asks_for_it(table):
    watch = table.watches()[2]
    table.deafen(2, Commit)
    assert host_supervisor._all_begin(table.supervisors[0]) and not table.supervisors[2].ready.began
    assert watch.look() and table.supervisors[2].ready.began


@pytest.mark.parametrize("lost", [(), (Commit,)])
def test_who_has_prepared_lets_go_where_not_all_have(table, monkeypatch, lost):
    """Else it holds what an older run waits for, which holds what we wait for."""
    watch, slots, said = table.watches()[1], Slots(), table.said
    table.deafen(1, *lost)

    def declined(number, question):
        return Declined("gone") if number == 2 and isinstance(question, Prepare) else said(number, question)

    monkeypatch.setattr(table, "said", declined)
    assert isinstance(table.said(1, Prepare(1)), Agreed)
    assert not table.supervisors[1].ready.let_go(slots)
    assert not host_supervisor._all_begin(table.supervisors[0])
    assert table.supervisors[1].ready.prepared == (Commit in lost)
    assert watch.look() and not table.supervisors[1].ready.began
    assert table.supervisors[1].ready.let_go(slots) and slots.released


# -- without the word


def test_nobody_there_is_not_believed_at_once(table, monkeypatch):
    member = table.supervisors[1]
    member.ready.told, asked = False, []

    def late(number, _question):
        asked.append(number)
        return table.supervisors[number].status()

    monkeypatch.setattr(table, "reach", lambda *_: bool(asked.append(0)) or len(asked) > 2 * len(member.rpc.others))
    monkeypatch.setattr(table, "said", late)
    assert host_supervisor._another_was_told(member, turn_s=0.0)
    table.supervisors[0].ready.told = table.supervisors[2].ready.told = False
    assert not host_supervisor._another_was_told(member, turn_s=0.0)


def test_a_new_supervisor_waits_longer_than_one_without_a_word_may_take_to_leave():
    assert presence._LEAVES_S > host_supervisor._OTHERS_S + host_supervisor._TURN_S + ASK_S
