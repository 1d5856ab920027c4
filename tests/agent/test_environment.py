"""What ranks find in their environment, and what they must not."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_folder import plan_of

from launcher.agent.environment import cleaned, node_environment, rank_environment
from launcher.agent.messages import Start
from launcher.spec.model import Checkpoint, Recovery

START = Start(
    generation=3, first_rank=4, local_world_size=2, world_size=8, group_rank=2, group_world_size=4,
    master_addr="127.0.0.1", master_port=20_123, restarts=2,
)  # fmt: skip


def test_a_rank_gets_what_torchrun_gives():
    rank = rank_environment(START, 1, "/fifo")
    wanted = {
        "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "2",
        "GROUP_WORLD_SIZE": "4", "ROLE_RANK": "5", "ROLE_WORLD_SIZE": "8", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "20123", "TORCHELASTIC_RESTART_COUNT": "2", "LAUNCH_GENERATION": "3", "LAUNCH_PROGRESS": "/fifo",
    }  # fmt: skip
    assert {name: rank[name] for name in wanted} == wanted


def of_node(memory=None, **sections):
    plan = plan_of(Path("/runs/job-abcd"))
    plan = msgspec.structs.replace(plan, spec=replace(plan.spec, **sections))
    return node_environment({}, plan, plan.nodes[0], 1, {}, memory)


def test_a_rank_hears_of_a_disk_that_is_its_nodes_own():
    plan = plan_of(Path("/runs/job-abcd"))
    apart = msgspec.structs.replace(plan, disks_apart=True)
    assert node_environment({}, apart, plan.nodes[0], 1, {})["LAUNCH_DISK"] == "apart"
    assert "LAUNCH_DISK" not in node_environment(cleaned({"LAUNCH_DISK": "apart"}), plan, plan.nodes[0], 1, {})


@pytest.mark.parametrize(
    ("checkpoint", "every"),
    [
        (Checkpoint(memory_every_steps=20), "20 steps"),
        (Checkpoint(memory_every_s=0.5), "0.5 s"),
        (Checkpoint(every_steps=500, memory_every_s=90.0), "90 s"),
    ],
)
def test_a_rank_is_told_of_its_nodes_memory(checkpoint, every):
    words = of_node(Path("/dev/shm/x"), checkpoint=checkpoint)
    assert words["LAUNCH_CHECKPOINT_MEMORY_DIR"] == "/dev/shm/x"
    assert words["LAUNCH_CHECKPOINT_MEMORY_EVERY"] == every
    assert words["LAUNCH_CHECKPOINT_MEMORY_LIMIT"] == "8000000000"


def test_without_such_memory_nothing_speaks_of_it():
    assert [name for name in of_node(checkpoint=Checkpoint(memory_every_steps=20)) if "MEMORY" in name] == []


@pytest.mark.parametrize(
    ("recovery", "seconds"),
    [
        (Recovery(), 1200.0),
        (Recovery(hang_after_s=2.0), 600.0),
        (Recovery(hang_after_s=None), 600.0),
        (Recovery(hang_after_s=7200.0), 7500.0),
        (Recovery(group_timeout_s=3.5), 3.5),
        (Recovery(hang_after_s=7200.0, group_timeout_s=60.0), 60.0),
    ],
)
def test_a_hang_is_noticed_before_its_peers_give_up_unless_the_spec_says_otherwise(recovery, seconds):
    assert float(of_node(recovery=recovery)["LAUNCH_GROUP_TIMEOUT_S"]) == seconds


POISON = {
    "SLURM_NTASKS": "99", "SLURM_CPU_BIND": "x", "SBATCH_TIMELIMIT": "7", "SRUN_CPUS": "1", "PMIX_RANK": "3",
    "PMI_RANK": "3", "OMPI_COMM_WORLD_RANK": "4", "MASTER_ADDR": "evil", "MASTER_PORT": "1", "RANK": "7",
    "WORLD_SIZE": "9", "LOCAL_RANK": "9", "NODE_RANK": "1", "GROUP_RANK": "5", "TORCHELASTIC_RUN_ID": "old",
    "LAUNCH_RUN_DIR": "/another", "LAUNCH_RUNS": "/runs",
}  # fmt: skip


def test_another_launchers_words_do_not_leak():
    assert cleaned({**POISON, "PATH": "/bin", "HOME": "/root"}) == {"PATH": "/bin", "HOME": "/root"}


@given(st.dictionaries(st.sampled_from(sorted(POISON)), st.text(max_size=5)))
def test_any_poison_gives_the_same_environment(poison):
    honest = {"PATH": "/bin", "LANG": "C", "CUDA_HOME": "/cuda", "SLURMISH": "mine", "RANKING": "1"}
    assert cleaned({**poison, **honest}) == honest
