"""A leader's coordinator against those that may take the run over: whatever is cut, they never both go on."""

import random
from itertools import combinations

import msgspec
import pytest

from launcher.coordinator.gathering import Gathering
from launcher.coordinator.nodes import NodeTable, Presence
from launcher.errors import Fenced
from launcher.places.ssh.host.follower import TakeOver
from launcher.places.ssh.host.leader import enough
from launcher.plan.on_hosts import leader_may_be_replaced, voters_of
from launcher.states import Cause
from tests.places.ssh.host.test_supervisors import Table, proposed
from tests.sizes import SCALE


def opens(leader, side):
    """Return whether the leader's coordinator can open a generation with the agents of these hosts, guests included."""
    plan, names = msgspec.structs.replace(leader.plan, elects=True), {f"host{number}" for number in side}
    nodes = NodeTable(plan.nodes, 1.0, plan.away, voters=voters_of(plan))
    for node in nodes:
        if node.host in names:
            node.link, node.ready = Presence.UP, True
        nodes.settle(node)
    return Gathering(plan, nodes, 0.0, 0.0, first=False).complete(0.0)


def taken_over(table, side):
    """Return whether these hosts can elect one of themselves; each votes only for records as new as its own."""
    supervisors = [table.supervisors[number] for number in side]

    def votes(candidate):
        mine = candidate.ballot.records()
        return [one.node for one in supervisors if one is not candidate and mine.as_new_as(one.ballot.records())]

    return any(enough(one, votes(one), leads=False) for one in supervisors if one.ballot.voter.has_vote)


def both(table, leader):
    """Cuts of which both sides would go on."""
    others = [number for number in range(table.size) if number != leader.node]
    cuts = [(leader.node, *some) for size in range(table.size) for some in combinations(others, size)]
    return [side for side in cuts if opens(leader, side) and taken_over(table, {*others} - {*side})]


def next_attempt(table, leader, others):
    number = proposed(table, leader, others, Cause.NODE_LOST)
    for one in (leader.node, *others):
        table.supervisors[one].move(number)


def test_a_host_that_was_frozen_while_an_attempt_was_opened_has_no_part_in_what_follows(tmp_path):
    table = Table(tmp_path, size=3, nodes_min=1)
    table.silent = {2}
    leader = table.supervisors[0]
    next_attempt(table, leader, [1])
    table.silent = set()
    assert both(table, leader) == []
    assert opens(leader, [0]), "it is half of the voters"
    table.freeze(0)
    assert TakeOver(table.supervisors[1]).look() is None
    with pytest.raises(Fenced, match="attempt 2 continues without host2"):
        TakeOver(table.supervisors[2]).look()


def test_a_suspend_of_the_leader_is_not_forgiven_where_others_may_replace_it(tmp_path):
    table = Table(tmp_path, size=3, nodes_min=1)
    leader, table.silent = table.supervisors[0], {2}
    assert leader_may_be_replaced(msgspec.structs.replace(leader.plan, elects=True))
    next_attempt(table, leader, [1])
    assert leader.plan.away == (2,)
    assert leader_may_be_replaced(msgspec.structs.replace(leader.plan, elects=True)), "it may have voted for another"


@pytest.mark.parametrize("size", [4, 5])
def test_a_guest_has_no_weight(tmp_path, size):
    """It takes part, and has no vote: with it the leader would be half, and without it the others more than half."""
    table, others = Table(tmp_path, size=size, nodes_min=1), [*range(1, size - 1)]
    leader, table.silent = table.supervisors[0], {size - 1}
    next_attempt(table, leader, others)
    assert leader.plan.away == (size - 1,)
    assert taken_over(table, others) and not opens(leader, [0, size - 1])
    assert both(table, leader) == []


def looked(member):
    """Return what the host takes over; None also if it leaves because an attempt continues without it."""
    try:
        return TakeOver(member).look()
    except Fenced:
        return None


def play(root, seed):
    """Hosts fall silent, words are missed, leaders follow each other; gives how many attempts there were."""
    chance = random.Random(seed)
    table = Table(root, size=chance.randint(3, 5), nodes_min=1, avoid_s=0.0)
    said, numbers, opened = table.said, range(table.size), 0

    def missed(number, question):
        is_lost = type(question).__name__ in ("OpenAttempt", "Settled", "Vote") and chance.random() < 0.2
        return None if is_lost else said(number, question)

    table.said, leader = missed, table.supervisors[0]
    for _ in range(8):
        assert both(table, leader) == [], (seed, opened)
        lost = {one for one in numbers if one != leader.node and chance.random() < 0.2}
        if chance.random() < 0.5:
            there = [one for one in numbers if one != leader.node and one not in lost]
            after = proposed(table, leader, there, None)
        else:
            table.lose(leader.node, *lost)
            looks = [(one, looked(one)) for one in table.supervisors if one.node not in table.silent]
            leader, after = next(((one, number) for one, number in looks if number is not None), (leader, None))
            table.silent = set()
        for member in table.supervisors:
            member.ballot.leaderless = False
            accepted = member.ballot.accepted
            if member is leader and after is not None:
                member.move(after)
            elif accepted is not None:
                member.move(accepted.attempt)
        opened += after is not None
    table.said = said
    assert heals(table), (seed, "nobody opens an attempt any more")
    return opened


def heals(table, rounds=4):
    """Return whether the reconnected hosts open an attempt that all of them know to be settled."""
    everybody = range(table.size)
    for _ in range(rounds):
        for one in table.supervisors:
            one.ballot.leaderless = True
        opened = next((number for one in table.supervisors if (number := looked(one)) is not None), None)
        for one in table.supervisors:
            accepted = one.ballot.accepted
            leads = one.ballot.voter.newest.leader == one.node and one.ballot.voter.newest.attempt == opened
            if accepted is not None or leads:
                one.move(accepted.attempt if accepted is not None else opened)
        newest = max(one.ballot.voter.newest.attempt for one in table.supervisors)
        voters = [one for one in table.supervisors if one.ballot.voter.newest.attempt == newest]
        if opened is not None and opened == newest and 2 * len(voters) > len(everybody):
            return all(one.ballot.voter.settled for one in voters)
    return False


def test_never_could_a_coordinator_go_on_beside_a_new_leader(tmp_path):
    """Whatever was missed as attempts were opened, one after the other; and once all hear each other, one is opened."""
    seeds = range(24 * SCALE)
    assert sum(play(tmp_path / str(seed), seed) for seed in seeds) > 2 * len(seeds)
