"""A leader's coordinator against those that may take the run over: whatever is cut, they never both go on."""

import random
from itertools import combinations

import msgspec
import pytest

from launcher.agent.coordination.gathering import Gathering
from launcher.agent.coordination.nodes import NodeTable, Presence
from launcher.clusters.ssh.host.follower import TakeOver
from launcher.clusters.ssh.host.keeper_messages import Members
from launcher.clusters.ssh.host.leader import Membership, enough, propose
from launcher.errors import Fenced
from launcher.plan.on_hosts import leader_may_be_replaced
from launcher.words import Cause
from tests.clusters.ssh.host.test_keepers import Table, called, coordinator_hears


def starts(leader):
    """The leader's roll, and who counts for its coordinator, which starts after it."""
    roll = Membership(leader)
    roll.close()
    return roll, coordinator_hears(leader)


def opens(leader, counts, side):
    """Whether its coordinator could open a generation with the agents of these hosts, guests too."""
    plan, names = leader.plan, {f"host{number}" for number in side}
    nodes = NodeTable(plan.nodes, 1.0, plan.away, counts=counts)
    for node in nodes:
        if node.host in names:
            node.link, node.ready = Presence.UP, True
        nodes.settle(node)
    return Gathering(plan, nodes, 0.0, 0.0, first=False).complete(0.0)


def taken_over(table, side):
    """Whether one of these could be elected by them, once they have not heard the leader for a lease."""
    keepers = [table.keepers[number] for number in side]
    votes = {one.node: [other.node for other in keepers if one.node in other.election.members] for one in keepers}
    return any(
        enough(one, [number for number in votes[one.node] if number != one.node], leads=False)
        for one in keepers
        if one.node in one.election.members
    )


def both(table, leader, counts):
    """Cuts of which both sides would go on."""
    others = [number for number in range(table.size) if number != leader.node]
    cuts = [(leader.node, *some) for size in range(table.size) for some in combinations(others, size)]
    return [side for side in cuts if opens(leader, counts, side) and taken_over(table, {*others} - {*side})]


def next_attempt(table, leader, others):
    number = propose(leader, others, Cause.NODE_LOST, leads=True)
    for one in (leader.node, *others):
        table.keepers[one].move(number)


def test_an_attempt_on_fewer_hosts_than_have_a_vote_needs_half_of_those_that_have(tmp_path):
    """The third was frozen a moment ago, and is not counted out yet: alone the leader might have gone on beside it."""
    table = Table(tmp_path, size=3, nodes_min=1)
    table.silent = {2}
    leader = table.keepers[0]
    next_attempt(table, leader, [1])
    _, counts = starts(leader)
    assert both(table, leader, counts) == []
    assert opens(leader, counts, [0, 1]) and not opens(leader, counts, [0])


def test_who_missed_an_attempt_may_replace_its_frozen_leader(tmp_path):
    """So what that leader has slept through is not forgiven: its ranks would go on beside the new ones."""
    table = Table(tmp_path, size=3, nodes_min=1)
    table.silent = {2}
    leader = table.keepers[0]
    next_attempt(table, leader, [1])
    table.silent = set()
    table.freeze(0)
    assert TakeOver(table.keepers[1]).look() == 3
    assert leader_may_be_replaced(msgspec.structs.replace(leader.plan, elects=True))


def test_who_is_not_counted_in_yet_does_not_stand_for_one_that_is(tmp_path):
    table = Table(tmp_path, size=5, nodes_min=1)
    leader, table.silent = table.keepers[0], {3, 4}
    called(starts(leader)[0], {0, 1, 2})
    table.silent = {4}
    next_attempt(table, leader, [1, 2, 3])
    _, counts = starts(leader)
    assert opens(leader, counts, [0, 1]) and not opens(leader, counts, [0, 3])
    assert both(table, leader, counts) == []


def test_a_guest_has_no_weight(tmp_path):
    """It takes part, and has no vote: with it the leader would be half, and without it the others more than half."""
    table = Table(tmp_path, size=5, nodes_min=1)
    leader, table.silent = table.keepers[0], {4}
    called(starts(leader)[0], {0, 1, 2, 3})
    next_attempt(table, leader, [1, 2, 3])
    _, counts = starts(leader)
    assert leader.plan.away == (4,)
    assert taken_over(table, [1, 2, 3]) and not opens(leader, counts, [0, 4])
    assert both(table, leader, counts) == []


