"""How long a silence is that a run's own steps do not explain."""

import pytest

from launcher.coordinator.inquiry import CEILING_S, FLOOR_S, StepTimes


def after(*gaps_s: float) -> StepTimes:
    """A run whose steps took so long."""
    times, now = StepTimes(), 0.0
    times.note(0, now)
    for step, gap_s in enumerate(gaps_s, 1):
        now += gap_s
        assert times.note(step, now)
    return times


@pytest.mark.parametrize("gaps", [(), (40.0,)])
def test_before_the_second_step_nothing_is_known_of_a_run(gaps: tuple[float, ...]) -> None:
    assert after(*gaps).suspicious_s() == CEILING_S


@pytest.mark.parametrize(
    ("gaps", "limit_s"),
    [
        ([0.1] * 30, FLOOR_S),  # short steps
        ([2.0] * 30, 40.0),  # twenty of a usual one
        ([0.1] * 30 + [25.0], 75.0),  # a validation, a save or a compilation: another one like it is usual
        ([0.1] * 30 + [25.0] + [0.1] * 200, 75.0),  # however long ago
        ([0.1, 4.0] * 30, 41.0),  # uneven data: the median of both
        ([30.0] * 5, CEILING_S),
    ],
)
def test_the_limit_follows_usual_steps_and_the_longest_pause(gaps: list[float], limit_s: float) -> None:
    assert after(*gaps).suspicious_s() == pytest.approx(limit_s, abs=0.01)


def test_several_steps_in_one_report_are_so_many_steps() -> None:
    times = StepTimes()
    for second in range(10):
        times.note(second * 100, 4.0 * second)
    assert times.suspicious_s() == 12.0  # three reports are the longest pause


def test_a_step_that_was_reported_before_is_no_progress() -> None:
    times = after(1.0, 1.0)
    assert not times.note(2, 50.0)
    assert not times.note(1, 60.0)
    assert not times.note(None, 70.0)
    assert times.still_s(70.0) == 68.0
