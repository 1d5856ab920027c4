"""Test which notifications are due, from the records of a run."""

import msgspec
import pytest
from run_folder import state_of

from launcher.run.records import NOT_TOLD, TOLD, AttemptEnd, Event, Failure, NotFinite
from launcher.states import Cause, State
from launcher.supervisor.notify.due import Glance, due, mark, settled
from launcher.supervisor.notify.record import Notifying, Recipient

ALL = Notifying((Recipient("json-1", "json", "http://127.0.0.1/"),), ("started", "restarted", "stalled", "ended"))
SUBMITTED = Event(1.0, 1, "submitted", "submitted job.yaml to local")
OPENED = Event(2.0, 1, "generation_opened", "generation 1", generation=1)
FAILED = Failure(
    Cause.USER_ERROR, "rank 0 on node 0: KeyError: 'lr' (train.py:7 in step)", 1, 1, where="train.py:7 in step",
    tail=("Traceback", "KeyError: \x1b[31m'lr'"),
)  # fmt: skip


def of(events=(SUBMITTED, OPENED), state=State.RUNNING, end=None, still_s=0.0, over=False, what=ALL, attempt=1, **more):
    record = state_of("job-1", state, attempt, **more)
    return {one.kind: one for one in due(what, Glance(events, record, end, still_s, over), 9.0)}


def failure(generation, attempt=1):
    return Event(3.0, attempt, "failure", "killed", generation=generation, cause=Cause.KILLED)


def opened(generation, attempt=1):
    return Event(4.0, attempt, "generation_opened", "again", generation=generation)


def test_nothing_is_told_before_ranks_are_there():
    assert of(events=(SUBMITTED,), state=State.STARTING) == {}
    assert due(ALL, Glance((), None, None), 9.0) == []


def test_a_start_is_told_with_where_and_how_many():
    assert of(world_size=2)["started"].title == "job-1 has started on local with 2 ranks"
    assert of(world_size=1)["started"].title.endswith("with 1 rank")


def test_each_message_tells_of_its_own_moment():
    end = {"failure": FAILED, "cause": Cause.USER_ERROR, "exit_code": 10, "step": 7, "message": "gave up"}
    events = [SUBMITTED, OPENED, failure(1), Event(3.5, 1, "regroup", "again", generation=1), opened(2)]
    found = of(events=events, state=State.FAILED, what=msgspec.structs.replace(ALL, restarts=0), **end)
    started, restarted = found["started"], found["restarted"]
    assert (started.state, started.at, started.step) == ("running", 2.0, None)
    for one in (started, restarted):
        assert (one.state, one.cause, one.exit_code, one.summary, one.tail) == ("running", None, None, "", ())
    assert (found["ended"].state, found["ended"].exit_code) == ("failed", 10)


@pytest.mark.parametrize(("restarts", "told"), [(3, False), (4, True), (7, True)])
def test_restarts_are_told_beyond_a_number_and_once(restarts, told):
    events = [SUBMITTED, OPENED]
    for number in range(1, restarts + 1):
        events += [failure(number), Event(3.5, 1, "regroup", "again", generation=number), opened(number + 1)]
    found = of(events=events).get("restarted")
    assert (found is not None) == told
    if found is not None:
        assert found.key == "restarted/1"
        assert found.title == f"job-1 was restarted {restarts} times: killed {restarts}"


def test_what_a_person_resumes_is_told_anew_and_counts_anew():
    again = Event(3.5, 1, "regroup", "again", generation=1)
    events = [SUBMITTED, OPENED, failure(1), again, opened(2), Event(5.0, 2, "resumed", "resumed"), opened(1, 2)]
    assert of(events=events, attempt=2)["started"].key == "started/2"
    assert "restarted" not in of(events=events, attempt=2, what=msgspec.structs.replace(ALL, restarts=0))


def test_attempts_that_follow_by_themselves_are_one_life():
    events = [SUBMITTED, OPENED, failure(1), Event(3.0, 1, "requeue", ""), opened(1, 2)]
    found = of(events=events, attempt=2, state=State.SUCCEEDED, what=msgspec.structs.replace(ALL, restarts=0))
    assert [found[kind].key for kind in ("started", "restarted", "ended")] == ["started/1", "restarted/1", "ended/1"]


@pytest.mark.parametrize(
    ("state", "step", "still_s", "told"),
    [
        (State.RUNNING, 7, 599.0, False),
        (State.RUNNING, 7, 600.0, True),
        (State.RUNNING, None, 9999.0, False),  # a script that reports nothing
        (State.STARTING, None, 600.0, True),
        (State.REGROUPING, 7, 600.0, True),
        (State.SUCCEEDED, 7, 9999.0, False),
        (State.UNKNOWN, 7, 600.0, True),
    ],
)
def test_a_run_stands_still(state, step, still_s, told):
    found = of(state=state, step=step, still_s=still_s).get("stalled")
    assert (found is not None) == told
    if found is not None:
        assert found.title.endswith("nothing new for 10 min")


