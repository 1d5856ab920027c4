"""Test which host takes a run over, with hosts that are silent, frozen or replaced by another process."""

import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from types import SimpleNamespace

import msgspec
import pytest

from launcher.coordinator.history_copies import HistoryCopies
from launcher.places.ssh.comeback import returning_supervisor as comeback
from launcher.places.ssh.host import host_supervisor
from launcher.places.ssh.host.follower import TakeOver
from launcher.places.ssh.host.leader import (
    HostWatch,
    Leader,
    elect,
    end_as_announced,
    enough,
    propose,
    send_end,
    too_few,
)
from launcher.places.ssh.host.record_copies import EVENTS
from launcher.places.ssh.host.supervisor_messages import (
    Agreed,
    Ask,
    Declined,
    OpenAttempt,
    Prepare,
    Replica,
    Vote,
    granted,
)
from launcher.run.attempts import read_intent, read_plan
from launcher.run.avoided import include
from launcher.run.durable import make_dir, readable, write_record
from launcher.run.identity import this_process
from launcher.run.records import AttemptEnd, RunState
from launcher.run.shared_event import SharedEvent
from launcher.spec.model import Budget
from launcher.states import Cause, State
from launcher.supervisor.attempt_end import announce_end
from tests.places.ssh.host import test_supervisors
from tests.places.ssh.host.test_supervisors import Table, proposed, started_again, taken


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path, size=5, nodes_min=1, avoid_s=0.0)


# -- hosts that are silent for a while, and may be needed later


@pytest.fixture
def spared(tmp_path):
    """Any two of three hosts can carry the run on."""
    return Table(tmp_path, size=3, nodes_min=2)


@pytest.mark.parametrize("frozen", [1, 2])
def test_two_of_three_go_on_where_the_leader_was_lost_while_one_of_them_was_frozen(spared, frozen):
    spared.silent = {frozen}
    hearing = HostWatch(spared.supervisors[0], spared.wakeups[0])
    hearing.close()
    hearing.look()
    spared.lose(0)
    took = [number for number in (1, 2) if TakeOver(spared.supervisors[number]).look() == 2]
    assert took == [1]
    assert [node.host for node in read_plan(spared.supervisors[2].run, 2).nodes] == ["host1", "host2", "host0"]


def test_a_host_is_avoided_once_for_each_time_that_it_falls_silent(tmp_path):
    spared = Table(tmp_path, lease_s=1.5)
    member, now = spared.supervisors[0], [0.0]
    hearing = HostWatch(member, spared.wakeups[0], lambda: now[0])
    hearing.close()
    told = [({2}, []), ({2}, ["host2"]), ({2}, []), (set(), []), ({2}, []), ({2}, ["host2"])]
    for silent, avoided in told:
        now[0] += 1.0
        spared.silent = silent
        hearing.look()
        assert [exclusion.host for exclusion in include(member.run)] == avoided


def test_who_missed_an_attempt_while_it_was_frozen_votes_for_one_that_has_it(spared):
    """Its own records are older: the others would not have its attempt, nor it theirs, had they waited for it."""
    spared.silent = {1}
    assert proposed(spared, spared.supervisors[0], [2], Cause.NODE_LOST) == 2
    for number in (0, 2):
        spared.supervisors[number].move(2)
    spared.lose(0)
    assert TakeOver(spared.supervisors[1]).look() is None, "host2 has attempt 2, and comes before it"
    assert TakeOver(spared.supervisors[2]).look() is None, "host1 is no voter of attempt 2, and host2 is half of those"


def test_a_number_that_somebody_else_has_the_vote_for_is_not_asked_for_for_ever(tmp_path):
    """They had asked at the same time, each cut off from the other: every one has its own vote for attempt 2."""
    table = Table(tmp_path, size=4, nodes_min=2)
    table.lose(0)
    assert [table.supervisors[number].stand(1) for number in (2, 3)] == [2, 2]
    assert TakeOver(table.supervisors[1]).look() == 3


