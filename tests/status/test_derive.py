"""Facts → status, one row per situation that a run can be found in."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_folder import dead_process, of_another_machine, state_of

from launcher.errors import Exit
from launcher.run.identity import boot_id, this_process
from launcher.run.records import AttemptEnd, ClusterAnswer, Failure, Handle, Intent, NodeState, RankState, StopRequest
from launcher.states import Cause, State
from launcher.status.derive import derive, exit_code_of
from launcher.status.facts import Living, Moment, PlanHead, RunFacts

NOW = Moment(now=2000.0, monotonic_s=500.0, boot_id=boot_id())
ALL = Living(supervisor=True, coordinator=True, agents=True)
UNKNOWN = Living(supervisor=None, coordinator=None, agents=None)


def state(state=State.RUNNING, **more):
    return state_of("job-abcd", state, **{"monotonic_s": 499.5, "updated_at": 1999.5, **more})


def end(state, cause=None, code=0, **more):
    return AttemptEnd(state, cause, code, 1990.0, **more)


def intent(by=None):
    return Intent(1, "0" * 64, "local", "submit", None, 1000.0, by or this_process())


def facts(**more):
    values = {
        "attempt": 1,
        "intent": intent(),
        "handle": Handle("local", supervisor=this_process()),
        "living": ALL,
        **more,
    }
    return RunFacts(Path("/runs/job-abcd"), NOW, **values)


CANCELLED = end(State.CANCELLED, Cause.CANCELLED, 20)
SITUATIONS = {
    "runs": (facts(state=state()), State.RUNNING),
    "waits for its nodes": (facts(state=state(State.STARTING)), State.STARTING),
    "regroups": (facts(state=state(State.REGROUPING)), State.REGROUPING),
    "succeeded": (facts(state=state(State.SUCCEEDED), living=Living(), end=end(State.SUCCEEDED)), State.SUCCEEDED),
    "succeeded, as its state alone says": (facts(state=state(State.SUCCEEDED), living=Living()), State.SUCCEEDED),
    "failed": (facts(state=state(), living=Living(), end=end(State.FAILED, Cause.KILLED, 12)), State.FAILED),
    "cancelled": (facts(state=state(), living=Living(), end=CANCELLED), State.CANCELLED),
    "ended, while its supervisor still tidies up": (
        facts(state=state(State.SUCCEEDED), end=end(State.SUCCEEDED)), State.SUCCEEDED),
    "has its end record, and its supervisor writes what follows": (
        facts(state=state(), end=end(State.SUCCEEDED)), State.RUNNING),
    "has its end record, and its supervisor died": (
        facts(state=state(), living=Living(), end=end(State.SUCCEEDED)), State.SUCCEEDED),
    "waits for its next attempt": (facts(state=state(), end=end(State.QUEUED, Cause.NODE_LOST, 15)), State.QUEUED),
    "nobody will start its next attempt": (facts(state=state(), living=Living(), end=end(State.QUEUED)), State.LOST),
    "its next attempt is elsewhere": (facts(state=state(), living=UNKNOWN, end=end(State.QUEUED)), State.UNKNOWN),
    "ended in no end": (facts(state=state(), end=end(State.RUNNING)), State.UNKNOWN),
    "everything died": (facts(state=state(), living=Living()), State.LOST),
    "everything died before a word": (facts(head=PlanHead("job", "local", 5.0), living=Living()), State.LOST),
    "the supervisor died, the rest goes on": (facts(state=state(), living=Living(False, True, True)), State.RUNNING),
    "supervisor and coordinator died": (facts(state=state(), living=Living(False, False, True)), State.UNKNOWN),
    "only a stray is left": (facts(state=state(), living=Living(others=(77,))), State.UNKNOWN),
    "lives elsewhere": (facts(state=state(), living=UNKNOWN), State.UNKNOWN),
    "is being submitted": (facts(handle=None, living=Living(), submitter=True), State.STARTING),
    "its supervisor is about to report": (facts(handle=None, living=Living(others=(77,))), State.STARTING),
    "its submitter died first": (facts(handle=None, living=Living(), submitter=False), State.LOST),
    "was submitted elsewhere": (facts(handle=None, living=Living(), submitter=None), State.UNKNOWN),
    "was resumed, and the state is the old attempt's": (facts(state=state(State.FAILED), attempt=2), State.STARTING),
    "was resumed and died": (facts(state=state(State.SUCCEEDED), attempt=2, living=Living()), State.LOST),
    "has no attempt": (facts(attempt=0, intent=None, handle=None, living=Living()), State.UNKNOWN),
    "cannot be read": (facts(living=Living(), trouble=("state.json: permission denied",)), State.UNKNOWN),
}  # fmt: skip


def on_slurm(phase, word="", **more):
    """Return facts with Slurm's answer about a run whose supervisor is on another machine."""
    said = {name: more.pop(name) for name in ("text", "starts_at", "ended_as", "cause", "silent") if name in more}
    asked = ClusterAnswer(phase, word, 1999.0, "12", **said)
    return facts(living=UNKNOWN, handle=Handle("slurm", job_id="12"), answer=asked, **more)


