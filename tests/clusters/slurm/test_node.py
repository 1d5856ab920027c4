"""The keeper of a node that is not the first one."""

import pytest

from launcher.clusters.batch.job.on_node import see_to_the_first_node
from launcher.clusters.batch.queue import NodeWord
from launcher.clusters.gridengine.queue import GridEngineQueue
from launcher.clusters.slurm.queue import SlurmQueue

DOWN = 'case "$*" in *"show node"*) echo "NodeName=node0 State=DOWN* Reason=Not responding" ;; esac'


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")  # the nudge, which stays a moment
def test_of_an_array_only_its_own_element_is_started_anew(begun, slurm_programs, monkeypatch):
    """The element that was started last has the array's own id, by which Slurm would requeue all of them."""
    slurm_programs(scontrol=DOWN)
    for name, value in {"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}.items():
        monkeypatch.setenv(name, value)
    see_to_the_first_node(SlurmQueue(), begun.plan)
    assert [words for words in slurm_programs.asked() if "requeue" in words] == ["scontrol requeue 12_3"]


def test_a_job_that_slurm_does_not_put_back_does_not_start_anew(begun, slurm_programs, monkeypatch):
    refused = "echo 'Requested operation is presently disabled' >&2; exit 1"
    slurm_programs(scontrol=f'case "$*" in requeue*) {refused} ;; esac; {DOWN}')
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert not see_to_the_first_node(SlurmQueue(), begun.plan)


def test_where_only_the_batch_process_can_put_a_job_back_nobody_else_says_that_it_did(begun, monkeypatch):
    """Grid Engine does it for who leaves with exit code 99: that was on the host that is lost."""
    monkeypatch.setenv("JOB_ID", "12")
    monkeypatch.setattr(
        GridEngineQueue, "nodes", lambda _, hosts: dict.fromkeys(hosts, NodeWord(True, "not heard by the qmaster"))
    )
    monkeypatch.setattr(GridEngineQueue, "start_again", lambda *_: pytest.fail("it does not start again"))
    assert not see_to_the_first_node(GridEngineQueue(), begun.plan)
