"""recovery.health: links are measured before ranks start, and a node that is slow with all others has none."""

import pytest
from msgspec.structs import replace
from simulated_cluster import Cluster, plan_of

from launcher.spec.model import Recovery
from launcher.states import Cause, State
from launcher.wire.messages import CheckLink, LinkSeen, Start

HEALTH = Recovery(health=True)
FLOOR = replace(HEALTH, link_floor_bytes=50_000_000)


def cluster_of(nodes: int, *, rules: Recovery = HEALTH, slow: dict[int, float] | None = None, **how: int) -> Cluster:
    """Return a cluster whose nodes are all there and ready; `slow` gives the rates of slow links."""
    cluster = Cluster(plan_of(nodes, rules=rules, **how))
    cluster.slow |= slow or {}
    cluster.boot()
    cluster.settle()
    return cluster


def link_checks(cluster: Cluster) -> list[tuple[int, int]]:
    """Return (asked node, peer's node) of every link check that was sent."""
    words = [(node, word) for _, node, word in cluster.sent if isinstance(word, CheckLink)]
    return [(node, word.peer.node) for node, word in words]


def texts_of(cluster: Cluster, kind: str) -> list[str]:
    """Return the texts of recorded events of this kind."""
    return [event.text for event in cluster.recorded(kind)]


def test_neighbours_measure_their_links_before_ranks_start() -> None:
    cluster = cluster_of(4)
    assert link_checks(cluster) == [(0, 1), (2, 3), (1, 2), (0, 3)]
    kinds = [type(word) for _, _, word in cluster.sent if isinstance(word, CheckLink | Start)]
    assert kinds == [CheckLink] * 4 + [Start] * 4
    (told,) = texts_of(cluster, "links_checked")
    assert told.startswith("4 of 4 links between nodes measured: 1 GB/s")
    assert sorted(cluster.starts(1)) == [0, 1, 2, 3] and cluster.mono == 100


def test_one_turn_after_the_other() -> None:
    """Or links would share what a node can send."""
    cluster = Cluster(plan_of(4, rules=HEALTH))
    cluster.boot()
    for index in cluster.agents:
        cluster.deliver(index, up=True)
    for index in cluster.agents:
        cluster.deliver(index, up=False)
    assert link_checks(cluster) == [(0, 1), (2, 3)]
    cluster.deliver(0, up=True)
    assert len(link_checks(cluster)) == 2
    cluster.deliver(2, up=True)
    assert len(link_checks(cluster)) == 4


def test_without_health_and_on_one_node_nothing_is_measured() -> None:
    for cluster in (cluster_of(3, rules=Recovery()), cluster_of(1)):
        assert not link_checks(cluster) and cluster.starts(1)


def test_a_node_that_is_slow_with_all_others_is_left_out_and_a_spare_has_its_place() -> None:
    cluster = cluster_of(3, spares=1, slow={1: 2e6})
    (told,) = cluster.recorded("node_unfit")
    assert (told.node, told.cause) == (1, Cause.NODE_LOST)
    seen = "links: to node 0 2 MB/s, to node 2 2 MB/s; 100 MB/s wanted, a tenth of what is usual here"
    assert (told.text, told.evidence) == (f"node 1 is left out: {seen}", seen)
    assert sorted(cluster.starts(1)) == [0, 2, 3]
    assert [(node.state, node.why) for node in cluster.state().nodes][1] == ("unfit", seen)
    assert not cluster.recorded("failure") and cluster.mono == 100


def test_who_has_its_place_is_measured_too() -> None:
    """A spare that was not ready when the others were: slow as well, it gives way to the next one."""
    cluster = Cluster(plan_of(3, rules=FLOOR, spares=2))
    cluster.slow |= {1: 2e6, 3: 2e6}
    cluster.boot(0, 1, 2)
    cluster.boot(3, 4, ready=False)
    cluster.advance(1)
    assert not cluster.starts(1) and [event.node for event in cluster.recorded("node_unfit")] == [1]
    cluster.make_ready(3)
    cluster.advance(1)
    assert [event.node for event in cluster.recorded("node_unfit")] == [1, 3]
    cluster.make_ready(4)
    cluster.advance(1)
    assert sorted(cluster.starts(1)) == [0, 2, 4]
    assert {(0, 4), (2, 4)} <= {*link_checks(cluster)}


def test_with_a_spare_it_can_be_told_which_of_two_it_is() -> None:
    cluster = Cluster(plan_of(2, rules=FLOOR, spares=1))
    cluster.slow[1] = 2e6
    cluster.boot(2)
    cluster.settle()
    cluster.boot(0, 1)
    cluster.settle()
    assert sorted(cluster.starts(1)) == [0, 2]
    assert [event.node for event in cluster.recorded("node_unfit")] == [1]