REQUEUED = end(State.QUEUED, Cause.PREEMPTED, 16, message="a new attempt follows")
SITUATIONS |= {
    "waits in Slurm's queue": (on_slurm("queued", "PENDING", text="waiting for nodes"), State.QUEUED),
    "runs on Slurm": (on_slurm("running", "RUNNING", state=state()), State.RUNNING),
    "has its nodes, and no word of it yet": (on_slurm("running", "RUNNING"), State.STARTING),
    "is being ended by Slurm": (on_slurm("ending", "COMPLETING", state=state()), State.RUNNING),
    "is requeued": (on_slurm("queued", "PENDING", state=state(), end=REQUEUED), State.QUEUED),
    "is about to be requeued": (on_slurm("ending", "COMPLETING", state=state(), end=REQUEUED), State.QUEUED),
    "has its nodes again": (on_slurm("running", "RUNNING", state=state(), end=REQUEUED), State.STARTING),
    "was not started again": (on_slurm("gone", state=state(), end=REQUEUED), State.LOST),
    "was ended by its limit without a word": (
        on_slurm("ended", "TIMEOUT", ended_as=State.FAILED, cause=Cause.TIME_LIMIT, state=state()), State.FAILED),
    "completed, Slurm says, without a word of ours": (
        on_slurm("ended", "COMPLETED", ended_as=State.LOST, state=state()), State.LOST),
    "is unknown to Slurm": (on_slurm("gone", state=state()), State.LOST),
    "is in a state that nobody knows": (on_slurm("unknown", "SHINY", state=state()), State.UNKNOWN),
    "is with a controller that is silent": (
        on_slurm("running", "RUNNING", silent="no answer", state=state()), State.UNKNOWN),
    "has succeeded, whatever Slurm says": (
        on_slurm("ended", "FAILED", ended_as=State.LOST, state=state(), end=end(State.SUCCEEDED)), State.SUCCEEDED),
}  # fmt: skip


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_state_of_a_run_that(situation):
    given_facts, expected = SITUATIONS[situation]
    assert derive(given_facts).state is expected


@pytest.mark.parametrize("situation", SITUATIONS)
def test_what_is_not_all_right_says_why(situation):
    status = derive(SITUATIONS[situation][0])
    if status.state in (State.LOST, State.UNKNOWN, State.QUEUED, State.STARTING) and situation != "waits for its nodes":
        assert status.message
    assert msgspec.json.decode(msgspec.json.encode(status))["run_dir"] == "/runs/job-abcd"


@pytest.mark.parametrize(
    ("state_", "next_"),
    [
        (State.RUNNING, "launch logs job-abcd -f"),
        (State.SUCCEEDED, ""),
        (State.FAILED, "launch resume job-abcd"),
        (State.CANCELLED, "launch resume job-abcd"),
    ],
)
def test_what_to_do_next(state_, next_):
    assert derive(facts(state=state(state_))).next == next_


@pytest.mark.parametrize(
    ("cause", "where", "next_"),
    [
        (Cause.KILLED, "train.py:4 in step", "mend train.py:4, then launch resume job-abcd --code"),
        (Cause.KILLED, None, "launch resume job-abcd"),
        (Cause.USER_ERROR, "train.py:4 in step", "mend train.py:4, then launch resume job-abcd --code"),
        (Cause.USER_ERROR, None, "mend the code, then launch resume job-abcd --code"),
    ],
)
def test_a_crash_at_a_place_in_the_code_is_mended_there(cause, where, next_):
    failure = Failure(cause, "rank 0 failed", 1, 1, rank=0, node=0, where=where)
    assert derive(facts(state=state(State.FAILED, cause=cause, failure=failure))).next == next_


