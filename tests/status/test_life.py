"""Test what the time of a run was spent on, from its events."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.run.records import TOLD, Event
from launcher.states import Cause
from launcher.status.life import Doing, life_of


def event(at, kind, attempt=1, generation=0, **more):
    return Event(float(at), attempt, kind, f"{kind} at {at}", generation, **more)


def begun(at=0, attempt=1, kind="submitted", first=1):
    """Return the events of a start whose first step came ten seconds after the submit, two of them in a queue."""
    return [
        event(at, kind, attempt),
        event(at + 2, "agent_joined", attempt),
        event(at + 3, "generation_opened", attempt, 1),
        event(at + 10, "training", attempt, 1, step=first),
    ]


def strip(life):
    """Return the stretches of time, with equal neighbours joined."""
    found = []
    for one in life.segments:
        since = found.pop()[1] if found and found[-1][0] == one.kind else one.since
        found.append((one.kind.value, since, one.until))
    return found


def test_a_run_that_nothing_befell():
    life = life_of([*begun(), event(110, "ended", 1, 1, step=101)], 110.0, 101)
    assert strip(life) == [("waiting", 0, 2), ("starting", 2, 10), ("training", 10, 110)]
    assert (life.since, life.until) == (0, 110)
    assert life.goodput == pytest.approx(100 / 108)  # the queue before the start is nobody's fault
    assert life.counted_s == 108
    assert life.seconds[Doing.TRAINING] == 100


def test_where_others_join_no_step_is_made_again():
    events = [
        *begun(),
        event(50, "joining", 1, 1, step=41),
        event(60, "generation_opened", 1, 2, step=51, checkpoint=41),
        event(62, "training", 1, 2, step=52),
    ]
    life = life_of(events, 100.0, 90)
    assert strip(life) == [
        ("waiting", 0, 2),
        ("starting", 2, 10),
        ("training", 10, 60),
        ("recovering", 60, 62),
        ("training", 62, 100),
    ]


def test_steps_that_were_made_again_count_once():
    events = [
        *begun(),
        event(70, "failure", 1, 1, step=61, checkpoint=41, rank=3, node=0, cause=Cause.KILLED, ran_s=67.0),
        event(71, "regroup", 1, 1, step=61),
        event(74, "generation_opened", 1, 2, step=61, checkpoint=41),
        event(80, "training", 1, 2, step=42),
    ]
    life = life_of(events, 100.0, 62)
    assert strip(life) == [
        ("waiting", 0, 2),
        ("starting", 2, 10),
        ("training", 10, 50),
        ("lost", 50, 70),
        ("recovering", 70, 71),
        ("waiting", 71, 74),
        ("recovering", 74, 80),
        ("training", 80, 100),
    ]
    assert life.goodput == pytest.approx(60 / 98)
    mark = next(one for one in life.marks if one.kind == "failure")
    assert (mark.rank, mark.cause, mark.step) == (3, Cause.KILLED, 61)
    assert mark.log == "logs/a0001.g0001/rank-00003.log"


def test_a_generation_that_is_wholly_undone_by_a_later_one_is_lost():
    """The second one's checkpoints were damaged: the third goes on from before it."""
    events = [
        *begun(),
        event(50, "failure", 1, 1, step=41, checkpoint=40),
        event(60, "training", 1, 2, step=41),
        event(70, "failure", 1, 2, step=51, checkpoint=40),
        event(80, "training", 1, 3, step=22),
    ]
    kinds = [(kind, since, until) for kind, since, until in strip(life_of(events, 90.0, 32)) if kind != "recovering"]
    assert kinds[2:] == [("training", 10, 30), ("lost", 30, 50), ("lost", 60, 70), ("training", 80, 90)]


def test_training_ends_with_the_last_step_however_late_a_hang_is_seen():
    events = [*begun(), event(400, "failure", 1, 1, step=91, ran_s=397.0, still_s=300.0, cause=Cause.HANG)]
    life = life_of(events, 410.0)
    assert strip(life)[2:] == [("training", 10, 100), ("recovering", 100, 410)]


def test_ranks_that_were_to_be_elsewhere_have_trained_until_they_saved():
    events = [*begun(), event(60, "regroup", 1, 1, step=91, still_s=5.0), event(61, "generation_opened", 1, 2, step=91)]
    life = life_of([*events, event(63, "training", 1, 2, step=92)], 70.0)
    assert strip(life)[2:] == [("training", 10, 55), ("recovering", 55, 63), ("training", 63, 70)]


def test_of_an_attempt_that_vanished_nothing_is_called_training_that_nobody_wrote_down():
    seen_late = [*begun(), event(3600, "failure", 1, 1, step=91, ran_s=97.0), event(3600, "requeue")]
    assert strip(life_of(seen_late, 3610.0))[2:] == [
        ("training", 10, 100), ("recovering", 100, 3600), ("waiting", 3600, 3610)
    ]  # fmt: skip
    never_seen = [*begun(), event(40, "disk", 1, 1, step=31), *begun(9000, 2, "resumed", first=32)]
    life = life_of(never_seen, 9020.0, 41)
    assert strip(life)[2:] == [
        ("training", 10, 40), ("idle", 40, 9000), ("waiting", 9000, 9002), ("starting", 9002, 9010),
        ("training", 9010, 9020),
    ]  # fmt: skip


