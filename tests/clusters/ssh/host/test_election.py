"""Who counts while hosts come and go: whatever words are missed, no two parts of the hosts could both go on."""

import itertools
import random
from math import inf

import msgspec
import pytest

from launcher.clusters.ssh.comeback import keeper as comeback
from launcher.clusters.ssh.host.election import Election
from launcher.clusters.ssh.host.follower import TakeOver
from launcher.clusters.ssh.host.keeper_messages import (
    Agreed,
    Ask,
    Begin,
    Declined,
    Members,
    Promise,
    Propose,
    Replica,
    granted,
)
from launcher.clusters.ssh.host.leader import Membership, enough, propose
from launcher.rundir.attempts import read_intent, read_plan
from launcher.rundir.avoided import pardon
from launcher.spec.model import Budget
from launcher.words import Cause, State
from tests.clusters.ssh.host import test_keepers
from tests.clusters.ssh.host.test_keepers import Table, called, started_again


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path, size=5, nodes_min=1, avoid_s=0.0)


def roll_of(member):
    """Without its thread: changes are made by hand."""
    roll = Membership(member)
    roll.close()
    return roll


def members(table, *numbers):
    return [[set(one) for one in table.keepers[number].election.rolls] for number in numbers]


def test_a_host_that_missed_a_change_does_not_keep_the_next_one_from_being_made(table):
    """The last two are lost a moment apart, and the first of them seemed to be there for a moment longer."""
    roll = roll_of(table.keepers[0])
    table.silent = {3, 4}
    called(roll, {0, 1, 2, 3})
    assert members(table, 0, 1) == [[{0, 1, 2, 3, 4}], [{0, 1, 2, 3, 4}]], "a change that came to nothing is forgotten"
    called(roll, {0, 1, 2})
    assert members(table, 0, 1, 2) == [[{0, 1, 2}]] * 3
    table.lose(0, 3, 4)
    assert TakeOver(table.keepers[1]).look() == 2


def test_who_missed_the_second_word_counts_by_both_rolls_until_it_is_told_again(table, monkeypatch):
    roll, said = roll_of(table.keepers[0]), table.said

    def misses_the_second(number, question):
        is_second = isinstance(question, Members) and len(question.rolls) == 1
        return None if number == 2 and is_second else said(number, question)

    table.silent = {3, 4}
    with monkeypatch.context() as patch:
        patch.setattr(table, "said", misses_the_second)
        called(roll, {0, 1, 2})
    assert members(table, 0, 1, 2) == [[{0, 1, 2}], [{0, 1, 2}], [{0, 1, 2, 3, 4}, {0, 1, 2}]]
    assert enough(table.keepers[1], [2], leads=False) and not enough(table.keepers[2], [1], leads=False)
    called(roll, {0, 1, 2})
    assert members(table, 2) == [[{0, 1, 2}]]


def test_who_has_given_its_vote_agrees_to_no_change(table):
    """Those who count for the candidate may not become too few by it to hold up the leader."""
    table.lose(0)
    assert isinstance(table.said(3, Promise(2, 1)), Agreed)
    table.silent = {1, 4}
    table.keepers[3].election.leaderless = False
    assert isinstance(table.said(3, Members(1, 9, ((0, 2, 3),))), Declined)
    assert isinstance(table.said(2, Members(2, 9, ((0, 2, 3),))), Declined), "a leader of another attempt"
    called(roll_of(table.keepers[0]), {0, 2, 3})
    assert members(table, 0, 3) == [[{0, 1, 2, 3, 4}]] * 2


def test_who_takes_over_amid_a_change_needs_both_rolls_and_brings_it_to_an_end(table):
    table.deafen(4, Members)
    roll_of(table.keepers[0])._told((*table.keepers[0].election.rolls, frozenset({0, 1, 2, 4})), [1, 2, 4])
    table.lose(0, 3, 4)
    assert TakeOver(table.keepers[1]).look() is None, "2 of 5"
    table.silent, table.keepers[4].election.leaderless = {0, 3}, True
    assert TakeOver(table.keepers[1]).look() == 2
    for number in (1, 2, 4):
        table.keepers[number].move(2)
    table.deafen(4)
    assert members(table, 1, 4) == [[{0, 1, 2, 3, 4}, {0, 1, 2, 4}], [{0, 1, 2, 3, 4}]]
    called(roll_of(table.keepers[1]), {1, 2, 4})
    assert members(table, 1, 2, 4) == [[{1, 2, 4}]] * 3