def test_standing_still_at_another_step_is_told_again():
    assert of(step=7, still_s=600.0)["stalled"].key != of(step=8, still_s=600.0)["stalled"].key


def test_nothing_stalls_once_its_supervisor_has_left():
    assert "stalled" not in of(step=7, still_s=600.0, over=True)


def test_any_progress_is_another_mark():
    before = state_of("job-1", State.RUNNING, 1, step=1)
    changed = [{"step": 2}, {"checkpoint": 1}, {"metrics": {"loss": 1.0}}, {"generation": 2}, {"attempt": 2}]
    assert all(mark(msgspec.structs.replace(before, **one)) != mark(before) for one in changed)
    assert mark(msgspec.structs.replace(before, updated_at=9.0)) == mark(before)


def test_an_end_is_told_with_cause_numbers_traceback_and_how_to_go_on():
    found = of(
        state=State.FAILED, cause=Cause.USER_ERROR, exit_code=10, failure=FAILED, step=5, total_steps=9,
        metrics={"loss": 0.25, "acc": 0.5}, not_finite={"acc": NotFinite("NaN", 3)}, checkpoint=4,
    )["ended"]  # fmt: skip
    assert found.title == "job-1 failed: user_error"
    assert found.text.splitlines() == [
        "job-1 failed: user_error",
        "rank 0 on node 0: KeyError: 'lr' (train.py:7 in step)",
        "step 5 of 9, loss 0.25, acc NaN since step 3, checkpoint 4",
        "Traceback",
        "KeyError: 'lr'",
        "next: mend train.py:7, then launch resume job-1 --code",
    ]


def test_the_text_of_a_success_has_no_failure_that_was_overcome():
    found = of(state=State.SUCCEEDED, failure=FAILED, step=9)["ended"]
    assert found.text.splitlines() == ["job-1 succeeded", "step 9"]


def test_the_end_record_decides_where_nobody_writes_the_state_any_more():
    end = AttemptEnd(State.FAILED, Cause.NODE_LOST, 15, 8.0, "the agent is gone")
    assert "ended" not in of(end=end)
    found = of(end=end, over=True)["ended"]
    assert (found.title, found.summary, found.exit_code) == ("job-1 failed: node_lost", "the agent is gone", 15)


def test_an_end_that_another_attempt_follows_is_none():
    assert "ended" not in of(end=AttemptEnd(State.QUEUED, Cause.KILLED, 12, 8.0), state=State.QUEUED, over=True)


def test_a_host_that_speaks_for_itself_alone_tells_nobody():
    assert "ended" not in of(state=State.FAILED, end=AttemptEnd(State.FAILED, None, 1, 8.0, alone=True), over=True)


def test_only_what_was_asked_for_is_told():
    assert [*of(state=State.SUCCEEDED, what=msgspec.structs.replace(ALL, on=("ended",)))] == ["ended"]


def test_what_was_told_and_what_never_will_be_is_settled():
    events = [
        SUBMITTED,
        Event(5.0, 1, TOLD, "", brief="started/1", evidence="slack-1"),
        Event(5.0, 1, NOT_TOLD, "", brief="started/1", evidence="email-1"),
    ]
    assert settled(events) == {("started/1", "slack-1"), ("started/1", "email-1")}


def of_roles(*, events=(), end=None, outlasts=False, state=State.RUNNING, **of_role):
    role = Glance(events, state_of("job-1", State.RUNNING, **of_role), end)
    glance = Glance(
        (SUBMITTED, OPENED), state_of("job-1", state), None, roles={"actors-1": role}, outlasts_roles=outlasts
    )
    return [one for one in due(ALL, glance, 9.0) if one.role]


def test_restarts_of_a_role_are_told_with_its_name_and_count_anew_after_a_resume():
    many = [one for number in range(1, 6) for one in (failure(number), Event(3.5, 1, "regroup", "", generation=number))]
    [told] = of_roles(events=[*many, opened(6)])
    assert (told.key, told.role) == ("restarted/1/actors-1", "actors-1")
    assert told.title == "role actors-1 of job-1 was restarted 5 times: killed 5"
    assert told.next == "launch logs job-1 --role actors-1"
    assert of_roles(events=[*many, Event(9.0, 2, "resumed", "resumed"), failure(1, 2), opened(2, 2)]) == []


def test_a_role_that_fails_is_told_where_the_others_go_on_and_else_the_end_of_the_run_names_it():
    end = AttemptEnd(State.FAILED, Cause.USER_ERROR, 10, 5.0, "no restart is left")
    failed = {"end": end, "failure": FAILED}
    [told] = of_roles(outlasts=True, **failed)
    assert (told.kind, told.title) == ("ended", "role actors-1 of job-1 failed: user_error")
    assert "KeyError" in told.text
    assert of_roles(outlasts=False, **failed) == of_roles(outlasts=True, state=State.FAILED, **failed) == []