def test_a_guest_holds_nobody_up(tmp_path):
    """It has no vote, so it takes nothing over, and nobody waits for it to."""
    table = Table(tmp_path, size=4, nodes_min=3)
    table.lose(0)
    assert TakeOver(table.supervisors[1]).look() == 2
    for member in table.supervisors[1:]:
        member.move(2)
    table.silent = set()
    table.supervisors[1].ready.began = True
    guest = started_again(table, 0)
    guest.rejoin(comeback.running_attempt(guest))
    guest.returning = False
    for number, silent in ((2, {1}), (0, {1, 2, 3})):
        table.lose(*silent)
        table.supervisors[number].ballot.leaderless = True
        table.silent -= {number}
        one = TakeOver(table.supervisors[number])
        one._give_up_at = 0.0
        assert one.look() is None
        assert table.end(number).state is State.INTERRUPTED, "there are two of the three nodes that it needs"


@pytest.mark.parametrize("case", ["started", "all had begun", "some had begun", "none had begun"])
def test_a_leader_whose_supervisor_was_killed_is_the_third_of_three_hosts_again(tmp_path, case):
    """The others had votes enough, but too few nodes: the run failed, though all three hosts were up."""
    table = Table(tmp_path, nodes_min=3)
    for member in table.supervisors:
        member.ready.began = case in ("started", "all had begun") or (case == "some had begun" and member.node == 1)
    if case == "started":
        write_record(table.supervisors[0].attempt.started, this_process())
    table.lose(0)
    assert not enough(table.supervisors[1], [2], leads=False)
    table.silent = set()
    again = started_again(table, 0)
    assert comeback.is_missed(again)
    again.ready.gpus = ()
    assert comeback.elect_again(again, table.wakeups[0], has_begun=True, within_s=1.0) == 2
    assert [table.supervisors[number].ballot.accepted.attempt for number in (1, 2)] == [2, 2]
    assert not again.run.avoided.exists()
    last = readable(again.run.state, RunState)
    assert last.failure.summary == "host0 was lost, and leads again with 3 of 3 hosts"


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("case", ["it is led", "one is missing"])
def test_who_comes_back_elects_nobody_where(tmp_path, case, number):
    table = Table(tmp_path, nodes_min=3)
    for member in table.supervisors:
        member.ready.began = True
    table.lose(number)
    table.silent = {1} if case == "one is missing" else set()
    if case == "it is led":
        table.supervisors[1 if number == 0 else 0].ballot.leaderless = False
    again = started_again(table, number)
    assert not comeback.is_missed(again)
    again.ready.gpus = ()
    if case == "one is missing":
        assert comeback.elect_again(again, table.wakeups[0], has_begun=True, within_s=0.0) is None
        assert again.returning and not again.ballot.leaderless


def go_on(table, number):
    """Return the attempt to which this host goes on, which has come back or has lost its leader."""
    member, wakeup = table.supervisors[number], table.wakeups[number]
    member.ready.gpus = ()
    if member.returning:
        return comeback.elect_again(member, wakeup, has_begun=True, within_s=60.0)
    take_over, following = TakeOver(member), None
    while following is None:
        following = member.ballot.accepted.attempt if member.ballot.accepted else take_over.look()
        wakeup.wait(0.1)
    return following


@pytest.mark.parametrize("back", [{2}, {1}, {1, 2}, {0, 1, 2}])
def test_hosts_that_come_back_elect_a_leader_with_those_that_have_none(tmp_path, back):
    """They took no part and did not count each other: the run waited until those that were up gave it up."""
    table, up = Table(tmp_path, nodes_min=3 if 0 in back else 2, wait_s=60.0), {1, 2} | back
    table.lose(0)
    table.silent = {0, 1, 2} - up
    for number in back:
        started_again(table, number)
    assert all(comeback.is_missed(table.supervisors[number]) for number in back)
    with ThreadPoolExecutor(len(up)) as pool:
        assert {*pool.map(partial(go_on, table), up)} == {2}


def test_a_leader_that_is_back_leads_a_newer_attempt_than_one_that_it_had_taken_back(tmp_path):
    """Too few others had accepted it, and its leader took part in no election after a restart."""
    table = Table(tmp_path, nodes_min=3)
    table.deafen(1, OpenAttempt)
    assert proposed(table, table.supervisors[0], [1, 2], None) is None
    table.deafen(1)
    table.lose(0)
    table.silent = set()
    again = started_again(table, 0)
    assert comeback.agent_left(again) is None and comeback.is_missed(again)
    assert go_on(table, 0) == 3


