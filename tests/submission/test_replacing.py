"""Hosts in place of lost ones: a run that a silent host may go on with is not resumed elsewhere."""

import pytest

from launcher.states import State
from launcher.submission.replacing import may_replace


@pytest.mark.parametrize(
    ("state", "listed", "usable", "may"),
    [
        (State.FAILED, {"a", "b", "c"}, {"a", "c"}, True),  # a majority has said that b is lost
        (State.INTERRUPTED, {"b", "c"}, {"b", "c"}, True),
        (State.INTERRUPTED, {"b", "c"}, {"c"}, False),  # b is silent and still there: it may go on
        (State.INTERRUPTED, {"a", "b", "c"}, {"b", "c"}, False),  # nobody says that the silent one is gone
        (State.UNKNOWN, {"b", "c"}, {"c"}, False),
        (State.UNKNOWN, {"c"}, {"c"}, True),
    ],
)
def test_a_host_that_may_go_on_is_never_replaced(state, listed, usable, may):
    assert may_replace(state, {"a", "b"}, listed, usable) is may
