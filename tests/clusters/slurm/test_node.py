"""The keeper of a node that is not the first one."""

import pytest

from launcher.clusters.batch.on_node import see_to_the_first_node
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
