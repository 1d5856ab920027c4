"""How the trials of a sweep are shown."""

import pytest

from launcher.apps.sweeps.folder import TrialNote
from launcher.cli.starting.sweep import grouped


@pytest.mark.parametrize(("best", "order"), [(0, [3, 0, 2, 4, 1]), (2, [3, 2, 0, 4, 1])])
def test_trials_are_grouped_by_state_and_the_best_come_first(best, order):
    trials = [
        TrialNote(0, "complete", "r0", {}, 0.25),
        TrialNote(1, "failed", "r1", {}),
        TrialNote(2, "complete", "r2", {}, 0.5),
        TrialNote(3, "running", "r3", {}),
        TrialNote(4, "pruned", "r4", {}, 0.1),
    ]
    assert [one.number for one in grouped(trials, trials[best])] == order
