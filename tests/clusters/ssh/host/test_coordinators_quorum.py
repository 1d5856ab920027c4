"""A leader's coordinator against those that may take the run over: whatever is cut, they never both go on."""

import random
from itertools import combinations

import pytest

from launcher.agent.coordination.gathering import Gathering
from launcher.agent.coordination.nodes import NodeTable, Presence
from launcher.clusters.ssh.host.follower import TakeOver
from launcher.clusters.ssh.host.keeper_messages import Members
from launcher.clusters.ssh.host.leader import Membership, enough, propose
from launcher.errors import Fenced
from launcher.words import Cause
from tests.clusters.ssh.host.test_keepers import Table


def opens(leader, side):
    """Whether the leader's coordinator could open a generation with the agents of these hosts, guests too."""
    plan, names = leader.plan, {f"host{number}" for number in side}
    nodes = NodeTable(plan.nodes, 1.0)
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


def both(table, leader):
    """Cuts of which both sides would go on."""
    others = [number for number in range(table.size) if number != leader.node]
    cuts = [(leader.node, *some) for size in range(table.size) for some in combinations(others, size)]
    return [side for side in cuts if opens(leader, side) and taken_over(table, {*others} - {*side})]


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
    assert leader.plan.quorum == 2
    assert both(table, leader) == []
    assert opens(leader, [0, 1]) and not opens(leader, [0])


def test_who_is_not_counted_in_yet_does_not_stand_for_one_that_is(tmp_path):
    table = Table(tmp_path, size=5, nodes_min=1)
    leader, table.silent = table.keepers[0], {3, 4}
    roll = Membership(leader)
    roll.close()
    roll._count(frozenset({0, 1, 2}))
    table.silent = {4}
    next_attempt(table, leader, [1, 2, 3])
    assert leader.plan.quorum == 3, "one of them may be the one that does not count"
    assert both(table, leader) == []


def test_a_guest_has_no_weight(tmp_path):
    """It takes part, and has no vote: with it the leader would be half, and without it the others more than half."""
    table = Table(tmp_path, size=5, nodes_min=1)
    leader, table.silent = table.keepers[0], {4}
    roll = Membership(leader)
    roll.close()
    roll._count(frozenset({0, 1, 2, 3}))
    next_attempt(table, leader, [1, 2, 3])
    assert (leader.plan.away, leader.plan.quorum) == ((4,), 2)
    assert taken_over(table, [1, 2, 3]) and not opens(leader, [0, 4])
    assert both(table, leader) == []


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
    assert both(table, leader) == []
    for _ in range(6):
        number = leader.attempt.number
        follow = [one.node for one in table.keepers if one.attempt.number == number and one is not leader]
        roll = Membership(leader)
        roll.close()
        for _ in range(chance.randint(0, 3)):
            roll._count(frozenset({leader.node, *(one for one in follow if chance.random() < 0.7)}))
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
        assert both(table, leader) == [], (seed, opened)
    return opened


@pytest.mark.parametrize("seed", range(8))
def test_never_could_a_coordinator_go_on_beside_a_new_leader(tmp_path, seed):
    """As an attempt is opened; what the roll becomes after that: README.md."""
    play(tmp_path, seed)
