"""The judge bites: each violation is seen in a record that has it, and nothing in one that has none."""

from dataclasses import replace

import pytest

from tests.chaos.audit import Deed, Promise, Told, chain_fingerprint, steps_lost, violations

PROMISE = Promise(answer_s=30.0)


def deed(at, what, step, incarnation=(1, 1), rank=0):
    return Deed(at, what, *incarnation, rank, step, "node0", 7)


def observed(at, state, who="the user", took=0.1):
    """Return the record that `who` was shown this state at this time, after a request of `took` seconds."""
    return Told(at, who, state, took)


RIGHT = [
    deed(1, "start", 0), deed(1, "start", 0, rank=1), deed(2, "step", 1), deed(3, "save", 1), deed(4, "step", 2),
    deed(6, "start", 1, (1, 2)), deed(7, "step", 2, (1, 2)), deed(9, "end", 2, (1, 2)),
]  # fmt: skip
WORDS = [
    observed(2, "running"),
    observed(5, None),
    observed(6, "restarting"),
    observed(10, "succeeded"),
    observed(11, "succeeded"),
]


def test_nothing_wrong():
    assert violations(RIGHT, WORDS, PROMISE) == []
    assert steps_lost(RIGHT) == 1


@pytest.mark.parametrize("late", [deed(6.5, "step", 3, rank=1), deed(6.5, "save", 5), deed(8, "start", 0)])
def test_two_incarnations_at_once(late):
    assert "two incarnations at once" in violations([*RIGHT, late], WORDS, PROMISE)[0]


def test_progress_lost():
    begun_anew = [replace(one, step=0) if one.what == "start" and one.generation == 2 else one for one in RIGHT]
    (said,) = violations(begun_anew, WORDS, PROMISE)
    assert said == "progress lost: Incarnation(attempt=1, generation=2) began at step 0, and 1 was safe"


def test_what_has_no_second_copies_is_not_safe():
    apart = replace(PROMISE, kept="safe")
    assert violations(RIGHT, WORDS, apart) == ["no step was ever safe"]
    begun_anew = [replace(one, step=0) if one.what == "start" and one.generation == 2 else one for one in RIGHT]
    assert violations([*begun_anew, deed(6.5, "safe", 1, (1, 2))], WORDS, apart) == []
    assert "progress lost" in violations([*begun_anew, deed(3.5, "safe", 1)], WORDS, apart)[0]


def test_what_a_fault_has_damaged_may_be_passed_over():
    saved = [*RIGHT, deed(4.5, "save", 2)]
    assert "began at step 1, and 2 was safe" in violations(saved, WORDS, PROMISE)[0]
    assert violations(saved, WORDS, replace(PROMISE, damaged=frozenset({2}))) == []
    begun_anew = [replace(one, step=0) if one.what == "start" else one for one in saved]
    (said,) = violations(begun_anew, WORDS, replace(PROMISE, damaged=frozenset({2})))
    assert "began at step 0, and 1 was safe" in said


@pytest.mark.parametrize("state", ["failed", "lost", "cancelled", "succeeded"])
def test_an_end_that_is_none(state):
    assert "before the last step" in violations(RIGHT, [observed(4, state)], PROMISE)[0]


def test_what_was_lost_may_be_resumed_by_a_person_and_not_by_itself():
    words = [observed(5, "lost"), observed(10, "succeeded")]
    assert violations(RIGHT, words, replace(PROMISE, resumed=(5.5,))) == []
    assert "told lost 2.0 s before" in violations(RIGHT, words, replace(PROMISE, resumed=(4.5, 7.5)))[0]


def test_what_ended_goes_on():
    assert (
        "was told failed, and then running"
        in violations(RIGHT, [observed(10, "failed"), observed(11, "running")], PROMISE)[0]
    )


def test_success_that_nobody_reached():
    assert "no rank has reached its end" in violations(RIGHT[:-1], [observed(10, "succeeded")], PROMISE)[0]


def test_a_long_wait_for_an_answer():
    assert "waited 31 s" in violations(RIGHT, [observed(10, None, took=31)], PROMISE)[0]


def test_each_observer_is_judged_alone():
    words = [observed(10, "succeeded"), observed(10.1, "running", "another"), observed(11, "succeeded", "another")]
    assert violations(RIGHT, words, PROMISE) == []


def test_the_weights_that_nothing_disturbs_are_those_of_a_run(lab):
    spec = lab.chain(args="steps: 12\npause: 0", resources="nodes: 2\nranks_per_node: 2")
    assert lab.wait(lab.submit(spec))["fingerprint"] == chain_fingerprint(12, 4)
