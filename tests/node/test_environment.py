"""Test which variables ranks find in their environment, and which they must not."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from run_folder import plan_of

from launcher.node.environment import cleaned, hot_variables, job_environment, node_environment, rank_environment
from launcher.spec.model import CheckpointOptions, Recovery
from launcher.spec.rank_variables import misleads
from launcher.wire.messages import Start

START = Start(
    generation=3, first_rank=4, local_world_size=2, world_size=8, group_rank=2, group_world_size=4,
    master_addr="127.0.0.1", master_port=20_123, restarts=2,
)  # fmt: skip


def test_a_rank_gets_what_torchrun_gives():
    rank = rank_environment(START, 1, "/fifo", "/error")
    wanted = {
        "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "2",
        "GROUP_WORLD_SIZE": "4", "ROLE_RANK": "5", "ROLE_WORLD_SIZE": "8", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "20123", "TORCHELASTIC_RESTART_COUNT": "2", "LAUNCH_GENERATION": "3", "LAUNCH_PROGRESS": "/fifo",
    }  # fmt: skip
    assert {name: rank[name] for name in wanted} == wanted


def test_nothing_that_torchrun_sets_is_missing(tmp_path):
    """Asked of torchrun itself, as it is installed here."""
    show = tmp_path / "show.py"
    show.write_text("import json, os, sys\njson.dump(dict(os.environ), open(sys.argv[1], 'w'))\n")
    shell = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "LC_CTYPE": "C.UTF-8"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    subprocess.run([*torchrun, show, tmp_path / "seen"], env=shell, check=True, timeout=250)
    theirs = json.loads((tmp_path / "seen").read_text())
    ours = {**of_node(), **rank_environment(START, 1, "/fifo", "/error")}
    assert {*theirs} - {*shell} - {*ours} == set()
    same = ("ROLE_NAME", "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}


def test_torch_takes_a_rank_for_torchruns_and_its_store_for_its_own(monkeypatch):
    from torch.distributed import is_torchelastic_launched  # late: of no use to the other tests

    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert not is_torchelastic_launched()
    for name, value in {**of_node(), **rank_environment(START, 0, "/fifo", "/error")}.items():
        monkeypatch.setenv(name, value)
    assert is_torchelastic_launched()
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    assert not rendezvous._torchelastic_use_agent_store()  # else nobody would serve one


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
        (CheckpointOptions(memory_every_steps=20), "20 steps"),
        (CheckpointOptions(memory_every_s=0.5), "0.5 s"),
        (CheckpointOptions(every_steps=500, memory_every_s=90.0), "90 s"),
    ],
)
def test_a_rank_is_told_of_its_nodes_memory(checkpoint, every):
    words = of_node(Path("/dev/shm/x"), checkpoint=checkpoint)
    assert words["LAUNCH_CHECKPOINT_MEMORY_DIR"] == "/dev/shm/x"
    assert words["LAUNCH_CHECKPOINT_MEMORY_EVERY"] == every
    assert words["LAUNCH_CHECKPOINT_MEMORY_LIMIT"] == "8000000000"


def test_without_such_memory_nothing_speaks_of_it():
    assert [name for name in of_node(checkpoint=CheckpointOptions(memory_every_steps=20)) if "MEMORY" in name] == []


@pytest.mark.parametrize(
    ("recovery", "seconds"),
    [
        (Recovery(), 2100.0),
        (Recovery(hang_after_s=2.0), 2100.0),
        (Recovery(hang_after_s=2.0, hang_at_start_s=9.0), 600.0),
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


JOB = {
    "SLURM_JOB_ID": "4711", "SLURM_TMPDIR": "/scratch/4711", "SLURM_JOB_PARTITION": "gpu", "SLURM_ARRAY_TASK_ID": "3",
    "SLURM_CONF": "/etc/slurm.conf", "SLURM_NNODES": "2", "LOCAL_SCRATCH": "/nvme", "GROUP_HOME": "/home/g",
    "OMPI_MCA_btl": "tcp", "PMIX_MCA_gds": "hash", "HYDRA_FULL_ERROR": "1", "ACCELERATE_MIXED_PRECISION": "bf16",
}  # fmt: skip
STEP = {
    "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_NTASKS": "2", "SLURM_NPROCS": "2",
    "SLURM_STEP_ID": "0", "SLURM_STEPID": "0", "SLURM_STEP_NODELIST": "a[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)",
    "SLURM_CPU_BIND_LIST": "0x1", "PMI_RANK": "0", "PMIX_NAMESPACE": "x", "OMPI_COMM_WORLD_RANK": "0",
    "HOROVOD_LOCAL_RANK": "1",
}  # fmt: skip


def test_ranks_get_all_of_their_job_but_what_would_mislead_them():
    assert job_environment({**JOB, **STEP, "PATH": "/bin"}) == {**JOB, "PATH": "/bin"}


def test_what_a_site_puts_into_every_shell_reaches_the_ranks():
    """And which Slurm there is to all that asks it: a site may have its configuration anywhere."""
    site = {name: value for name, value in JOB.items() if not name.startswith(("SLURM_", "OMPI_", "PMIX_"))}
    assert cleaned({**JOB, **STEP}) == site | {"SLURM_CONF": JOB["SLURM_CONF"]}


def test_a_run_submitted_by_a_rank_takes_our_choices_for_no_exports():
    plan = plan_of(Path("/runs/job-abcd"))
    plan = msgspec.structs.replace(plan, env={"OMP_NUM_THREADS": "4"})
    names = ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    rank = node_environment({"PATH": "/bin"}, plan, plan.nodes[0], 1, {}, interface="ib0")
    assert all(name in rank for name in names)
    assert not any(name in cleaned(rank) for name in names)
    assert cleaned({**rank, "OMP_NUM_THREADS": "2"})["OMP_NUM_THREADS"] == "2"
    exported = node_environment({"OMP_NUM_THREADS": "4"}, plan, plan.nodes[0], 1, {}, interface="ib0")
    assert cleaned(exported)["OMP_NUM_THREADS"] == "4"


def test_every_rank_variable_of_ours_may_be_set_by_nobody_else():
    ours = {*rank_environment(START, 0, "/fifo", "/error")} | {
        name for name in of_node() if name.startswith("TORCHELASTIC")
    }
    assert [name for name in ours if not misleads(name)] == []


def on_card(base, **env):
    plan = plan_of(Path("/runs/job-abcd"))
    plan = msgspec.structs.replace(plan, spec=replace(plan.spec, env=env), env={"OMP_NUM_THREADS": "4", **env})
    return node_environment(base, plan, plan.nodes[0], 1, {}, interface="eth0")


def test_where_nobody_says_otherwise_threads_and_cards_are_ours_to_choose():
    found = on_card({})
    assert found["OMP_NUM_THREADS"] == "4"
    assert found["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert found["GLOO_SOCKET_IFNAME"] == "eth0"


FLAGS_OF_A_TENSOR = """
import torch

