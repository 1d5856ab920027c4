"""Test what a batch process does when its attempt has ended and the run continues."""

import os
import socket
import time

import msgspec
import pytest
from msgspec.structs import replace

from launcher.coordinator.policy import restarts_by_cause
from launcher.places.batch.job import next_job
from launcher.places.batch.job.claims import claim
from launcher.places.batch.job.next_job import NextJob
from launcher.places.batch.look import look
from launcher.places.slurm.queries.values import FIELD, ROW
from launcher.places.slurm.queue import SlurmSystem
from launcher.run.attempts import new_attempt, newest
from launcher.run.avoided import avoid, avoided
from launcher.run.durable import append_line, make_dir, read_lines, read_record, write_record
from launcher.run.identity import this_process
from launcher.run.records import AgentRecord, AttemptEnd, Endpoint, Event, Exclusion, Handle, RunState
from launcher.states import Cause, State
from launcher.status.derive import derive
from launcher.status.facts import read_facts
from launcher.status.restarts import RestartReader

# The nudge outlives whoever starts it, and is meant to.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")

RUNS = 'echo "JobId=7 JobState=RUNNING Reason=None Restarts=0 PreemptTime=None"'
AGAIN = 'echo "JobId=7 JobState=PENDING Reason=BeginTime Restarts=1 PreemptTime=None"'
TIMED_OUT = 'echo "JobId=7 JobState=COMPLETING Reason=TimeLimit Restarts=0 PreemptTime=None"'
CANCELLED = 'echo "JobId=7 JobState=COMPLETING Reason=None Restarts=0 PreemptTime=None"'
REFUSED = 'echo "sbatch: error: Batch job submission failed: Access/permission denied" >&2; exit 1'
SILENT = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
DISABLED = 'echo "Requested operation is presently disabled" >&2; exit 1'


def sinfo(*nodes):
    """Return the nodes of the default partition, all idle."""
    rows = "".join(FIELD.join((node, "main*", "idle", "8", "8000", "", "none")) + ROW for node in nodes)
    return f"printf '%s' '{rows}'"


def scontrol(job=RUNS, requeue="exit 0"):
    return f'case "$*" in *"show job"*) {job} ;; requeue*) {requeue} ;; esac'


class Waits:
    """A wakeup that notes how long it was to wait."""

    stop_asked = False

    def __init__(self):
        self.asked_s = []

    def wait(self, timeout_s):
        self.asked_s.append(timeout_s)


@pytest.fixture
def moves(begun, slurm_programs, monkeypatch):
    """Return what follows a first attempt that ended for this cause, and how long the batch process stayed."""
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")

    def after(cause, **programs):
        slurm_programs(**{"sbatch": "echo 9", "scontrol": scontrol(), **programs})
        if cause is Cause.NODE_LOST:
            append_line(begun.run.events, Event(time.time(), 1, "agent_lost", "node 1 is not heard", node=1))
        end = AttemptEnd(State.QUEUED, cause, 15, time.time(), "a new attempt follows")
        write_record(begun.attempt.end, end)
        wakeup = Waits()
        assert NextJob(SlurmSystem(), begun.run, begun.plan, begun.job, wakeup).follow(begun.attempt, end) == (None, 0)
        return wakeup.asked_s

    return after


def until_asked(slurm_programs, beginning):
    """The words of the client that began so: the nudge is a process of its own."""
    deadline = time.monotonic() + 150
    while not (found := [words for words in slurm_programs.asked() if words.startswith(beginning)]):
        assert time.monotonic() < deadline, slurm_programs.asked()
        time.sleep(0.01)
    return found[0]


# How long the nodes are held


def test_a_new_job_gets_the_nodes_of_the_old_one_at_once(begun, moves):
    assert moves(Cause.NODE_LOST) == []
    assert read_record(begun.run.attempt(2).handle, Handle).job_id == "9"


def test_a_new_job_where_the_old_one_is_not_requeued_too(begun, moves):
    assert moves(Cause.PREEMPTED, scontrol=scontrol(requeue=DISABLED)) == []
    assert read_record(begun.run.attempt(2).handle, Handle).job_id == "9"


