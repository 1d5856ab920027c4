"""The main role of several in a pool: agents on hosts of other roles vote, and never have its ranks."""

import pytest

from launcher.coordinator.gathering import Gathering
from launcher.coordinator.nodes import NodeTable, Presence
from launcher.plan.on_hosts import voters_of, with_hosts
from tests.plan.test_roles import FOUR, POOL, THREE, plan, spec


def gathered(here, ready=(0,), first=False):
    """Return the nodes and the gathering of four hosts, of which those in `here` have joined."""
    whole = with_hosts(plan(spec(THREE % ""), POOL), FOUR)
    nodes = NodeTable(whole.nodes, 10.0, voters=voters_of(whole))
    for index in here:
        nodes[index].link, nodes[index].ready = Presence.UP, index in ready
        nodes.settle(nodes[index])
    return nodes, Gathering(whole, nodes, 0.0, 0.0, first=first)


@pytest.mark.parametrize(("here", "opens"), [([0], False), ([0, 3], True), ([0, 1, 2, 3], True)])
def test_it_begins_with_half_of_all_hosts_and_its_own(here, opens):
    _, gathering = gathered(here)
    assert gathering.complete(0.0) is opens
    assert gathering.may_succeed(0.0) is opens


def test_a_host_of_another_role_is_no_node_for_its_ranks_even_if_it_says_that_it_is_ready():
    nodes, gathering = gathered([0, 1, 2, 3], ready=(1, 2, 3))
    assert nodes.usable == set()
    assert not gathering.complete(0.0) and gathering.may_succeed(0.0)


def test_at_first_all_hosts_are_waited_for_a_while():
    _, gathering = gathered([0, 1, 2], first=True)
    assert not gathering.complete(0.0)
    assert gathering.complete(6.0)