def test_what_no_launcher_can_mend_is_not_counted():
    ended = event(50, "ended", 1, 1, step=41, cause=Cause.CANCELLED)
    again = [event(1000, "resumed", 2), event(1100, "agent_joined", 2), event(1110, "training", 2, 1, step=42)]
    life = life_of([*begun(), ended, *again, event(1150, "ended", 2, 1, step=82)], 1150.0)
    assert [kind for kind, _, _ in strip(life)[2:]] == ["training", "idle", "waiting", "starting", "training"]
    assert life.counted_s == 8 + 40 + 10 + 40
    assert life.goodput == pytest.approx(80 / 98)


def test_a_requeue_waits_and_then_recovers():
    events = [
        *begun(),
        event(40, "failure", 1, 1, step=31, cause=Cause.PREEMPTED),
        event(41, "requeue", 1, 1, step=31),
        event(100, "agent_joined", 2, step=31),
        event(120, "training", 2, 1, step=32),
    ]
    assert strip(life_of(events, 130.0))[3:] == [
        ("recovering", 40, 41), ("waiting", 41, 100), ("recovering", 100, 120), ("training", 120, 130)
    ]  # fmt: skip


def test_of_a_script_that_reports_no_step_there_is_a_strip_and_no_goodput():
    events = [*begun()[:3], event(30, "failure", 1, 1, ran_s=27.0), event(33, "generation_opened", 1, 2)]
    life = life_of(events, 50.0)
    assert strip(life)[1:] == [("starting", 2, 3), ("running", 3, 30), ("recovering", 30, 33), ("running", 33, 50)]
    assert life.goodput is None


def test_of_an_older_coordinator_training_lasts_as_long_as_the_ranks():
    events = [
        *begun()[:3],
        event(53, "failure", 1, 1, step=50, checkpoint=40),
        event(54, "generation_opened", 1, 2, step=50, checkpoint=40),
        event(55, "failure", 1, 2, step=50, checkpoint=40),  # before its first step
        event(56, "generation_opened", 1, 3, step=50, checkpoint=40),
    ]
    assert strip(life_of(events, 76.0, 60))[1:] == [
        ("starting", 2, 3), ("training", 3, pytest.approx(43, abs=1.1)), ("lost", pytest.approx(43, abs=1.1), 53),
        ("recovering", 53, 56), ("training", 56, 76),
    ]  # fmt: skip


def test_of_a_run_that_has_just_been_made_nothing_is_known():
    life = life_of([], 10.0)
    assert (life.goodput, life.segments, life.marks) == (None, (), ())
    assert life_of([event(3, "submitted")], 3.0).segments == ()


def test_that_somebody_was_told_is_no_mark():
    life = life_of([*begun(), event(12, TOLD)], 20.0)
    assert [mark.kind for mark in life.marks] == ["submitted", "agent_joined", "generation_opened", "training"]


def test_the_wire_says_from_and_to():
    told = msgspec.json.decode(msgspec.json.encode(life_of(begun(), 20.0)))
    assert (told["from"], told["to"], told["segments"][0]["from"], told["seconds"]["training"]) == (0, 20, 0, 10)


KINDS = ["submitted", "resumed", "agent_joined", "generation_opened", "training", "failure", "regroup", "requeue",
         "ended", "disk"]  # fmt: skip
SECONDS = st.floats(-1e3, 1e6)
STEPS = st.none() | st.integers(0, 100)
EVENTS = st.lists(
    st.builds(
        Event,
        at=SECONDS,
        attempt=st.integers(1, 4),
        kind=st.sampled_from(KINDS),
        text=st.just("something"),
        generation=st.integers(0, 3),
        step=STEPS,
        checkpoint=STEPS,
        ran_s=st.floats(0, 1e5),
        still_s=st.floats(0, 1e5),
    ),
    max_size=25,
)


@given(EVENTS, SECONDS, STEPS)
def test_whatever_was_written_down_the_strip_has_no_gap_and_goodput_is_a_share(events, until, step):
    life = life_of(events, until, step)
    ends = [one.until for one in life.segments]
    assert [one.since for one in life.segments[1:]] == ends[:-1]
    assert all(one.since < one.until for one in life.segments)
    assert sum(life.seconds.values()) == pytest.approx(life.until - life.since, abs=1e-6)
    assert life.goodput is None or 0 <= life.goodput <= 1 + 1e-9
    assert 0 <= life.counted_s <= life.until - life.since + 1e-6


@given(st.integers(0, 200), st.integers(1, 100))
def test_as_much_is_lost_as_was_made_again(kept, more):
    """A step a second, and each generation loses what its checkpoint does not have."""
    made = kept + more
    events = [event(0, "submitted"), event(0, "generation_opened", 1, 1), event(1, "training", 1, 1, step=1)]
    events += [event(made, "failure", 1, 1, step=made), event(made + 5, "training", 1, 2, step=kept + 1)]
    life = life_of(events, made + 6.0)
    assert life.seconds[Doing.LOST] == pytest.approx(min(more, made - 1))