def test_after_a_persons_word_there_is_nothing_to_wait_for(begun, moves):
    assert moves(Cause.PREEMPTED, scontrol=scontrol(CANCELLED)) == []
    assert read_record(begun.attempt.end, AttemptEnd).state is State.CANCELLED


@pytest.mark.parametrize("job", [RUNS, AGAIN], ids=["by us", "by Slurm"])
def test_a_requeued_job_stays_until_slurm_ends_it(moves, slurm_programs, job):
    assert moves(Cause.PREEMPTED, scontrol=scontrol(job)) == [120.0]
    assert ("scontrol requeue 7" in slurm_programs.asked()) == (job == RUNS)
    until_asked(slurm_programs, "scontrol update")


def test_the_word_of_slurm_that_ends_the_job_is_heard_though_it_ends_who_asks_too(begun, moves, slurm_programs):
    """Slurm sends SIGTERM to every process of the job: a killed question was nobody's answer, and a job that a person
    had cancelled was put into the queue again."""
    assert moves(Cause.PREEMPTED, scontrol=f"kill -TERM $$; {scontrol(CANCELLED)}") == []
    assert read_record(begun.attempt.end, AttemptEnd).state is State.CANCELLED
    assert "scontrol requeue 7" not in slurm_programs.asked()


def test_a_lost_node_is_blamed_where_whoever_asks_gets_a_sigterm(begun, moves):
    moves(Cause.NODE_LOST, scontrol=f"kill -TERM $$; {scontrol(RUNS)}")
    assert [exclusion.host for exclusion in avoided(begun.run)] == ["node1"]


def test_a_scheduler_that_is_silent_about_the_job_makes_it_neither_cancelled_nor_lost(begun, moves, slurm_programs):
    assert moves(Cause.PREEMPTED, scontrol=scontrol(SILENT)) == [120.0]
    assert "scontrol requeue 7" in slurm_programs.asked()
    until_asked(slurm_programs, "scontrol update")


# A site that puts a job which has lost a node back first in its queue, by itself

EXPEDITED = RUNS.replace("Restarts=0", "Restarts=0 ExpeditedRequeue=Yes")


def scontrol_that_expedites(folder):
    """The third question finds the job put back."""
    told = f"{folder}/told"
    config = "*config*) echo 'SlurmdTimeout = 300 sec' ;;"
    job = f"if [ -e {told} ]; then {AGAIN.replace('PENDING', 'EXPEDITING')}; else {EXPEDITED}; fi"
    asked = f'[ "$(grep -c "show job" "$0.asked" 2>/dev/null)" -lt 3 ] || touch {told}'
    return f'echo "$*" >> "$0.asked"; {asked}; case "$*" in {config} *"show job"*) {job} ;; esac'


def test_a_job_that_is_put_back_first_is_waited_for(begun, moves, slurm_programs, tmp_path):
    """A new job would be the last of the queue."""
    begun.plan = msgspec.structs.replace(begun.plan, nodes_min=2)
    assert moves(Cause.NODE_LOST, scontrol=scontrol_that_expedites(tmp_path)) == [5.0, 120.0]
    assert newest(begun.run).number == 1
    assert not [words for words in slurm_programs.asked() if words.startswith(("sbatch", "scontrol requeue"))]
    told = [event.text for event in read_lines(begun.run.events, Event) if event.kind == "job"]
    assert told == ["a node of the job is lost: Slurm is to put job 7 back first in its queue, within 360 s"]
    until_asked(slurm_programs, "scontrol update")


def test_a_job_that_outlives_its_nodes_is_not_put_back_for_one(begun, moves):
    assert begun.plan.nodes_min < begun.plan.nodes_max
    assert moves(Cause.NODE_LOST, scontrol=scontrol(EXPEDITED)) == []
    assert read_record(begun.run.attempt(2).handle, Handle).job_id == "9"


# Which nodes a requeued job may have