tensor = torch.zeros(32 << 20, dtype=torch.uint8)
inside = False
for line in open("/proc/self/smaps"):
    place = line.split(maxsplit=1)[0].split("-")
    if len(place) == 2:
        begin, end = (int(number, 16) for number in place)
        inside = begin <= tensor.data_ptr() + (16 << 20) < end
    elif inside and line.startswith("VmFlags:"):
        print(line)
"""


def test_torch_asks_for_huge_pages_for_a_large_tensor_of_a_rank():
    """In the middle of it: where it begins and ends there may be a part that is no whole huge page."""

    def flags(environment):
        words = [sys.executable, "-c", FLAGS_OF_A_TENSOR]
        shell = {"PATH": os.environ["PATH"], **environment}
        return subprocess.run(words, env=shell, check=True, capture_output=True, text=True, timeout=250).stdout.split()

    has_them = Path("/sys/kernel/mm/transparent_hugepage").is_dir()
    assert ("hg" in flags(of_node())) == has_them
    usual = flags({})
    assert usual[0] == "VmFlags:" and "hg" not in usual


CHOICE = {
    "OMP_NUM_THREADS": "9", "NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "ib1", "PYTHONUNBUFFERED": "",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "THP_MEM_ALLOC_ENABLE": "0",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CHOICE))
def test_what_the_user_exports_or_writes_wins(name):
    assert on_card(CHOICE)[name] == CHOICE[name]
    assert on_card({}, **CHOICE)[name] == CHOICE[name]
    assert on_card(dict.fromkeys(CHOICE, "7"), **CHOICE)[name] == CHOICE[name]


@pytest.mark.parametrize(("mode", "wanted"), [("warm", ("1", None)), ("auto", ("1", None)), ("hot", ("0", "0"))])
def test_where_ranks_stay_torch_does_not_act_on_what_became_of_another_one(mode, wanted):
    """An abort waits for its report on the failure otherwise, for a minute."""
    found = of_node(recovery=Recovery(mode=mode))
    assert (found["TORCH_NCCL_ASYNC_ERROR_HANDLING"], found.get("TORCH_NCCL_DUMP_ON_TIMEOUT")) == wanted


@pytest.mark.parametrize(
    ("nodes", "least", "most", "vary"), [(2, 2, 2, False), (3, 2, 2, True), (2, 1, 2, True), (2, 1, 1, False)]
)
@pytest.mark.parametrize("mode", ["hot", "auto", "warm"])
def test_notes_are_copied_where_a_node_may_be_lost_and_the_others_go_on(nodes, least, most, vary, mode):
    """Which nobody does unasked. It is said on a node without memory, too: who copies asks all."""
    plan = plan_of(Path("/runs/job-abcd"))
    plan = msgspec.structs.replace(plan, spec=msgspec.structs.replace(plan.spec, recovery=Recovery(mode=mode)))
    plan = msgspec.structs.replace(plan, nodes=plan.nodes[:1] * nodes, nodes_min=least, nodes_max=most)
    assert ("LAUNCH_NOTES_COPIED" in node_environment({}, plan, plan.nodes[0], 1, {})) == (vary and mode == "hot")
    assert plan.ranks_may_stay == (mode == "hot" or (mode == "auto" and not vary))
    words = hot_variables(plan, Path("/control"), Path("/notes"), joins=False)
    assert words.get("LAUNCH_STAYS") == (mode if mode == "auto" else None)
