"""What a batch process does when its attempt has ended and the run goes on."""

import time
from dataclasses import replace

import msgspec
import pytest

from launcher.clusters.batch.claims import claim
from launcher.clusters.batch.look import look
from launcher.clusters.batch.next_job import NextJob
from launcher.clusters.slurm.queries.values import FIELD, ROW
from launcher.clusters.slurm.queue import SlurmQueue
from launcher.rundir.attempts import newest
from launcher.rundir.avoided import avoid
from launcher.rundir.durable import append_line, read_record, write_record
from launcher.rundir.records import AttemptEnd, Blame, Event, Handle
from launcher.status.derive import derive
from launcher.status.facts import read_facts
from launcher.words import Cause, State

# The nudge outlives whoever starts it, and is meant to.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")

RUNS = 'echo "JobId=7 JobState=RUNNING Reason=None Restarts=0 PreemptTime=None"'
AGAIN = 'echo "JobId=7 JobState=PENDING Reason=BeginTime Restarts=1 PreemptTime=None"'
CANCELLED = 'echo "JobId=7 JobState=COMPLETING Reason=None Restarts=0 PreemptTime=None"'
REFUSED = 'echo "sbatch: error: Batch job submission failed: Access/permission denied" >&2; exit 1'
DISABLED = 'echo "Requested operation is presently disabled" >&2; exit 1'


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
    """What follows a first attempt that ended for this cause; gives how long the batch process stayed."""
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")

    def after(cause, **programs):
        slurm_programs(**{"sbatch": "echo 9", "scontrol": scontrol(), **programs})
        if cause is Cause.NODE_LOST:
            append_line(begun.run.events, Event(time.time(), 1, "agent_lost", "node 1 is not heard", node=1))
        end = AttemptEnd(State.QUEUED, cause, 15, time.time(), "a new attempt follows")
        write_record(begun.attempt.end, end)
        wakeup = Waits()
        assert NextJob(SlurmQueue(), begun.run, begun.plan, begun.job, wakeup).follow(begun.attempt, end) == (None, 0)
        return wakeup.asked_s

    return after


def until_asked(slurm_programs, beginning):
    """The words of the client that began so: the nudge is a process of its own."""
    deadline = time.monotonic() + 20
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


def test_a_scheduler_that_is_silent_about_the_job_makes_it_neither_cancelled_nor_lost(begun, moves, slurm_programs):
    silent = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
    assert moves(Cause.PREEMPTED, scontrol=scontrol(silent)) == [120.0]
    assert "scontrol requeue 7" in slurm_programs.asked()
    until_asked(slurm_programs, "scontrol update")


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
    avoid(begun.run, [Blame(host, "not heard", 1, time.time(), time.time() + 3600) for host in lost])
    moves(Cause.PREEMPTED)
    words = until_asked(slurm_programs, "scontrol update")
    assert words == f"scontrol update JobId=7 StartTime=now+3 ExcNodeList={expected}"


# Where a site takes no jobs from its nodes


def row(job, state, comment):
    """As squeue writes it."""
    words = (job, job, state, "1", "N/A", "N/A", "", "", "BeginTime", comment)
    return r"printf '%s'" + f" '{FIELD.join(words)}{ROW}'"


def test_with_no_new_job_for_a_lost_node_the_next_attempt_is_the_same_jobs(begun, moves, slurm_programs):
    assert moves(Cause.NODE_LOST, sbatch=REFUSED) == [120.0]
    slurm_programs(squeue=row("7", "PENDING", f"launch:{begun.ticket}"))
    assert look(SlurmQueue(), [(begun.run, newest(begun.run))])[0].phase == "queued"
    attempt = claim(SlurmQueue(), begun.run, "7")
    assert attempt == newest(begun.run) and not attempt.end.exists()
    slurm_programs(squeue=row("7", "RUNNING", f"launch:{begun.ticket}"))
    assert look(SlurmQueue(), [(begun.run, attempt)])[0].phase == "running"
    assert claim(SlurmQueue(), begun.run, "9") is None


@pytest.mark.parametrize("cause", [Cause.NODE_LOST, Cause.PREEMPTED])
def test_from_a_host_that_may_not_submit_no_new_job_is_tried(begun, moves, slurm_programs, monkeypatch, cause):
    monkeypatch.setattr(SlurmQueue, "may_submit", lambda _: False)
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
    assert claim(SlurmQueue(), begun.run, "7") is None