@pytest.mark.parametrize(
    ("exclude", "lost", "expected"),
    [(("gpu[07-08]",), ["node0", "node1"], "gpu[07-08],node0,node1"), (("gpu09",), [], "gpu09"), ((), [], "")],
)
def test_a_requeued_job_leaves_out_what_the_spec_says_and_what_is_avoided_now(
    begun, moves, slurm_programs, exclude, lost, expected
):
    """Slurm takes the list as a whole, and keeps it: what is pardoned since the last requeue has to leave it."""
    spec = replace(begun.plan.spec, slurm=replace(begun.plan.spec.slurm, exclude=exclude))
    begun.plan = msgspec.structs.replace(begun.plan, spec=spec)
    avoid(begun.run, [Exclusion(host, "not heard", 1, time.time(), time.time() + 3600) for host in lost])
    moves(Cause.PREEMPTED, sinfo=sinfo("node0", "node1", "node2", "node3"))
    words = until_asked(slurm_programs, "scontrol update")
    assert words == f"scontrol update JobId=7 StartTime=now+3 ExcNodeList={expected}"


@pytest.mark.parametrize(
    ("there", "expected"),
    [(("node0", "node1"), ""), (("node0", "node1", "node2"), "node1"), ((), "node0,node1")],
    ids=["none to spare", "one to spare", "those are down"],
)
def test_no_more_nodes_are_avoided_than_leave_the_run_what_it_needs(begun, moves, slurm_programs, there, expected):
    """Such a job would wait for ever: it asks for more nodes than it may have."""
    begun.plan = msgspec.structs.replace(begun.plan, nodes_min=2)
    avoid(begun.run, [Exclusion(host, "not heard", 1, time.time(), time.time() + 3600) for host in ("node0", "node1")])
    moves(Cause.PREEMPTED, sinfo=sinfo(*there))
    assert until_asked(slurm_programs, "scontrol update").endswith(f" ExcNodeList={expected}")


# Where a site takes no jobs from its nodes


def row(job, state, comment):
    """Return a line as squeue writes it."""
    words = (job, job, state, "1", "N/A", "N/A", "", "", "BeginTime", comment)
    return r"printf '%s'" + f" '{FIELD.join(words)}{ROW}'"


def test_with_no_new_job_for_a_lost_node_the_next_attempt_is_the_same_jobs(begun, moves, slurm_programs):
    assert moves(Cause.NODE_LOST, sbatch=REFUSED) == [120.0]
    slurm_programs(squeue=row("7", "PENDING", f"launch:{begun.submit_token}"))
    assert look(SlurmSystem(), [(begun.run, newest(begun.run))])[0].phase == "queued"
    attempt = claim(SlurmSystem(), begun.run, "7")
    assert attempt == newest(begun.run) and not attempt.end.exists()
    slurm_programs(squeue=row("7", "RUNNING", f"launch:{begun.submit_token}"))
    assert look(SlurmSystem(), [(begun.run, attempt)])[0].phase == "running"
    assert claim(SlurmSystem(), begun.run, "9") is None


@pytest.mark.parametrize("cause", [Cause.NODE_LOST, Cause.PREEMPTED])
def test_from_a_host_that_may_not_submit_no_new_job_is_tried(begun, moves, slurm_programs, monkeypatch, cause):
    monkeypatch.setattr(SlurmSystem, "may_submit", lambda _: False)
    assert moves(cause, scontrol=scontrol(requeue=DISABLED)) == []
    assert not any(words.startswith("sbatch") for words in slurm_programs.asked())
    assert newest(begun.run) == begun.attempt
    status = derive(read_facts(begun.run.path))
    assert status.state is State.FAILED and "this host may not submit" in status.message


@pytest.mark.parametrize("cause", [Cause.NODE_LOST, Cause.PREEMPTED])
def test_with_neither_a_new_job_nor_a_requeue_the_run_has_failed_and_says_why(begun, moves, cause):
    assert moves(cause, sbatch=REFUSED, scontrol=scontrol(requeue=DISABLED)) == []
    status = derive(read_facts(begun.run.path))
    assert (status.state, status.cause, status.exit_code) == (State.FAILED, cause, 15)
    assert "presently disabled" in status.message and "Access/permission denied" in status.message
    assert read_record(newest(begun.run).end, AttemptEnd).state is State.FAILED
    assert claim(SlurmSystem(), begun.run, "7") is None


