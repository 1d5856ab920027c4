"""The clock of leases: a suspend counts, and one's own standstill can be told from others' silence."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.clock import ENDING_S, STEP_S, WakingClock, boottime, lease_of_ranks, node_lost_after_s


def test_it_runs_on_while_the_machine_is_suspended():
    before, now, after = time.clock_gettime(time.CLOCK_BOOTTIME), boottime(), time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= now <= after


@given(st.floats(0.001, 1e6))
def test_ranks_are_ended_a_second_before_others_take_their_places(lease_s):
    """Within the lease where it has the seconds, and never in so much of it that no heartbeat could renew it."""
    ranks_s, places_s = lease_of_ranks(lease_s), node_lost_after_s(lease_s)
    assert places_s - ranks_s == pytest.approx(ENDING_S)
    assert ranks_s >= 0.79 * lease_s
    assert places_s >= lease_s or places_s == pytest.approx(lease_s)
    assert lease_s < 5 * ENDING_S or places_s == pytest.approx(lease_s)


def shown(*moments):
    """Return what a clock shows when it is read at these times, and how long it was suspended."""
    at = iter([moments[0], *moments])
    clock = WakingClock(lambda: next(at))
    return [clock.now() for _ in moments], clock.slept_s


def test_who_looks_often_sees_time_as_it_is():
    moments = [100.0, 100.5, 102.0, 102.0 + STEP_S]
    assert shown(*moments) == (moments, 0.0)


def test_what_it_after_suspend_is_left_out():
    moments, slept_s = shown(100.0, 160.0, 161.0, 3_761.0)
    assert moments == [100.0, 100.0 + STEP_S, 101.0 + STEP_S, 101.0 + 2 * STEP_S]
    assert slept_s == 3_661.0 - 1.0 - 2 * STEP_S
    assert all(later >= earlier for earlier, later in pairwise(moments))