@pytest.mark.parametrize(
    ("name", "next_"),
    [
        ("data/words.txt", "launch resume job-abcd --code --set 'code.include+=[data/words.txt]'"),
        ("'; rm -rf ~; '", "mend train.py:4, then launch resume job-abcd --code"),
    ],
)
def test_a_file_that_was_not_frozen_is_taken_along(name, next_):
    failure = Failure(Cause.USER_ERROR, "it failed", 1, 1, where="train.py:4 in step", left_out=name)
    told = state(State.FAILED, cause=Cause.USER_ERROR, failure=failure)
    assert derive(facts(state=told)).next == next_


def test_a_lost_run_can_be_resumed_and_shows_no_process():
    rank = RankState(0, 0, 4711, "running", 7)
    lost = derive(facts(state=state(ranks=(rank,), checkpoint=6), living=Living()))
    assert (lost.next, lost.exit_code, lost.ranks, lost.checkpoint) == ("launch resume job-abcd", Exit.LOST, (), 6)


def test_a_stray_is_named_with_the_command_that_ends_it():
    status = derive(facts(state=state(), living=Living(others=(77, 78))))
    assert "77, 78" in status.message
    assert status.next == "launch cancel job-abcd"


def test_an_older_attempts_state_keeps_the_runs_history_and_nothing_of_the_present():
    old = state(State.FAILED, cause=Cause.HANG, exit_code=13, step=9, checkpoint=8, restarts={"hang": 2}, world_size=4,
                failure=Failure(Cause.HANG, "hung", 1, 1), nodes=(NodeState(0, "127.0.0.1", "up"),))  # fmt: skip
    status = derive(facts(state=old, attempt=2))
    assert (status.attempt, status.generation, status.cause, status.exit_code, status.step) == (2, 0, None, None, 9)
    assert (status.failure, status.nodes, status.world_size) == (None, (), None)
    assert (status.checkpoint, status.restarts.total, status.restarts.by_cause) == (8, 2, {"hang": 2})


def test_elsewhere_says_when_and_where_it_was_last_seen():
    handle = Handle("local", supervisor=of_another_machine())
    status = derive(facts(state=state(), handle=handle, living=UNKNOWN))
    assert "last seen RUNNING at" in status.message
    assert "another-machine" in status.message
    assert status.as_of == 1999.5


def test_a_wish_to_stop_is_shown_until_it_is_fulfilled():
    stop = StopRequest("cancel", 1999.0, this_process())
    assert "cancel" in derive(facts(state=state(), stop=stop)).message
    last = end(State.CANCELLED, Cause.CANCELLED, 20, message="cancelled")
    ended = derive(facts(state=state(), living=Living(), stop=stop, end=last))
    assert ended.message == "cancelled"


@pytest.mark.parametrize("off_s", [-3600.0, 3600.0])
def test_a_clock_an_hour_off_changes_nothing(off_s):
    right = facts(state=state())
    wrong = msgspec.structs.replace(state(), updated_at=1999.5 + off_s)
    assert derive(right).state is derive(facts(state=wrong)).state
    assert derive(facts(state=wrong)).as_of is None


def test_a_silent_coordinator_is_reported_and_not_judged():
    status = derive(facts(state=state(monotonic_s=440.0)))
    assert (status.state, status.as_of) == (State.RUNNING, 1999.5)
    assert "60 s old" in status.message


def test_the_age_of_another_boots_word_is_not_known():
    assert derive(facts(state=state(monotonic_s=1.0, boot_id="another"))).as_of is None


def test_what_is_left_to_go():
    status = derive(facts(state=state(step=40, total_steps=100, rate=2.0)))
    assert status.eta_s == 30.0
    assert derive(facts(state=state(step=40, rate=2.0))).eta_s is None
    assert derive(facts(state=state(step=40, total_steps=100, rate=0.0))).eta_s is None
    assert derive(facts(state=state(State.REGROUPING, step=40, total_steps=100, rate=2.0))).rate is None


def test_exit_codes():
    assert exit_code_of(derive(facts(state=state(State.SUCCEEDED)))) == 0
    assert exit_code_of(derive(facts(state=state(), living=Living(), end=end(State.FAILED, Cause.HANG, 13)))) == 13
    assert exit_code_of(derive(facts(state=state(), living=Living()))) == 21