@pytest.mark.parametrize(
    ("size", "nodes_min", "heard", "back"), [(4, 2, {0, 1, 2}, 3), (5, 1, {0, 1, 2}, 4), (6, 2, {0, 1, 2, 3, 4}, 5)]
)
def test_a_host_that_was_counted_out_does_not_count_for_the_coordinator_either(tmp_path, size, nodes_min, heard, back):
    """Its agent is back sooner than its keeper is counted in: with it the leader was half of all, cut off from more
    than half of those that count."""
    table = Table(tmp_path, size=size, nodes_min=nodes_min)
    leader, table.silent = table.keepers[0], {*range(size)} - heard
    roll, before = starts(leader)
    called(roll, heard)
    table.silent = set()
    assert both(table, leader, before), "as it was while nobody told the coordinator"
    roll._count(frozenset(heard))
    counts = coordinator_hears(leader)
    assert both(table, leader, counts) == []
    assert opens(leader, counts, heard - {1}) and not opens(leader, counts, [0, back])


def test_until_the_coordinator_has_heard_that_somebody_is_counted_out_nobody_is(tmp_path):
    table = Table(tmp_path, size=4, nodes_min=2)
    leader, table.silent = table.keepers[0], {3}
    roll, counts = starts(leader)
    for _ in range(3):
        roll._count(frozenset({0, 1, 2}))
    assert {one.election.rolls for one in table.keepers} == {(frozenset({0, 1, 2, 3}),)}
    assert both(table, leader, counts) == []
    assert coordinator_hears(leader).rolls == ((0, 1, 2, 3), (0, 1, 2))
    roll._count(frozenset({0, 1, 2}))
    assert {one.election.rolls for one in table.keepers[:3]} == {(frozenset({0, 1, 2}),)}


def looked(member):
    """What it takes over; None too where it leaves, since an attempt goes on without it."""
    try:
        return TakeOver(member).look()
    except Fenced:
        return None


def play(root, seed):
    """Hosts are counted out and in, words are missed, leaders follow each other; gives how many attempts there were."""
    chance = random.Random(seed)
    table = Table(root, size=chance.randint(3, 5), nodes_min=1, avoid_s=0.0)
    said, numbers, opened = table.said, range(table.size), 0

    def missed(number, question):
        return None if isinstance(question, Members) and chance.random() < 0.3 else said(number, question)

    table.said, leader = missed, table.keepers[0]
    for _ in range(6):
        number = leader.attempt.number
        follow = [one.node for one in table.keepers if one.attempt.number == number and one is not leader]
        roll, counts = starts(leader)
        assert both(table, leader, counts) == [], (seed, opened)
        for turn in range(chance.randint(0, 6)):
            roll._count(frozenset({leader.node, *(one for one in follow if chance.random() < 0.7)}))
            counts = coordinator_hears(leader) if chance.random() < 0.6 else counts
            assert both(table, leader, counts) == [], (seed, opened, turn)
        lost = {one for one in numbers if one != leader.node and chance.random() < 0.2}
        if chance.random() < 0.5:
            there = [one for one in follow if one not in lost]
            after = propose(leader, there, None, leads=True) if enough(leader, there, leads=True) else None
        else:
            table.lose(leader.node, *lost)
            looks = [(one, looked(one)) for one in table.keepers if one.node not in table.silent]
            leader, after = next(((one, taken) for one, taken in looks if taken is not None), (leader, None))
            table.silent = set()
        if after is None:
            return opened
        for member in table.keepers:
            member.election.leaderless = False
            if member is leader or member.election.proposal is not None:
                member.move(after)
        opened += 1
    return opened


@pytest.mark.parametrize("seed", range(12))
def test_never_could_a_coordinator_go_on_beside_a_new_leader(tmp_path, seed):
    """Neither as an attempt is opened nor when the roll changes later, which the coordinator hears sooner or later."""
    play(tmp_path, seed)