# Where somebody else has gone on with the run


def jobs_made(slurm_programs):
    return [words for words in slurm_programs.asked() if words.startswith(("sbatch", "scontrol requeue"))]


@pytest.mark.parametrize("cause", [Cause.NODE_LOST, Cause.PREEMPTED])
def test_who_was_cut_off_while_another_went_on_starts_nothing_and_blames_nobody(begun, moves, slurm_programs, cause):
    new_attempt(begun.run, "slurm", "requeue", cause, kind="slurm")
    assert moves(cause) == []
    assert jobs_made(slurm_programs) == [] and avoided(begun.run) == []
    assert newest(begun.run).number == 2


def test_of_two_that_go_on_at_once_one_gets_a_job(begun, moves, slurm_programs, monkeypatch):
    def may_submit(_):
        new_attempt(begun.run, "slurm", "requeue", Cause.NODE_LOST, kind="slurm")
        return True

    monkeypatch.setattr(SlurmSystem, "may_submit", may_submit)
    assert moves(Cause.NODE_LOST) == []
    assert jobs_made(slurm_programs) == []
    assert newest(begun.run).number == 2 and not newest(begun.run).handle.exists()


def test_a_requeue_that_a_frozen_controller_carries_out_late_is_no_reason_for_a_second_job(
    begun, moves, slurm_programs, tmp_path
):
    """It refuses to do it twice, and the job that it has put back is the run's."""
    done = f"'{tmp_path}/done'"
    late = f"[ -e {done} ] && {{ {DISABLED}; }}; touch {done}; echo 'Socket timed out on send/recv' >&2; exit 1"
    assert moves(Cause.PREEMPTED, scontrol=scontrol(f"[ -e {done} ] && {AGAIN} || {RUNS}", late)) == [10.0, 120.0]
    assert jobs_made(slurm_programs) == ["scontrol requeue 7"]
    until_asked(slurm_programs, "scontrol update")


# Whose fault it was


@pytest.mark.parametrize(
    ("job", "blamed"), [(RUNS, ["node1"]), (AGAIN, []), (SILENT, [])], ids=["a node's", "Slurm's", "our own perhaps"]
)
def test_a_node_is_blamed_where_nothing_else_explains_its_silence(begun, moves, job, blamed):
    moves(Cause.NODE_LOST, scontrol=scontrol(job))
    assert [exclusion.host for exclusion in avoided(begun.run)] == blamed


@pytest.fixture
def lose_node_1(begun):
    """Make node 1 silent for its lease; with `back`, its supervisor starts another agent."""

    def lose(back, address="127.0.0.1"):
        agent = begun.attempt.agent(1)
        make_dir(agent.parent)
        write_record(agent, AgentRecord(1, address, this_process()))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            write_record(begun.attempt.endpoint, Endpoint("127.0.0.1", free.getsockname()[1], this_process()))
        lease_s = begun.plan.spec.recovery.lease_s
        if not back:
            os.utime(agent, (time.time() - lease_s,) * 2)
        append_line(begun.run.events, Event(time.time(), 1, "agent_lost", "node 1 is not heard", node=1))
        end = AttemptEnd(State.QUEUED, Cause.NODE_LOST, 15, time.time(), "a new attempt follows")
        write_record(begun.attempt.end, end)
        return NextJob(SlurmSystem(), begun.run, begun.plan, begun.job, Waits()).follow(begun.attempt, end)[0]

    return lose


def test_a_node_that_is_back_when_it_is_looked_for_is_not_blamed_and_the_run_stays(begun, lose_node_1, slurm_programs):
    """The cut between the two has healed: the other node has waited for us all along."""
    slurm_programs(sbatch="echo 9", scontrol=scontrol())
    after = lose_node_1(back=True)
    assert after is not None and after.number == 2 and read_record(after.handle, Handle).job_id == begun.job
    assert avoided(begun.run) == [] and jobs_made(slurm_programs) == []