# -- hosts that are silent for a while, and may be needed later


@pytest.fixture
def spared(tmp_path):
    """Any two of three hosts can carry the run on."""
    return Table(tmp_path, size=3, nodes_min=2)


@pytest.mark.parametrize("frozen", [1, 2])
def test_two_of_three_go_on_where_the_leader_was_lost_while_one_of_them_was_frozen(spared, frozen):
    """Had it been counted out, the third could not have gone on with it, and the leader gained nothing by that."""
    roll, other = roll_of(spared.keepers[0]), 3 - frozen
    spared.silent = {frozen}
    called(roll, {0, other})
    spared.lose(0)
    took = [number for number in (1, 2) if TakeOver(spared.keepers[number]).look() == 2]
    assert took == [1]
    assert [node.host for node in read_plan(spared.keepers[2].run, 2).nodes] == ["host1", "host2", "host0"]


def test_who_is_silent_and_counts_all_the_same_is_blamed_once(spared):
    member = spared.keepers[0]
    roll = roll_of(member)
    told = [({0, 1}, ["host2"]), ({0, 1}, []), ({0, 1, 2}, []), ({0, 1}, ["host2"]), ({0, 1, 2}, []), ({0}, [])]
    for there, blamed in told:
        called(roll, there)
        assert [blame.host for blame in pardon(member.run)] == blamed
        assert members(spared, 0) == [[{0, 1, 2}]]


def test_who_missed_an_attempt_while_it_was_frozen_votes_for_one_that_has_it(spared):
    """Its own records are older: the others would not have its attempt, nor it theirs, had they waited for it."""
    spared.silent = {1}
    assert propose(spared.keepers[0], [2], Cause.NODE_LOST, leads=True) == 2
    for number in (0, 2):
        spared.keepers[number].move(2)
    spared.lose(0)
    assert TakeOver(spared.keepers[1]).look() is None, "host2 has attempt 2, and comes before it"
    assert TakeOver(spared.keepers[2]).look() == 3
    assert spared.keepers[1].election.proposal.hosts == ("host2", "host1")


def test_a_number_that_somebody_else_has_promised_is_not_asked_for_for_ever(tmp_path):
    """They had asked at the same time, each cut off from the other: every one has its own vote for attempt 2."""
    table = Table(tmp_path, size=4, nodes_min=2)
    table.lose(0)
    assert table.keepers[2].stand(2) and table.keepers[3].stand(2)
    candidate = TakeOver(table.keepers[1])
    assert [candidate.look(), candidate.look()] == [None, 3]


def test_a_guest_holds_nobody_up(tmp_path):
    """It has no vote, so it takes nothing over, and nobody waits for it to."""
    table = Table(tmp_path, size=4, nodes_min=3)
    table.lose(0)
    assert TakeOver(table.keepers[1]).look() == 2
    for member in table.keepers[1:]:
        member.move(2)
    table.silent = set()
    table.keepers[1].ready.began = True
    guest = started_again(table, 0)
    guest.rejoin(comeback.what_goes_on(guest))
    guest.returning = False
    table.lose(1)
    for number in (0, 2):
        one = TakeOver(table.keepers[number])
        one._give_up_at = 0.0
        assert one.look() is None
        assert table.end(number).state is State.FAILED, "there are two of the three that it needs"


@pytest.mark.parametrize(
    ("rolls", "heard", "fewest", "then"),
    [
        (["0123"], "012", 2, "012"),  # two of four would not decide, two of three do
        (["012"], "01", 2, "012"),  # any two decide anyway
        (["012"], "01", 1, "01"),  # one alone may go on
        (["01234"], "0123", 3, "01234"),
        (["012"], "013", 2, "013"),  # who has come back counts
        (["012"], "0123", 2, "0123"),
        (["0123", "012"], "012", 3, "012"),  # a change that was begun is brought to an end
    ],
)
def test_nobody_is_counted_out_in_vain(rolls, heard, fewest, then):
    one = election(rolls=tuple(frozenset(map(int, roll)) for roll in rolls))
    assert one.roll_of(frozenset(map(int, heard)), fewest) == frozenset(map(int, then))


