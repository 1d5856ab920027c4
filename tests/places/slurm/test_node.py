"""The supervisor of a node that is not the first one, and what the batch process hears of nodes."""

import threading
import time

import msgspec
import pytest

from launcher.places.batch.batch import NodeAnswer
from launcher.places.batch.job.batch_process import move_off_drained_nodes, watched_for_drains
from launcher.places.batch.job.on_node import requeue_if_first_node_down
from launcher.places.gridengine.gridengine import GridEngineSystem
from launcher.places.slurm.queue import SlurmSystem
from launcher.run.draining import ask_to_drain
from launcher.run.durable import read_record
from launcher.run.records import DrainRequest

DOWN = 'case "$*" in *"show node"*) echo "NodeName=node0 State=DOWN* Reason=Not responding" ;; esac'


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")  # the nudge, which stays a moment
def test_of_an_array_only_its_own_element_is_started_anew(begun, slurm_programs, monkeypatch):
    """The element that was started last has the array's own id, by which Slurm would requeue all of them."""
    slurm_programs(scontrol=DOWN)
    for name, value in {"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}.items():
        monkeypatch.setenv(name, value)
    requeue_if_first_node_down(SlurmSystem(), begun.plan)
    assert [words for words in slurm_programs.asked() if "requeue" in words] == ["scontrol requeue 12_3"]


def test_a_job_that_slurm_does_not_put_back_does_not_start_anew(begun, slurm_programs, monkeypatch):
    refused = "echo 'Requested operation is presently disabled' >&2; exit 1"
    slurm_programs(scontrol=f'case "$*" in requeue*) {refused} ;; esac; {DOWN}')
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert not requeue_if_first_node_down(SlurmSystem(), begun.plan)


def test_where_only_the_batch_process_can_put_a_job_back_nobody_else_says_that_it_did(begun, monkeypatch):
    """Grid Engine does it for who leaves with exit code 99: that was on the host that is lost."""
    monkeypatch.setenv("JOB_ID", "12")
    monkeypatch.setattr(
        GridEngineSystem, "nodes", lambda _, hosts: dict.fromkeys(hosts, NodeAnswer(True, "not heard by the qmaster"))
    )
    monkeypatch.setattr(GridEngineSystem, "start_again", lambda *_: pytest.fail("it does not start again"))
    assert not requeue_if_first_node_down(GridEngineSystem(), begun.plan)


SHOWN = """
cat <<'END'
NodeName=node0 State=MIXED Reason=none
NodeName=node1 State=ALLOCATED+DRAIN Reason=fan is loud [root@2026-11-26T21:00:00]
NodeName=node2 State=IDLE
END
"""


def on_three(begun):
    """Return a plan of three nodes, one of them a spare."""
    nodes = [msgspec.structs.replace(begun.plan.nodes[0], index=i, host=f"node{i}", spare=i > 1) for i in range(3)]
    return msgspec.structs.replace(begun.plan, nodes=tuple(nodes), nodes_max=2)


def test_nodes_that_are_drained_are_told_of_once(begun, slurm_programs):
    slurm_programs(scontrol=SHOWN)
    plan, attempt = on_three(begun), begun.attempt
    attempt.path.mkdir(parents=True, exist_ok=True)
    ask_to_drain(attempt, {2: ""})
    assert move_off_drained_nodes(SlurmSystem(), attempt, plan) == {1}
    said = DrainRequest(nodes=(1, 2), why={1: "the scheduler says allocated+drain: fan is loud"})
    assert read_record(attempt.drain, DrainRequest) == said
    assert move_off_drained_nodes(SlurmSystem(), attempt, plan, {1}) == set()
    slurm_programs(scontrol="exit 1")
    assert move_off_drained_nodes(SlurmSystem(), attempt, plan) == set(), "who does not answer says nothing"


def test_the_batch_process_asks_as_long_as_the_attempt_goes_on_and_only_where_there_is_a_spare(begun, slurm_programs):
    slurm_programs(scontrol=SHOWN)
    plan, threads = on_three(begun), threading.active_count()
    with watched_for_drains(SlurmSystem(), begun.attempt, msgspec.structs.replace(plan, nodes_max=3), 0.01):
        assert threading.active_count() == threads
    with watched_for_drains(SlurmSystem(), begun.attempt, plan, 0.01):
        deadline = time.monotonic() + 60
        while read_record(begun.attempt.drain, DrainRequest) is None and time.monotonic() < deadline:
            time.sleep(0.01)
    assert threading.active_count() == threads
    said = read_record(begun.attempt.drain, DrainRequest)
    assert said is not None and said.nodes == (1,)
