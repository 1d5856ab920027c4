import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.checkpoint_files.retention import expired


def test_the_newest_good_ones_stay():
    assert expired([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], 3) == [1, 2]
    assert expired([5, 1, 3], [5, 3, 1], 1) == [1, 3]


def test_one_that_nobody_has_looked_at_does_not_count():
    assert expired([1, 2, 3, 4, 5], [2, 5], 2) == [1]
    assert expired([1, 2, 3, 4, 5], [1, 3], 2) == []


def test_nothing_goes_while_there_are_too_few_good_ones():
    assert expired([1, 2, 3, 4], [4], 2) == []
    assert expired([1, 2, 3, 4], [], 1) == []
    assert expired([], [], 1) == []


def test_a_good_one_that_is_gone_does_not_count():
    assert expired([1, 2, 3], [3, 9], 2) == []


@pytest.mark.parametrize("keep", [0, -1])
def test_nobody_can_ask_for_none(keep):
    with pytest.raises(ValueError, match="at least 1"):
        expired([1, 2], [1, 2], keep)


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)), st.integers(1, 5))
def test_what_is_left_is_enough(steps, good, keep):
    gone = set(expired(steps, good, keep))
    assert gone <= steps
    left = steps - gone
    assert len(left & good) >= min(keep, len(steps & good)), "good ones"
    assert not gone or max(gone) < min(left & good), "only older ones"
    assert not gone or len(left & good) == keep, "no more than asked for"
    assert expired(left, good & left, keep) == []
