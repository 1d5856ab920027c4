"""Test what a run waits for, in the ways in which people write it."""

import time

import pytest

from launcher.errors import BadInput
from launcher.spec.kinds.queueing import moment
from launcher.spec.model import Predecessor, QueueOptions
from launcher.spec.read import parse_spec

HEAD = "name: a\nrun: {script: t.py}\n"
NOON = time.mktime((2027, 1, 31, 12, 0, 0, 0, 0, -1))


def queue(text: str) -> QueueOptions:
    return parse_spec(f"{HEAD}queue: {text}\n", "job.yaml").queue


@pytest.mark.parametrize(
    ("text", "day", "clock"),
    [
        ("22:00", 31, (22, 0, 0)),
        ("12:00:01", 31, (12, 0, 1)),
        ("12:00", 32, (12, 0, 0)),  # it is noon now: the next one
        ("07:30", 32, (7, 30, 0)),
        ("2027-01-31", 31, (0, 0, 0)),
        ("2027-02-01 07:30", 32, (7, 30, 0)),
        ("2027-02-01T07:30:15", 32, (7, 30, 15)),
    ],
)
def test_a_moment_is_the_next_time_of_the_day_or_a_date(text: str, day: int, clock: tuple[int, int, int]) -> None:
    assert queue(f"{{at: '{text}'}}").at == text
    assert moment(text, NOON) == time.mktime((2027, 1, day, *clock, 0, 0, -1))


@pytest.mark.parametrize(
    ("day", "clock", "at"),
    [
        (1, (8, 0), 18),
        (5, (17, 59), 18),
        (1, (7, 59), None),
        (5, (18, 0), None),
        (6, (12, 0), None),
        (7, (12, 0), None),
    ],
)
def test_after_hours_is_when_people_are_not_at_work(day: int, clock: tuple[int, int], at: int | None) -> None:
    """The first of February 2027 is a Monday."""
    assert queue("{at: after-hours}").at == "after-hours"
    found = moment("after-hours", time.mktime((2027, 2, day, *clock, 0, 0, 0, -1)))
    assert found == (None if at is None else time.mktime((2027, 2, day, at, 0, 0, 0, 0, -1)))


@pytest.mark.parametrize("text", ["tonight", "24:00", "12:60", "2027-13-01", "2027-02-30", "2027-02-30 10:00", "22"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"queue\.at: expected a moment"):
        queue(f"{{at: '{text}'}}")


def test_runs_to_follow_and_what_they_have_to_have_come_to() -> None:
    after = queue("{after: [prep-7k3f, vit:ended, last:step 1000, x:succeeded]}").after
    assert after == (
        Predecessor("prep-7k3f"),
        Predecessor("vit", "ended"),
        Predecessor("last", "step", 1000),
        Predecessor("x"),
    )
    assert queue("{after: prep}").after == (Predecessor("prep"),)
    assert [str(one) for one in after[:3]] == ["prep-7k3f:succeeded", "vit:ended", "last:step 1000"]


@pytest.mark.parametrize(
    ("text", "hint"),
    [("vit:step1000", "write vit:step 1000"), ("vit:1000", "write vit:step 1000"), ("vit:failed", ""), ("../x", "")],
)
def test_what_is_no_run_to_follow_is_refused(text: str, hint: str) -> None:
    with pytest.raises(BadInput, match="expected a run, alone or with") as refused:
        queue(f"{{after: ['{text}']}}")
    assert hint in str(refused.value)


@pytest.mark.parametrize("text", ["100", "-100", "1.5", "'1'", "high", "010"])
def test_a_priority_is_a_small_number(text: str) -> None:
    with pytest.raises(BadInput, match=r"queue\.priority"):
        queue(f"{{priority: {text}}}")
    assert queue("{priority: -99}").priority == -99