# -- one keeper's vote, by itself


def election(attempt=1, leader="host0", **known):
    one = Election(2, ["host0", "host1", "host2", "host3"], attempt, leader)
    for name, value in known.items():
        setattr(one, name, value)
    return one


def proposal(attempt, leader):
    return Propose(attempt, (f"host{leader}",), None)


@pytest.mark.parametrize(
    ("known", "fence", "refused"),
    [
        ({"leaderless": True}, 1, False),
        ({"leaderless": False}, 1, True),  # it hears its leader
        ({"leaderless": True}, 2, True),  # such an attempt is there already
        ({"leaderless": True, "promised": (2, 3)}, 1, True),
        ({"leaderless": True, "promised": (1, 3)}, 1, False),
        ({"leaderless": False, "promised": (2, 1)}, 2, False),  # its answer was lost: it has this vote
        ({"leaderless": True, "rolls": (frozenset({0, 2, 3}),)}, 1, True),
    ],
)
def test_who_gets_a_vote_for_attempt_2(known, fence, refused):
    assert bool(election(**known).against_vote(2, 1, fence)) == refused


@pytest.mark.parametrize(
    ("known", "number", "leader", "refused"),
    [
        ({}, 2, 0, False),
        ({}, 1, 0, True),  # not newer than what is here
        ({}, 2, 1, True),
        ({"promised": (2, 1)}, 2, 1, False),
        ({"promised": (2, 1)}, 2, 0, True),  # the old leader, once another has the vote
        ({"promised": (2, 1)}, 3, 0, False),  # of which nothing came
        ({"promised": (3, 1)}, 2, 0, True),
        ({"proposal": proposal(2, 3)}, 3, 0, True),
        ({"proposal": proposal(2, 3)}, 3, 3, False),
    ],
)
def test_whose_attempt_is_taken_up(known, number, leader, refused):
    assert bool(election(**known).against_proposal(proposal(number, leader))) == refused


# -- two parts of the hosts


def takes_up(member, leader):
    """Whether it would the next attempt of this leader."""
    number = leader.attempt.number
    return member is leader or not (member.attempt.number > number or member.election.is_promised(above=number))


def could_go_on(table, side, leaders):
    """Whether this part of the hosts would, by itself."""
    keepers = [table.keepers[one] for one in side]
    led = [
        enough(leader, [one.node for one in keepers if one is not leader and takes_up(one, leader)], leads=True)
        for leader in keepers
        if leader.node in leaders and takes_up(leader, leader)
    ]
    voters = {one.node: [other.node for other in keepers if one.node in other.election.members] for one in keepers}
    taken_over = [
        enough(one, [node for node in voters[one.node] if node != one.node], leads=False)
        for one in keepers
        if one.node not in leaders and one.node in one.election.members
    ]
    return any(led + taken_over)


# Two parts, and those that are cut off from both.
SPLITS = [
    [{host for host, of in enumerate(split) if of == side} for side in range(2)]
    for split in itertools.product(range(3), repeat=5)
    if {0, 1} <= {*split} and split.index(0) < split.index(1)
]


def unrest(table, chance, leader, leaders, seen):
    """Hosts come and go, as this leader sees it, and words are missed; gives in how many new ways they then counted."""
    member, before = table.keepers[leader], len(seen)
    follow = [one.node for one in table.keepers if one.attempt.number == member.attempt.number]
    roll = roll_of(member)
    for _ in range(40):
        called(roll, {leader, *(one for one in follow if chance.random() < 0.7)})
        now = tuple((one.election.rolls, one.attempt.number, one.election.promised) for one in table.keepers)
        if now not in seen:
            assert [split for split in SPLITS if all(could_go_on(table, side, leaders) for side in split)] == [], now
        seen.add(now)
    return len(seen) - before