liveness = st.sampled_from([True, False, None])
states = st.none() | st.builds(
    state,
    st.sampled_from(State),
    attempt=st.integers(0, 3),
    rate=st.none() | st.floats(0, 10),
    step=st.none() | st.integers(0, 9),
)
anything = st.builds(
    facts,
    state=states,
    attempt=st.integers(0, 3),
    intent=st.none() | st.sampled_from([intent(), intent(of_another_machine())]),
    handle=st.none() | st.sampled_from([Handle("slurm", job_id="1"), Handle("local", supervisor=dead_process())]),
    end=st.none() | st.builds(end, st.sampled_from(State)),
    stop=st.none() | st.sampled_from([StopRequest(kind, 1.0, this_process()) for kind in ("cancel", "preempt")]),
    living=st.builds(Living, liveness, liveness, liveness, st.sampled_from([(), (5,)])),
    submitter=liveness,
    trouble=st.sampled_from([(), ("x",)]),
)  # fmt: skip


@given(anything)
def test_every_combination_has_a_status(given_facts):
    status = derive(given_facts)
    assert status.attempt == given_facts.attempt
    written = given_facts.state is not None and given_facts.state.state is State.LOST
    if status.state is State.LOST and not written:
        nobody_else = given_facts.living.anything is False or given_facts.end is not None
        assert nobody_else, "a run is lost only where all of it is known to be dead"
    if status.state is State.UNKNOWN and given_facts.state is not None:
        assert status.message or given_facts.living.supervisor or given_facts.living.coordinator


def test_a_silent_controller_is_said_with_what_was_last_seen():
    status = derive(on_slurm("queued", "PENDING", silent="the Slurm controller does not answer"))
    assert status.message.startswith("the Slurm controller does not answer; last seen PENDING at ")
    running = derive(on_slurm("queued", "PENDING", silent="no answer", state=state()))
    assert "last seen RUNNING at " in running.message and running.as_of == 1999.5


def test_a_job_that_waits_says_why_and_until_when():
    status = derive(on_slurm("queued", "PENDING", text="waiting for nodes", starts_at=5000.0))
    assert status.message.startswith("waiting for nodes; may start at 1970-01-01 ")
    assert (status.job, status.exit_code) == ("12", None)
    ended = derive(on_slurm("ended", "TIMEOUT", ended_as=State.FAILED, cause=Cause.TIME_LIMIT))
    assert (ended.exit_code, "TIMEOUT of job 12" in ended.message) == (17, True)


def test_who_said_so_is_part_of_the_word():
    for said_by, who in (("Grid Engine", "Grid Engine says"), ("", "the cluster says")):
        asked = ClusterAnswer("ended", "FAILED", 1999.0, "12", ended_as=State.LOST, said_by=said_by)
        told = derive(facts(living=UNKNOWN, handle=Handle("slurm", job_id="12"), answer=asked, state=state()))
        assert told.message.startswith(f"{who} FAILED of job 12")


def test_no_node_of_a_run_that_has_ended_is_up():
    nodes = (
        NodeState(0, "127.0.0.1", "up", (0,)),
        NodeState(1, "127.0.0.2", "lost"),
        NodeState(2, "127.0.0.3", "spare"),
    )
    words = [node.state for node in derive(facts(state=state(nodes=nodes))).nodes]
    assert words == ["up", "lost", "spare"]
    ended = derive(facts(state=state(nodes=nodes), living=Living(), end=end(State.FAILED, Cause.KILLED, 12)))
    assert [node.state for node in ended.nodes] == ["left", "lost", "left"]


@pytest.mark.parametrize(
    ("whole", "role", "shown"),
    [
        (on_slurm("running", "RUNNING", state=state()), facts(state=state(), living=UNKNOWN), State.RUNNING),
        (
            on_slurm("queued", "PENDING", state=state(), end=REQUEUED),
            facts(state=state(), living=UNKNOWN),
            State.QUEUED,
        ),
        (
            facts(state=state(State.SUCCEEDED), living=UNKNOWN, end=end(State.SUCCEEDED)),
            facts(state=state(), living=UNKNOWN),
            State.CANCELLED,
        ),
        (
            facts(state=state(State.SUCCEEDED), living=UNKNOWN, end=end(State.SUCCEEDED)),
            facts(state=state(), living=UNKNOWN, end=end(State.SUCCEEDED)),
            State.SUCCEEDED,
        ),
        (facts(state=state()), facts(state=state()), State.RUNNING),
    ],
)
def test_of_a_role_on_other_machines_the_whole_run_tells(whole, role, shown):
    assert derive(replace(whole, roles=(role,))).roles["job-abcd"].state is shown
