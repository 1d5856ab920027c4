"""Which rank is last into collectives, from when each entered them."""

import pytest
from msgspec.structs import replace
from simulated_cluster import Cluster, plan_of

from launcher.coordinator.stragglers import ANSWER_S, EVERY_S, FIRST_S, NodeClock, clock_of, last_rank
from launcher.run.hangs import GroupTimes
from launcher.spec.model import Recovery
from launcher.wire.messages import Entered, Look

STEP_US = 100_000
SAME = {node: NodeClock(0.0, 0.0) for node in range(2)}


def entered(late_us: list[int], ranks: int, first: int = 1, number: int = 40) -> GroupTimes:
    """A collective in each step of a tenth of a second; `late_us`: after its beginning, by turns."""
    times = [(first + at) * STEP_US + late_us[(first + at) % len(late_us)] for at in range(number)]
    return GroupTimes("0/gloo", tuple(range(ranks)), first, 1, tuple(times))


def of(*late_us: list[int], nodes: int = 1) -> dict[tuple[int, int], list[GroupTimes]]:
    return {(rank, rank % nodes): [entered(late, len(late_us))] for rank, late in enumerate(late_us)}


def test_the_rank_that_the_others_wait_for_is_named_with_how_long() -> None:
    found = last_rank(of([0], [30_000], [1_000], [2_000]), SAME)
    assert str(found) == (
        "rank 1 on node 0 is last into 40 of 40 collectives, by 29 ms: 30% of the time others wait for it"
    )


@pytest.mark.parametrize(
    "late_us",
    [
        pytest.param([[0], [500], [0]], id="less than is worth a word"),
        pytest.param([[0, 40_000], [40_000, 0]], id="by turns"),
        pytest.param([[0] * 8, [0] * 7 + [9_000]], id="hardly ever"),
        pytest.param([[0] * 40, [0] * 39 + [900_000]], id="one long pause"),
    ],
)
def test_ranks_that_are_as_late_as_others_are_not_named(late_us: list[list[int]]) -> None:
    assert last_rank(of(*late_us), SAME) is None


def test_of_several_nodes_less_than_their_clocks_may_differ_is_not_said() -> None:
    assert last_rank(of([0], [8_000]), SAME) is not None
    assert last_rank(of([0], [8_000], nodes=2), SAME) is None
    assert last_rank(of([0], [20_000], nodes=2), SAME) is not None


def test_a_clock_is_known_but_for_half_of_the_time_that_question_and_answer_travelled() -> None:
    """They took 1 ms there and 3 ms back; between them the node's clock, 5 s ahead, went on by 40 ms."""
    clock = clock_of(Entered(1, 1, 1, (), 105.001, 105.041), sent_at=100.0, received_at=100.044)
    assert clock == pytest.approx((4.999, 0.002))


def test_less_than_what_is_not_known_of_a_clock_is_not_said() -> None:
    times = of([0], [30_000], nodes=2)
    assert last_rank(times, {0: NodeClock(0.0, 0.0), 1: NodeClock(0.0, 0.02)}) is None
    assert last_rank(times, {0: NodeClock(0.0, 0.0), 1: NodeClock(0.0, 0.01)}) is not None


@pytest.mark.parametrize("ahead_s", [5.0, -5.0, 0.0])
def test_the_slow_rank_is_named_whichever_clock_is_ahead(ahead_s: float) -> None:
    cluster = Cluster(plan_of(2, ranks_each=1))
    cluster.ahead_s = {1: ahead_s}
    cluster.boot()
    groups = of([30_000], [0], nodes=2)
    ours, theirs = groups[0, 0][0], groups[1, 1][0]
    since_us = 1 + round(1e6 * ahead_s) + 10_000_000
    cluster.entered = {0: [replace(ours, since_us=10_000_001)], 1: [replace(theirs, since_us=since_us)]}
    cluster.advance(FIRST_S + 5)
    found = cluster.state().last_rank
    assert found is not None
    assert (found.rank, found.by_s) == (0, pytest.approx(0.03, abs=0.001))


def test_collectives_that_wait_at_the_same_time_lose_it_once() -> None:
    """As the buckets of one backward pass do."""
    ours, late = [0, 1000, 2000, 3000], [30_000, 31_000, 32_000, 33_000]
    at = [step * STEP_US for step in range(10)]
    groups = {
        (rank, 0): [GroupTimes("0", (0, 1), 5, 1, tuple(base + one for base in at for one in times))]
        for rank, times in enumerate((ours, late))
    }
    found = last_rank(groups, SAME)
    assert found is not None
    assert found.by_s == 0.03
    assert found.share == pytest.approx(0.36, abs=0.02)


def test_of_many_collectives_of_a_step_the_one_that_waits_long_tells_by_how_much() -> None:
    """As in FSDP: after the first of a step all ranks are even."""
    late = [60_000] + [100] * 4
    found = last_rank(of([0] * 5, late), SAME)
    assert found is not None
    assert found.by_s == 0.06


def test_ranks_that_were_asked_at_different_moments_are_compared_by_the_collectives_that_both_tell_of() -> None:
    groups = {(0, 0): [entered([0], 2, first=1)], (1, 0): [entered([30_000], 2, first=25)]}
    found = last_rank(groups, SAME)
    assert found is not None
    assert (found.rank, found.collectives) == (1, 16)
    groups[1, 0] = [entered([30_000], 2, first=35)]
    assert last_rank(groups, SAME) is None, "too few"


def test_a_group_of_which_a_rank_does_not_answer_tells_nothing() -> None:
    times = of([0], [30_000], [0])
    del times[2, 0]
    assert last_rank(times, SAME) is None
    assert last_rank({}, SAME) is None


def test_ranks_are_not_asked_where_the_spec_says_off() -> None:
    cluster = Cluster(plan_of(1, ranks_each=2, rules=Recovery(hang_after_s=None)))
    cluster.boot()
    cluster.advance(FIRST_S + EVERY_S)
    assert not [word for _, _, word in cluster.sent if isinstance(word, Look)]


def test_ranks_are_asked_every_minute_and_what_they_tell_is_of_their_generation() -> None:
    cluster = Cluster(plan_of(1, ranks_each=2))
    cluster.boot()
    cluster.entered = {rank: groups for (rank, _), groups in of([0], [30_000]).items()}
    cluster.advance(FIRST_S + 5)
    found = cluster.state().last_rank
    assert found is not None
    assert found.rank == 1
    cluster.entered = {}
    cluster.advance(EVERY_S + ANSWER_S)
    assert cluster.state().last_rank is None
    assert len([word for _, _, word in cluster.sent if isinstance(word, Look) and word.times]) == 2
