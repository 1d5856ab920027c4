"""The rules of a quorum, in every state that a few hosts can get into; and that a rule left out is missed.

Each test prints how many states it visited and in what time (`pytest -s`, and in any failure).
"""

from collections.abc import Callable, Collection

import pytest

from launcher.places.ssh.quorum.core import Host, Records, RequestVote, Voter
from tests.places.ssh.quorum.explorer import explore
from tests.places.ssh.quorum.lease_world import LeaseWorld
from tests.places.ssh.quorum.records_world import Node, Opens, RecordsWorld, Stands, State
from tests.sizes import SCALE

World = RecordsWorld | LeaseWorld
MOST = 250_000 * SCALE


class ComparesNoHistory(Voter):
    def is_as_new(self, records: Records, mine: Records) -> bool:
        return True


class HalfIsEnough(Voter):
    def carries(self, others: Collection[Host]) -> bool:
        together = {self.me, *others}
        return all(2 * len(opening.voters & together) >= len(opening.voters) for opening in self.openings)


def explored(world, most_states=None):
    found = explore(world.first, world.following, world.problem_of, most_states)
    print(f"{world}: {found}")
    return found


# -- all states within these bounds

DAILY: list[tuple[World, int | None]] = [
    (RecordsWorld(hosts=2, attempts=3, crashes=2, entries=2), None),
    (RecordsWorld(hosts=3, attempts=2, crashes=1, entries=1), None),
    (RecordsWorld(hosts=3, attempts=3, crashes=0), None),
    (RecordsWorld(hosts=4, attempts=2, crashes=0), None),
    (RecordsWorld(hosts=5, attempts=2, crashes=0), 60_000),
    (LeaseWorld(hosts=2, attempts=2, ticks=4, heartbeats=4, crashes=1), 60_000),
    (LeaseWorld(hosts=3, attempts=2, ticks=3, heartbeats=1), None),
    (LeaseWorld(hosts=4, attempts=2, ticks=3, heartbeats=1), 30_000),
]
MOST = 500_000 * SCALE  # states of a world that has more
NIGHTLY: list[tuple[World, int | None]] = [
    (RecordsWorld(hosts=2, attempts=4, crashes=1, entries=1), None),
    (RecordsWorld(hosts=3, attempts=3, crashes=0, entries=1), None),
    (RecordsWorld(hosts=3, attempts=3, crashes=1, entries=1), MOST),
    (RecordsWorld(hosts=4, attempts=3, crashes=0), MOST),
    (RecordsWorld(hosts=4, attempts=2, crashes=1, entries=1), MOST),
    (RecordsWorld(hosts=5, attempts=2, crashes=0), None),
    (LeaseWorld(hosts=2, attempts=3, ticks=5, heartbeats=5, crashes=1), MOST),
    (LeaseWorld(hosts=3, attempts=2, ticks=4, heartbeats=3, crashes=1), MOST),
    (LeaseWorld(hosts=3, attempts=3, ticks=5, heartbeats=2), MOST),
    (LeaseWorld(hosts=4, attempts=2, ticks=3, heartbeats=1), MOST),
]


@pytest.mark.parametrize(("world", "most_states"), DAILY, ids=str)
def test_no_state_breaks_a_rule(world, most_states):
    found = explored(world, most_states)
    assert not found.problem, found
    assert found.complete or most_states is not None


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("world", "most_states"), NIGHTLY, ids=str)
def test_no_state_further_away_breaks_a_rule(world, most_states):
    found = explored(world, most_states)
    assert not found.problem, found
    assert found.complete or most_states is not None


# -- the exploration finds what it is for

SABOTAGED: dict[str, tuple[World, str]] = {
    "a vote is sent before it is on disk": (
        RecordsWorld(hosts=3, attempts=2, crashes=1, syncs_votes=False),
        "has voted twice in attempt 2",
    ),
    "a torn vote is read as none": (
        RecordsWorld(hosts=3, attempts=3, crashes=1, drafts_votes=False),
        "has voted twice in attempt 2",
    ),
    "histories are not compared": (
        RecordsWorld(hosts=3, attempts=3, crashes=0, voter=ComparesNoHistory),
        "leads without what attempt 2 had acknowledged",
    ),
    "an end that an elected host writes is an entry of the attempt before": (
        RecordsWorld(hosts=3, attempts=3, crashes=0, opens_to_end=False),
        "leads without what attempt 1 had acknowledged",
    ),
    "a candidate needs half of the voters": (
        RecordsWorld(hosts=2, attempts=2, crashes=0, voter=HalfIsEnough),
        "attempt 2 has two leaders",
    ),
    "a lease counts from when a heartbeat was received": (
        LeaseWorld(hosts=3, attempts=2, ticks=3, heartbeats=1, counts_from_receipt=True),
        "ranks run at once",
    ),
    "ranks start though a host of the last attempt is silent": (
        LeaseWorld(hosts=3, attempts=2, ticks=3, heartbeats=1, waits_for_the_silent=False),
        "ranks run at once",
    ),
}


@pytest.mark.parametrize("rule", SABOTAGED)
def test_a_rule_that_is_left_out_is_missed(rule):
    world, problem = SABOTAGED[rule]
    found = explored(world)
    assert problem in found.problem, f"{rule}: {found}"
    assert found.trace, "the shortest way there is told"


# -- the exploration reaches what is rare


def crashed(node: Node) -> bool:
    """Return whether the node last voted for itself and has lost its memory of what it did then."""
    return node.memory is None and node.voter.voted[1] == node.voter.me


def stands(node: Node) -> bool:
    return isinstance(node.memory, Stands)


def asks_who_has_just_restarted(state: State) -> bool:
    asked = [message.attempt for message in state.sent if isinstance(message, RequestVote)]
    return any(crashed(node) and attempt > node.voter.voted[0] for node in state.nodes for attempt in asked)


def asks_for_a_torn_vote(state: State) -> bool:
    asked = [message for message in state.sent if isinstance(message, RequestVote)]
    torn = [(node.voter.voted[0], *node.torn) for node in state.nodes if node.torn is not None]
    return any(
        one.attempt == attempt > voted and one.candidate != candidate
        for voted, attempt, candidate in torn
        for one in asked
    )


RARE: dict[str, Callable[[State], bool]] = {
    "two candidates stand for one attempt": lambda state: (
        len({node.voter.voted[0] for node in state.nodes if stands(node)}) < sum(map(stands, state.nodes))
    ),
    "a leader is lost between opening and settling": lambda state: any(
        crashed(node) and node.voter.newest.leader == node.voter.me and not node.voter.settled for node in state.nodes
    ),
    "a host that has just restarted is asked for its vote": asks_who_has_just_restarted,
    "a host whose vote was torn is asked for it by another": asks_for_a_torn_vote,
    "a host has an attempt's history and not its opening": lambda state: any(
        node.log[-1] > node.voter.newest.attempt for node in state.nodes
    ),
    "a candidate opens an attempt while the last leader leads": lambda state: (
        any(isinstance(node.memory, Opens) for node in state.nodes) and state.nodes[0].voter.leads
    ),
}


@pytest.mark.parametrize("rare", RARE)
def test_a_rare_state_is_reached(rare):
    world, most_states = DAILY[1]
    found = explore(world.first, world.following, lambda state: rare if RARE[rare](state) else "", most_states)
    assert found.problem, f"too weak: {world} never has that {rare}"
