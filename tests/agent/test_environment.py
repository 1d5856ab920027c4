"""What ranks find in their environment, and what they must not."""

from hypothesis import given
from hypothesis import strategies as st

from launcher.agent.environment import cleaned, rank_environment
from launcher.agent.messages import Start

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