@pytest.mark.parametrize("seed", [6, 15, 16, 22])
@pytest.mark.parametrize("frozen", [False, True])
def test_never_could_two_parts_go_on(table, monkeypatch, seed, frozen):
    """Nor after the leader was lost amid a change, when it comes back and another one leads.

    `frozen`: not the host is lost, but its coordinator says nothing, while its keeper goes on to count hosts.
    """
    chance, said, seen = random.Random(seed), table.said, set()

    def missed(number, question):
        is_missed = isinstance(question, Members) and chance.random() < 0.3
        return None if is_missed else said(number, question)

    monkeypatch.setattr(table, "said", missed)
    assert unrest(table, chance, 0, {0}, seen) > 3
    table.lose(0, *chance.sample(range(1, 5), chance.randint(0, 2)))
    if frozen:
        table.silent.remove(0)
        table.freeze(0)
        unrest(table, chance, 0, {0}, seen)
    took = [member for member in table.keepers[1:] if member.node not in table.silent and TakeOver(member).look() == 2]
    for member in table.keepers:
        if member in took or member.election.proposal is not None:
            member.move(2)
    table.silent = set()
    (one,) = took  # with other seeds too few may be left
    unrest(table, chance, one.node, {0, one.node}, seen)
    unrest(table, chance, 0, {0, one.node}, seen)


# -- somebody at the place of a host that is gone


@pytest.mark.parametrize("seed", range(4))
def test_a_relay_in_a_lost_hosts_place_is_nobodys_vote(table, seed):
    """Two parts of five hosts, of which the smaller one hears a host's relay instead of a third host."""
    chance = random.Random(seed)
    whole = [0, *chance.sample(range(1, 5), 2)]
    part = [number for number in range(5) if number not in whole]
    table.lose(*whole)
    table.relays = {number: chance.choice(part) for number in whole[1:]}
    assert {answer for one in part for answer in table.keepers[one].rpc.ask(Ask())} == {*part}
    for one in part:
        for _ in range(3):
            assert TakeOver(table.keepers[one]).look() is None, "with one host twice it was more than half"
    assert enough(table.keepers[0], whole[1:], leads=True)
    table.silent = {*part}
    table.relays = {}
    assert propose(table.keepers[0], whole[1:], None, leads=True) == 2


@pytest.mark.parametrize("ends_are_proved", [True, False])
def test_a_relays_second_vote_would_decide_against_a_leader_that_goes_on(tmp_path, monkeypatch, ends_are_proved):
    if not ends_are_proved:
        monkeypatch.setattr(test_keepers, "proof_of", lambda key, side, client, server, nonces: (key, side, nonces))
    table = Table(tmp_path, size=5, node_lost=Budget(0))
    table.lose(0, 1, 4)
    table.relays = {4: 3}
    candidate = TakeOver(table.keepers[2])
    candidate._give_up_at = inf
    assert candidate.look() is None
    assert enough(table.keepers[0], [1, 4], leads=True), "these go on"
    votes = granted(table.keepers[2].rpc.ask(Promise(2, 2)))
    assert votes == ([3] if ends_are_proved else [3, 4])
    ended = table.end(2)
    assert ended is None if ends_are_proved else ended.state is State.FAILED, "what 2 of 5 may not say"


def test_nobody_speaks_for_another_host(table):
    table.lose(0)
    table.asking.number = 2
    for word in (Promise(2, 1), Replica(0, 1, "state", -1, "{}"), Propose(2, ("host1", "host2"), None), Begin(1)):
        answer = table.said(3, word)
        assert isinstance(answer, Declined) and "127.0.0.3 does not speak for host" in answer.why
    assert isinstance(table.said(3, Promise(2, 2)), Agreed)


def test_a_proposal_brings_no_token_and_no_plan(table):
    """What a leader says names hosts; each host makes the rest of what came to it over SSH."""
    said = []
    table.listen = said.append
    member, other = table.keepers[:2]
    assert propose(member, [1, 2, 3, 4], Cause.NODE_LOST, leads=True) == 2
    tokens = {read_intent(one.run.attempt(number)).token for one in table.keepers for number in (1, 2)}
    assert len(tokens) == 2, "all have the same, and another one for each attempt"
    words = b"".join(map(msgspec.json.encode, said))
    assert b"propose" in words and not any(token.encode() in words for token in tokens)
    plans = [read_plan(one.run, 2) for one in (member, other)]
    assert [plan.nodes for plan in plans] == [plans[0].nodes] * 2 and plans[1].run_dir == other.plan.run_dir
    assert isinstance(table.said(1, Propose(3, ("host0", "host9"), None)), Declined)
    assert isinstance(table.said(1, Propose(3, ("host0", "host0"), None)), Declined)