def test_of_two_alone_it_cannot_and_they_go_on() -> None:
    cluster = cluster_of(2, rules=FLOOR, slow={1: 2e6})
    (text,) = texts_of(cluster, "link_slow")
    assert text == (
        "the link between node 0 and node 1: 2 MB/s; 50 MB/s wanted (recovery.link_floor); which of the two "
        "is slow is unknown, so both are used"
    )
    assert sorted(cluster.starts(1)) == [0, 1] and link_checks(cluster) == [(0, 1), (0, 1)]


def test_a_single_slow_link_is_told_and_both_its_nodes_are_used() -> None:
    cluster = Cluster(plan_of(4, rules=HEALTH))
    cluster.slow_links[1, 2] = 2e6
    cluster.boot()
    cluster.settle()
    assert "between node 1 and node 2: 2 MB/s" in texts_of(cluster, "link_slow")[0]
    assert sorted(cluster.starts(1)) == [0, 1, 2, 3] and not cluster.recorded("node_unfit")


def test_a_slow_node_is_better_than_none_where_nobody_has_said_how_fast_is_fast_enough() -> None:
    cluster = cluster_of(3, slow={1: 2e6})
    assert sorted(cluster.starts(1)) == [0, 1, 2] and not cluster.recorded("node_unfit")
    (text,) = texts_of(cluster, "link_slow")
    assert text.startswith("node 1 is used all the same, as no other can have its place: links: to node 0 2 MB/s")


def test_with_a_floor_there_are_too_few_and_that_is_what_is_said() -> None:
    cluster = cluster_of(3, rules=FLOOR, slow={1: 2e6})
    assert (cluster.over.state, cluster.over.cause) == (State.QUEUED, Cause.NODE_LOST)
    (failure,) = cluster.recorded("failure")
    assert failure.node == 1 and "node 1 is unfit: links: to node 0 2 MB/s" in failure.text


def test_they_are_measured_again_after_a_failure() -> None:
    cluster = cluster_of(3, spares=1)
    cluster.advance(3)
    before = len(link_checks(cluster))
    cluster.slow[2] = 2e6
    cluster.end_rank(0, signal=9)
    cluster.advance(3)
    assert len(link_checks(cluster)) > before
    assert [event.node for event in cluster.recorded("node_unfit")] == [2]
    assert sorted(cluster.starts(2)) == [0, 1, 3] and cluster.state().restarts == {"killed": 1}


def test_a_link_of_which_nothing_comes_is_evidence() -> None:
    cluster = cluster_of(3, spares=1, slow={1: 0.0})
    (told,) = cluster.recorded("node_unfit")
    assert told.evidence.startswith("links: to node 0 no answer, to node 2 no answer; ")
    assert sorted(cluster.starts(1)) == [0, 2, 3]


def mute(cluster: Cluster, *nodes: int) -> None:
    """Drop the link measurements of these nodes, and nothing else."""
    say = cluster.say
    cluster.say = lambda index, message: (  # type: ignore[method-assign]
        None if index in nodes and isinstance(message, LinkSeen) else say(index, message)
    )


def test_who_says_nothing_holds_up_nobody_for_long() -> None:
    cluster = Cluster(plan_of(3, rules=HEALTH))
    mute(cluster, 0, 1)
    cluster.boot()
    cluster.advance(40, until=lambda: bool(cluster.starts(1)))
    assert cluster.mono <= 100 + 7 * 5.0 and sorted(cluster.starts(1)) == [0, 1, 2]
    assert "no answer within 5 s" in texts_of(cluster, "link_slow")[0]


@pytest.mark.parametrize("how", ["cut", "freeze", "kill"])
def test_a_node_that_is_lost_meanwhile_is_no_slow_one(how: str) -> None:
    """Its lease tells."""
    cluster = Cluster(plan_of(3, least=2, rules=FLOOR))
    mute(cluster, 1)
    cluster.boot()
    cluster.settle()
    assert not cluster.starts(1)
    getattr(cluster, how)(1)
    cluster.advance(FLOOR.lease_s + 65)
    assert [node.ranks for node in cluster.state().nodes] == [(0, 1), (), (2, 3)]
    assert cluster.state().state is State.RUNNING
    assert not cluster.recorded("node_unfit") and not cluster.recorded("link_slow")


def test_another_agent_on_a_node_is_measured_anew() -> None:
    cluster = Cluster(plan_of(2, rules=HEALTH))
    cluster.boot()
    for index in cluster.agents:
        cluster.deliver(index, up=True)
    assert link_checks(cluster) == [(0, 1)] and not cluster.starts(1)
    cluster.kill(1, proof=False)
    cluster.boot(1, buries=True)
    cluster.settle()
    assert link_checks(cluster) == [(0, 1)] * 2 and cluster.starts(1)


def test_who_cancels_does_not_wait_for_it() -> None:
    cluster = Cluster(plan_of(3, rules=HEALTH))
    mute(cluster, 0, 1, 2)
    cluster.boot()
    cluster.settle()
    cluster.ask_stop("cancel")
    cluster.settle()
    assert cluster.over.state is State.CANCELLED