def test_a_host_that_follows_one_without_a_leader_has_none(table):
    """It had accepted an attempt that came to nothing, and waited for the leader of it to start."""
    table.lose(0)
    table.silent = set()
    table.supervisors[2].ballot.leaderless = False
    again, leader = started_again(table, 1), table.supervisors[0]
    for leaderless in (False, True):
        leader.ballot.leaderless = leaderless
        assert comeback.is_missed(again) == leaderless


@pytest.mark.parametrize("size", [2, 3])
def test_a_leader_that_is_half_of_the_voters_goes_on_alone_after_a_restart(tmp_path, size):
    """Of two hosts the other never takes over; of three the other two may have."""
    table = Table(tmp_path, size=size, nodes_min=1)
    table.silent = {*range(1, size)}
    again = started_again(table, 0)
    assert comeback.is_awaited(again) == (size == 2)
    write_record(again.attempt.started, this_process())
    assert not comeback.is_awaited(again) and comeback.is_missed(again) == (size == 2)
    if size == 2:
        assert go_on(table, 0) == 2


def test_hosts_that_all_come_back_before_the_run_has_begun_wait_for_each_other(table):
    """Each waited for one that did: the run never began."""
    for number in range(5):
        started_again(table, number)
    assert [comeback.is_awaited(member) for member in table.supervisors] == [True] + [False] * 4
    table.supervisors[0].returning = False
    claim = table.supervisors[1].attempt.node_started(table.supervisors[1].here.index)
    make_dir(claim.parent)
    write_record(claim, this_process())  # the leader was lost as it told the hosts to begin, before it began itself
    assert all(comeback.is_awaited(member) for member in table.supervisors[1:])


def test_who_takes_part_in_an_election_joins_an_attempt_that_goes_on_without_it(table):
    """It left instead, and nobody started it again."""
    table.lose(0, 4)
    assert TakeOver(table.supervisors[1]).look() == 2
    for member in table.supervisors[1:4]:
        member.move(2)
    table.silent, table.supervisors[1].ready.began = {0}, True
    again = started_again(table, 4)
    assert go_on(table, 4) is None and again.returning
    assert comeback.running_attempt(again).attempt == 2


def test_on_a_disk_that_all_share_nobody_votes(tmp_path):
    """FENCE there says which attempt is the newest."""
    table, said = Table(tmp_path, apart=False), []
    table.listen = said.append
    table.lose(0)
    assert TakeOver(table.supervisors[1]).look() == 2
    assert {type(one) for one in said} == {Ask, OpenAttempt}
    assert not any(one.ballot.path.exists() for one in table.supervisors)
    assert isinstance(table.said(2, table.vote(3, 1)), Declined)


# -- somebody at the place of a host that is gone


@pytest.mark.parametrize("seed", range(4))
def test_a_relay_in_a_lost_hosts_place_is_nobodys_vote(table, seed):
    """Two parts of five hosts, of which the smaller one hears a host's relay instead of a third host."""
    chance = random.Random(seed)
    whole = [0, *chance.sample(range(1, 5), 2)]
    part = [number for number in range(5) if number not in whole]
    table.lose(*whole)
    table.relays = {number: chance.choice(part) for number in whole[1:]}
    assert {answer for one in part for answer in table.supervisors[one].rpc.ask(Ask())} == {*part}
    for one in part:
        for _ in range(3):
            assert TakeOver(table.supervisors[one]).look() is None, "with one host twice it was more than half"
    assert enough(table.supervisors[0], whole[1:], leads=True)
    table.silent = {*part}
    table.relays = {}
    assert proposed(table, table.supervisors[0], whole[1:], None) == 2


@pytest.mark.parametrize("ends_are_proved", [True, False])
def test_a_relays_second_vote_would_decide_against_a_leader_that_goes_on(tmp_path, monkeypatch, ends_are_proved):
    if not ends_are_proved:
        monkeypatch.setattr(test_supervisors, "proof_of", lambda key, side, client, server, nonces: (key, side, nonces))
    table = Table(tmp_path, size=5, node_lost=Budget(0))
    table.lose(0, 1, 4)
    table.relays = {4: 3}
    candidate = TakeOver(table.supervisors[2])
    candidate._give_up_at = inf
    assert candidate.look() == (None if ends_are_proved else 2), "what 2 of 5 may not open"
    assert enough(table.supervisors[0], [1, 4], leads=True), "these go on"
    votes = granted(table.supervisors[2].rpc.ask(table.vote(2, 2)))
    assert votes == ([3] if ends_are_proved else [3, 4])


