"""Test the cost of a kill that is computed from its run's history."""

from launcher.apps.proof.findings import Kill
from launcher.apps.proof.judging import with_costs
from launcher.run.records import Event


def event(kind, attempt, generation, at=0.0, step=None, checkpoint=None):
    return Event(at, attempt, kind, "", generation=generation, step=step, checkpoint=checkpoint)


HISTORY = [
    event("training", 1, 1, 10.0, 1), event("failure", 1, 1, 20.5, 12, 8), event("training", 1, 2, 22.0, 9),
    event("training", 2, 1, 35.0, 17),
]  # fmt: skip
FIRST = {(1, 1): 1, (1, 2): 9, (2, 1): 17}
KILLS = [
    Kill(11, rank=1, attempt=1, generation=1, at=20.0, step=11), Kill(15, missed="it had ended"),
    Kill(18, attempt=1, generation=2, at=30.0, step=19),
]  # fmt: skip


def test_by_what_ranks_reported_and_the_coordinator_wrote_down():
    first, missed, last = with_costs(KILLS, HISTORY, FIRST, [])
    assert (first.step, first.went_on_from, first.steps_again, first.next_step_s) == (12, 8, 4, 2.0)
    assert missed == KILLS[1]
    assert (last.step, last.went_on_from, last.steps_again, last.next_step_s) == (19, 16, 3, 5.0)


def test_what_the_trainer_noted_counts_more():
    first, _, last = with_costs(KILLS, HISTORY, FIRST, [0, 10, 15])
    assert (first.went_on_from, last.went_on_from) == (10, 15)
    first, _, last = with_costs(KILLS, HISTORY, FIRST, [0, 10, 10, 15])
    assert (first.went_on_from, last.went_on_from) == (8, 16), "another start came in between: which is which?"


def test_a_rank_may_report_the_step_that_it_loads():
    first, *_ = with_costs(KILLS, HISTORY, {(1, 2): 8}, [])
    assert (first.went_on_from, first.steps_again) == (8, 4)


def test_who_never_trained_again_has_no_next_step():
    found = with_costs([Kill(18, attempt=2, generation=1, at=40.0, step=19)], HISTORY, {}, [])[0]
    assert (found.next_step_s, found.went_on_from, found.steps_again) == (None, 0, 19)
