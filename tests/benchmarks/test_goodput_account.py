"""Test goodput_account.py with made-up notes."""

import pytest

from tests.benchmarks.goodput_account import (
    Blow,
    Decided,
    Note,
    at_gap,
    costs,
    first_of_all,
    middle_costs,
    newest,
    pace,
    read_notes,
    useful_steps,
)


def training(ranks, steps, *, began, pid=100, every_s=1.0, first=1, what="step"):
    """Every rank makes a step each second; a rank's process is that number and its own."""
    return [
        Note(began + every_s * number, rank, pid + rank, f"node{rank}", first + number, what)
        for number in range(steps)
        for rank in ranks
    ]


def birth(ranks, at, pid, step=0):
    """Return the notes of a process before its first step, a tenth of a second for each phase."""
    whats = ("begun", "imported", "met", "loaded")
    return [
        Note(at + 0.1 * index, rank, pid + rank, f"node{rank}", step, what)
        for rank in ranks
        for index, what in enumerate(whats)
    ]


def test_a_line_that_is_still_being_written_is_no_note():
    text = "2.5 1 77 node1 4 step\n1.5 0 76 node0 4 step\n3.5 0 76 no"
    assert read_notes(text) == [Note(1.5, 0, 76, "node0", 4, "step"), Note(2.5, 1, 77, "node1", 4, "step")]
    assert read_notes("3.5 0") == []


def test_a_step_that_is_made_again_counts_once():
    before, after = training(range(3), 10, began=0), training(range(3), 10, began=20, pid=200, first=6)
    assert useful_steps([*before, *after], 3, -1, 100) == 15
    assert useful_steps([*before, *after], 3, 15, 100) == 5, "what was made before the time begins is nothing new"
    assert useful_steps([*before, *after], 3, -1, 22) == 10


def test_a_step_that_only_some_ranks_make_counts_as_that_part():
    assert useful_steps(training(range(2), 9, began=0), 3, -1, 100) == pytest.approx(6)


def test_pace_and_first_step_of_all():
    notes = sorted(training([0, 1], 20, began=0) + training([2], 20, began=4.5))
    assert first_of_all(notes, 3) == 4.5
    assert first_of_all(notes, 4) is None
    assert first_of_all(notes, 3, after=10) == 11
    assert pace(training(range(3), 20, began=0), 3, 0.5, 10.5) == 1


def test_the_newest_process_of_each_rank():
    notes = sorted([*birth(range(3), 0, 100), *birth([1], 5, 200)])
    assert [note.pid for note in newest(notes)] == [100, 201, 102]


def disturbed():
    """Ten steps, a blow half a second later, two seconds until a new start, which goes on from step 8."""
    return sorted(
        [
            *birth(range(3), -1, 100),
            *training(range(3), 10, began=0),
            *birth(range(3), 11.5, 200, step=8),
            *training(range(3), 10, began=13, pid=200, first=9),
        ]
    )


def test_the_time_of_a_fault_by_phase():
    (cost,) = costs(disturbed(), 3, [Blow(9.5, "kill-rank")], [Decided(10.0, 11.0)], 1.0, 30.0)
    phases = {"noticed": 0.5, "decided": 1.0, "begun": 0.5, "imported": 0.1, "met": 0.1, "loaded": 0.1, "step": 1.2}
    assert cost.phases == pytest.approx(phases)
    assert cost.again_s == 2
    assert cost.total_s == pytest.approx(3.5 + 2)


def test_what_a_peer_does_not_tell_is_in_its_first_phase():
    (cost,) = costs(disturbed(), 3, [Blow(9.5, "kill-rank")], [], 2.0, 30.0)
    assert cost.phases["begun"] == pytest.approx(2.0)
    assert "noticed" not in cost.phases
    assert cost.again_s == 1


def test_one_rank_that_starts_anew_is_enough():
    notes = sorted(
        [
            *birth(range(3), -1, 100),
            *training([0, 1], 30, began=0),
            *training([2], 10, began=0),
            *birth([2], 12, 200),
            *training([2], 10, began=14, pid=200, first=15),
        ]
    )
    (cost,) = costs(notes, 3, [Blow(9.5, "kill-rank")], [], 1.0, 30.0)
    assert cost.total_s == pytest.approx(4.5)


def test_a_fault_that_starts_nobody_anew_costs_the_time_without_a_step():
    notes = sorted([*training(range(3), 10, began=0), *training(range(3), 10, began=13, first=11)])
    costs_of = lambda at, until: costs(notes, 3, [Blow(at, "kill-zygote")], [], 1.0, until)  # noqa: E731
    (stood,), (calm,) = costs_of(9.5, 22.5), costs_of(15.2, 22.5)
    assert (stood.phases, stood.total_s, calm.total_s) == ({}, pytest.approx(3.0), pytest.approx(0.0))
    assert costs_of(21.5, 40.0) == [], "there was one more step, and then none"


def test_a_fault_that_never_ends_has_no_cost():
    notes = disturbed()
    assert costs([note for note in notes if note.at < 13], 3, [Blow(9.5, "kill-rank")], [], 1.0, 30.0) == []
    two = [Blow(9.5, "kill-rank"), Blow(12.0, "kill-rank")]
    assert costs(notes, 3, two, [], 1.0, 30.0) == [], "nobody knows what each of them took"


def test_medians_by_fault():
    found = costs(disturbed(), 3, [Blow(9.5, "kill-rank")], [Decided(10.0, 11.0)], 1.0, 30.0)
    count, phases, next_step, again, whole = middle_costs(found * 3)["kill-rank"]
    assert (count, next_step, again, whole) == (3, pytest.approx(3.5), 2, pytest.approx(5.5))
    assert list(phases) == ["noticed", "decided", "begun", "imported", "met", "loaded", "step"]


def test_seldom_faults_cost_as_much_each():
    assert at_gap(0.7, 20, 60) == pytest.approx(0.9)
    assert at_gap(0.7, 20, 20) == pytest.approx(0.7)