def test_nobody_speaks_for_another_host(table):
    table.lose(0)
    table.asking.number = 2
    opening = table.supervisors[1].opening(2, ["host1", "host2"], None, [])
    for word in (table.vote(2, 1), Replica(0, 1, "state", -1, "{}"), opening, Prepare(1)):
        answer = table.said(3, word)
        assert isinstance(answer, Declined) and "127.0.0.3 does not speak for host" in answer.why
    assert isinstance(table.said(3, table.vote(2, 2)), Agreed)


def test_a_leader_that_waits_for_slots_does_not_keep_a_host_with_newer_records_from_leading(tmp_path):
    """It asked for votes twice a second, for ever, and got none; and no other stood while it heard that leader."""
    table = Table(tmp_path, nodes_min=1)
    table.lose(0)
    table.deafen(2, OpenAttempt)
    assert TakeOver(table.supervisors[1]).look() is None
    table.silent, table.deaf_to, leads = set(), {}, table.supervisors[0]
    leads.ballot.leaderless = False
    voted = leads.ballot.voted
    assert not host_supervisor._all_begin(leads)
    assert (leads.ballot.voted, leads.status().leads) == (voted, False)
    assert TakeOver(table.supervisors[1]).look() == 3
    assert leads.ballot.accepted.attempt == 3


def test_an_attempt_is_told_without_its_token_and_plan(table):
    """What a leader says names hosts; each host makes the rest of what came to it over SSH."""
    said = []
    table.listen = said.append
    member, other = table.supervisors[:2]
    there = {number: table.supervisors[number].status() for number in range(1, 5)}
    assert propose(member, there, Cause.NODE_LOST) == 2
    tokens = {read_intent(one.run.attempt(number)).token for one in table.supervisors for number in (1, 2)}
    assert len(tokens) == 2, "all have the same, and another one for each attempt"
    words = b"".join(map(msgspec.json.encode, said))
    assert b'"open"' in words and not any(token.encode() in words for token in tokens)
    plans = [read_plan(one.run, 2) for one in (member, other)]
    assert [plan.nodes for plan in plans] == [plans[0].nodes] * 2 and plans[1].run_dir == other.plan.run_dir


def test_a_candidate_that_too_few_follow_asks_the_voters_of_both_attempts(table):
    """What it has opened may have been settled, as far as anybody who has accepted it knows."""
    table.lose(0)
    table.silent = {0, 4}
    said = table.said

    def misses(number, question):
        return None if number != 1 and isinstance(question, OpenAttempt) else said(number, question)

    table.said = misses
    assert taken(table, table.supervisors[1], [2, 3]) is None
    assert not table.supervisors[1].ballot.voter.settled
    table.said = said
    assert not enough(table.supervisors[1], [4], leads=False) and enough(table.supervisors[1], [2, 3], leads=False)
    assert taken(table, table.supervisors[1], [2, 3]) == 3
    assert all(table.supervisors[number].ballot.voter.settled for number in (1, 2, 3))


def test_who_accepts_an_attempt_while_it_asks_stands_for_no_other(tmp_path):
    """Its own vote for the next number kept it from the attempt that it had just accepted, and from any after it."""
    table = Table(tmp_path, size=3, nodes_min=1)
    table.lose(0)
    late, seen = table.supervisors[2], {1: table.supervisors[1].status()}
    assert taken(table, table.supervisors[1], [2]) == 2
    assert elect(late, seen) is None
    assert (late.ballot.voted, late.ballot.accepted.attempt) == ((2, 1), 2)


def test_who_votes_for_another_while_it_stands_opens_nothing(tmp_path):
    """It ended for its own number, which it had the votes for, and took its ranks with it."""
    table = Table(tmp_path, size=3, nodes_min=1)
    table.lose(0)
    late, said = table.supervisors[2], table.said

    def is_asked_too(number, question):
        answer = said(number, question)
        if isinstance(question, Vote):
            late.ballot.vote(table.vote(9, 1))
        return answer

    table.said = is_asked_too
    assert elect(late, {1: table.supervisors[1].status()}) is None
    assert late.ballot.voter.newest.attempt == 1