@pytest.mark.parametrize(
    ("back", "address"), [(False, "127.0.0.1"), (True, "127.255.255.255")], ids=["frozen", "still cut off"]
)
def test_a_node_that_does_not_answer_or_has_begun_nothing_since_is_gone(
    begun, lose_node_1, slurm_programs, back, address
):
    slurm_programs(sbatch="echo 9", scontrol=scontrol())
    assert lose_node_1(back, address) is None
    assert [exclusion.host for exclusion in avoided(begun.run)] == ["node1"]


def test_a_node_that_is_unfit_is_avoided_though_its_agent_is_heard(begun, slurm_programs):
    """Of the two that were, one has a spare's ranks now: the attempt ends for something else."""
    slurm_programs(sbatch="echo 9", scontrol=scontrol())
    seen = "cuda:0 (H100): memory: expected 1, got 2"
    found = Event(time.time(), 1, "node_unfit", f"node 1 is left out: {seen}", node=1, evidence=seen)
    joined = Event(time.time(), 1, "agent_joined", "node 1 joined again", node=1)
    for event in (found, joined):
        append_line(begun.run.events, event)
    end = AttemptEnd(State.QUEUED, Cause.KILLED, 15, time.time(), "a new attempt follows")
    write_record(begun.attempt.end, end)
    NextJob(SlurmSystem(), begun.run, begun.plan, begun.job, Waits()).follow(begun.attempt, end)
    assert [(exclusion.host, exclusion.evidence) for exclusion in avoided(begun.run)] == [("node1", seen)]
    assert read_record(begun.run.attempt(2).handle, Handle).job_id == "9", "a new job, which leaves it out"


def test_a_cut_that_heals_while_slurm_is_asked_blames_nobody(begun, lose_node_1, slurm_programs, monkeypatch):
    answers = iter([False, True])
    monkeypatch.setattr(next_job, "is_back", lambda *_: next(answers))
    slurm_programs(sbatch="echo 9", scontrol=scontrol())
    assert lose_node_1(back=True) is None
    assert avoided(begun.run) == [] and read_record(begun.run.attempt(2).handle, Handle).job_id == "9"


@pytest.mark.parametrize(
    ("job", "node", "cause"),
    [
        (AGAIN, "IDLE", Cause.PREEMPTED),
        (AGAIN, "DOWN", Cause.NODE_LOST),
        (TIMED_OUT, "IDLE", Cause.TIME_LIMIT),
        (RUNS, "IDLE", Cause.NODE_LOST),
    ],
)
def test_tasks_that_slurm_has_ended_are_no_lost_node(begun, moves, slurm_programs, job, node, cause):
    shown = f'case "$*" in *"show node"*) echo "NodeName=node1 State={node}" ;; *) {scontrol(job)} ;; esac'
    for kind in ("failure", "requeue"):  # as the coordinator has seen it
        append_line(begun.run.events, Event(time.time(), 1, kind, "node 1 is lost", cause=Cause.NODE_LOST))
    moves(Cause.NODE_LOST, scontrol=shown)
    assert read_record(begun.attempt.end, AttemptEnd).cause is cause
    last = read_record(begun.run.state, RunState)
    events = read_lines(begun.run.events, Event)
    assert restarts_by_cause(events, 2) == {cause.value: 1}, "it is counted as what it was, and not for the node's"
    if cause is not Cause.NODE_LOST:
        assert (last.failure.cause, last.restarts) == (cause, {cause.value: 1})
        reader = RestartReader(begun.run)
        reader.read()
        assert [*reader.all()][-1] == f"── {cause}: Slurm ended what ran on node1 ──"


def test_who_heard_nobody_not_even_itself_was_asleep_and_blames_no_node(begun, slurm_programs):
    slurm_programs(sbatch="echo 9", scontrol=scontrol())
    for node in (0, 1):
        append_line(begun.run.events, Event(time.time(), 1, "agent_lost", f"node {node} is not heard", node=node))
    end = AttemptEnd(State.QUEUED, Cause.NODE_LOST, 15, time.time(), "a new attempt follows")
    write_record(begun.attempt.end, end)
    after, _ = NextJob(SlurmSystem(), begun.run, begun.plan, begun.job, Waits()).follow(begun.attempt, end)
    assert after is not None and after.number == 2  # on the nodes that there are
    assert avoided(begun.run) == [] and jobs_made(slurm_programs) == []
