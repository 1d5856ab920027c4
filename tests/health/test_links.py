"""Whose fault a slow link is: the numbers of links on a ring, and what is said of which node."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.health.links import (
    MeasuredLink,
    SlowLinks,
    better,
    evidence,
    find_slow,
    ring,
    second_look,
    summary,
    turns,
)

FAST, SLOW = 500e6, 1e6


def measured(nodes: int, sick: set[int], pairs: list[tuple[int, int]] | None = None) -> list[MeasuredLink]:
    """Return measurements in which each link of a sick node is slow."""
    return [
        MeasuredLink(pair, SLOW if sick.intersection(pair) else FAST, 1e-4)
        for pair in (ring(range(nodes)) if pairs is None else pairs)
    ]


def after_a_second_look(nodes: int, sick: set[int], floor: float | None) -> SlowLinks:
    first = measured(nodes, sick)
    again = second_look(first, find_slow(first, floor))
    links = {link.pair: link for link in [*first, *measured(nodes, sick, again)]}
    return find_slow(list(links.values()), floor)


@pytest.mark.parametrize("floor", [None, 50e6])
@pytest.mark.parametrize("nodes", [3, 4, 5, 9])
def test_a_node_that_is_slow_with_all_others_has_the_blame(nodes: int, floor: float | None) -> None:
    for sick in range(nodes):
        found = after_a_second_look(nodes, {sick}, floor)
        assert (found.unfit, found.slow) == ((sick,), ())


@given(st.integers(5, 12), st.data())
def test_nobody_has_it_for_a_node_beside_it(nodes: int, data: st.DataObject) -> None:
    """Of fewer than half that are sick those have it that are, and nobody else, be they neighbours or not."""
    sick = data.draw(st.sets(st.integers(0, nodes - 1), max_size=(nodes - 1) // 2 - 1))
    found = after_a_second_look(nodes, sick, 50e6)
    assert set(found.unfit) == sick and not found.slow


def test_a_single_slow_link_is_nobodys_fault() -> None:
    links = [MeasuredLink(pair, SLOW if pair == (1, 2) else FAST) for pair in ring(range(5))]
    found = find_slow(links, None)
    assert found.unfit == () and [link.pair for link in found.slow] == [(1, 2)]
    assert second_look(links, found) == [(1, 2)]


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_where_all_are_slow_nobody_is_told_from_the_others(nodes: int) -> None:
    links = measured(nodes, set(range(nodes)))
    found = find_slow(links, 50e6)
    assert found.unfit == () and len(found.slow) == len(links)
    assert find_slow(links, None).slow == ()  # as fast as is usual there


def test_two_without_a_floor_have_nothing_to_be_compared_with() -> None:
    assert find_slow(measured(2, {1}), None) == SlowLinks(0.0, (), ())


def test_a_link_of_which_nothing_comes_is_slow_however_low_the_floor_is() -> None:
    links = [
        MeasuredLink(pair, 0.0 if 1 in pair else FAST, problem="no answer" if 1 in pair else "")
        for pair in ring(range(4))
    ]
    assert find_slow(links, 1.0).unfit == find_slow(links, None).unfit == (1,)
    assert find_slow([MeasuredLink((0, 1), problem="no answer")], None).slow


def test_who_was_only_busy_is_measured_again_and_has_none() -> None:
    links = measured(4, {1})
    (again,) = second_look(links, find_slow(links, None))
    assert again == (0, 1) and better(links[0], MeasuredLink(again, FAST)).bytes_per_s == FAST
    assert better(MeasuredLink(again, FAST), links[0]).bytes_per_s == FAST
    assert better(MeasuredLink(again, problem="no answer"), links[0]) is links[0]


@given(st.lists(st.sampled_from([*combinations(range(7), 2)]), unique=True))
def test_nobody_is_in_two_pairs_of_a_turn(pairs: list[tuple[int, int]]) -> None:
    dealt = turns(pairs)
    assert sorted(pair for turn in dealt for pair in turn) == sorted(pairs)
    for turn in dealt:
        nodes = [node for pair in turn for node in pair]
        assert turn and len(nodes) == len(set(nodes))


def test_a_ring_is_measured_in_two_turns_or_three() -> None:
    assert [len(turns(ring(range(count)))) for count in (1, 2, 3, 4, 9, 100)] == [0, 1, 3, 2, 3, 2]
    assert ring([4, 1, 7]) == [(1, 4), (1, 7), (4, 7)] and ring([3, 2]) == [(2, 3)]


def test_what_is_said() -> None:
    links = [
        MeasuredLink((0, 1), 1.234e6, 2e-4),
        MeasuredLink((1, 2), problem="no answer"),
        MeasuredLink((0, 2), 5e8, 1e-4),
    ]
    assert evidence(1, links, "50 MB/s wanted") == "links: to node 0 1.23 MB/s, to node 2 no answer; 50 MB/s wanted"
    text = "2 of 3 links between nodes measured: 251 MB/s, 1.23 MB/s at the least (node 0 and 1)"
    assert summary(links) == f"{text}, 0.2 ms there and back at most"
    assert summary(links[1:2]) == "0 of 1 link between nodes measured"
