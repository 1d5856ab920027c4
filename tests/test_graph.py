"""Test the steps of a file together: one state for all, and one tree."""

from types import SimpleNamespace

import pytest

from launcher.apps.graph import StepStatus, state_of
from launcher.cli.graphs.tree import branches
from launcher.ids import parse_run_id
from launcher.states import State


def step(state):
    """Return a step of a graph in that state; None for one that was not started."""
    status = SimpleNamespace(state=state) if state is not None else None
    return StepStatus("a", (), parse_run_id("x-7k3f-a"), status)


@pytest.mark.parametrize(
    ("states", "together"),
    [
        ([State.SUCCEEDED, State.SUCCEEDED], State.SUCCEEDED),
        ([State.SUCCEEDED, State.RUNNING, State.QUEUED], State.RUNNING),
        ([State.FAILED, State.QUEUED], State.QUEUED),
        ([State.SUCCEEDED, State.FAILED, State.CANCELLED], State.FAILED),
        ([State.CANCELLED, State.SUCCEEDED], State.CANCELLED),
        ([State.RUNNING, State.UNKNOWN], State.UNKNOWN),
        ([State.SUCCEEDED, None], State.LOST),
        ([State.RUNNING, None], State.RUNNING),
    ],
)
def test_the_furthest_that_goes_on_counts_and_else_the_worst_end(states, together):
    assert state_of([step(state) for state in states]) is together


def test_every_state_has_its_place():
    assert [state_of([step(state)]) for state in State] == [*State]


def test_a_step_is_drawn_below_the_last_of_those_that_it_needs():
    needs = {"a": (), "b": (), "c": ("a",), "d": ("a", "b"), "e": ("d",), "f": ("a",)}
    assert branches(needs) == {
        "a": "├─ ", "c": "│  ├─ ", "f": "│  └─ ", "b": "└─ ", "d": "   └─ ", "e": "      └─ ",
    }  # fmt: skip
