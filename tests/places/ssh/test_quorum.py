"""Two sides of a cut network never both go on, whatever the numbers."""

import itertools

import pytest

from launcher.plan.on_hosts import may_take_over, quorum


@pytest.mark.parametrize("hosts", range(1, 40))
def test_never_both_sides(hosts):
    for with_leader in range(1, hosts + 1):
        assert not (with_leader >= quorum(hosts) and may_take_over(hosts - with_leader, hosts))


def test_one_side_goes_on_unless_it_is_cut_in_many():
    for hosts in range(1, 40):
        for lost in range(hosts // 2 + 1):
            with_leader = hosts - lost
            assert with_leader >= quorum(hosts), (hosts, lost)
        assert not may_take_over(1, 2)
        assert may_take_over(hosts - 1, hosts) == (hosts > 2)


def test_two_candidates_cannot_both_have_a_majority():
    for hosts in range(1, 9):
        for first in range(hosts + 1):
            for second in range(hosts - first + 1):
                assert not (may_take_over(first, hosts) and may_take_over(second, hosts))


def test_after_a_host_was_counted_out_the_next_loss_is_borne():
    """4 hosts, one lost and counted out, then the leader: two of three decide, and the one that was cut off cannot."""
    before, after = {0, 1, 2, 3}, {0, 2, 3}
    assert 2 * len(after) > len(before)
    assert may_take_over(len({2, 3}), len(after))
    alone = [set(group) for size in (1, 2) for group in itertools.combinations(before - after | {0}, size)]
    assert not any(may_take_over(len(group), len(before)) for group in alone)