def test_who_gets_the_history_before_an_attempt_that_it_has_voted_for_stays(tmp_path):
    """Records of an attempt that had come to nothing without it told it that the run went on without it."""
    table = Table(tmp_path, size=3, nodes_min=1)
    table.lose(0)
    late = table.supervisors[2]
    assert isinstance(table.said(2, table.vote(3, 1)), Agreed)
    assert isinstance(table.said(2, Replica(1, 2, "avoided", -1, "[]")), Agreed)
    late.check_part_in(late.ballot.outrun_by)


@pytest.mark.parametrize("announced", [False, True])
def test_a_host_that_takes_over_writes_no_end_before_enough_voters_have_its_announcement(tmp_path, announced):
    """Its own, as no restart is left, or that of the lost leader: a host without it would go on with the run."""
    table = Table(tmp_path, nodes_min=1, node_lost=Budget(1 if announced else 0))
    table.lose(0)
    member, end = table.supervisors[1], AttemptEnd(State.SUCCEEDED, None, 0, 1.0, "all ranks have finished")
    if announced:
        announce_end(member.run, member.attempt, end)
    table.deafen(2, Replica)
    assert TakeOver(member).look() is None
    assert (table.end(1), table.end(2)) == (None, None)
    table.deafen(2)
    table.silent = {0, 1}
    assert TakeOver(table.supervisors[2]).look() is None, "alone it is not more than half"
    table.silent = {0}
    assert table.end_by(1) == 3
    assert [table.end(number).state for number in (1, 2)] == [State.SUCCEEDED if announced else State.FAILED] * 2
    assert table.state(1).restarts == {}
    assert table.state(1).failure is None if announced else table.state(1).failure.cause is Cause.NODE_LOST


def test_an_end_by_a_host_that_takes_over_is_not_undone_by_one_whose_attempt_came_to_nothing(tmp_path):
    """That counted as newer: the end was an entry of the attempt before, and no vote compares that with a later one."""
    table = Table(tmp_path, nodes_min=1, node_lost=Budget(1))
    table.lose(0)
    table.deafen(2, OpenAttempt)
    opener = TakeOver(table.supervisors[1])
    assert opener.look() is None
    table.deaf_to = {}
    table.lose(1)
    table.end_by(2)
    assert [table.end(number).state for number in (0, 2)] == [State.FAILED] * 2
    table.lose(2)
    assert opener.look() is None


def test_a_leaders_supervisor_writes_no_end_before_half_of_the_voters_have_its_announcement(tmp_path):
    """Of several roles, or after its coordinator is gone. Its next attempt is this end, once it is elected again."""
    table, copies = Table(tmp_path), HistoryCopies()
    copies.copied = 0.0
    member, leads = table.supervisors[0], Leader(table.supervisors[0], table.wakeups[0])
    leads._histories[EVENTS], leads._records_due = SimpleNamespace(copies=lambda: copies), SharedEvent()
    end = AttemptEnd(State.SUCCEEDED, None, 0, 1.0, "all roles have ended")
    left = leads._write_end(end, None)
    another = msgspec.structs.replace(end, state=State.FAILED, message="a role has failed")
    assert leads._write_end(another, None) == left, "it has said how"
    leads._records_due.close()
    assert (left.state, table.end(0)) == (State.QUEUED, None)
    assert proposed(table, member, [1, 2], None) == 2
    for one in table.supervisors:
        one.move(2)
    assert (end_as_announced(member), send_end(member)) == (end, [])
    assert [table.end(number) for number in range(3)] == [end] * 3


@pytest.mark.parametrize("nodes_min", [1, 3, 4])
def test_a_run_that_too_few_hosts_can_continue_is_interrupted(tmp_path, nodes_min):
    """For want of votes or of nodes: it had failed where only nodes were missing, and could be resumed the same way."""
    end = too_few(Table(tmp_path, size=4, nodes_min=nodes_min).supervisors[0], [1], 0.0)
    assert (end.state, end.cause) == (State.INTERRUPTED, Cause.NODE_LOST)
    assert "launch resume run --without host2 --without host3" in end.message
