"""The variables of a rank: what torchrun sets, what Lightning, Accelerate and torchtitan look for, and LAUNCH_*."""

from collections.abc import Mapping

from launcher.agent.messages import Start
from launcher.agent.processes import TAG
from launcher.plan.model import NodePlan, Plan

# A launcher that started us, or a shell inside one of its jobs, must not speak to the ranks of this one.
_LEAKING_PREFIXES = (
    "SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "PMI_", "PMI2_", "PMIX_", "OMPI_", "PRTE_", "HYDRA_",
    "TORCHELASTIC_", "LAUNCH_", "ROLE_", "GROUP_", "LOCAL_", "MASTER_", "PET_", "ACCELERATE_",
)  # fmt: skip
_LEAKING_NAMES = frozenset({"RANK", "WORLD_SIZE", "NODE_RANK", "CROSS_RANK", "TORCHRUN"})
_LAUNCHER_OWN = frozenset({"LAUNCH_RUNS", "LAUNCH_DEBUG"})


def cleaned(environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment without what another launcher left in it."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _LEAKING_NAMES and not name.startswith(_LEAKING_PREFIXES) and name not in _LAUNCHER_OWN
    }


def node_environment(
    base: Mapping[str, str], plan: Plan, node: NodePlan, attempt: int, secrets: Mapping[str, str]
) -> dict[str, str]:
    """What all processes of one node share: the zygote and setup get exactly this."""
    gpus = {} if node.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(node.gpus)}
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if node.address.startswith("127.") else {}
    checkpoint = plan.spec.checkpoint
    every = ""
    if checkpoint.every_steps is not None:
        every = f"{checkpoint.every_steps} steps"
    elif checkpoint.every_s is not None:
        every = f"{checkpoint.every_s:g} s"
    ours = {
        TAG: plan.run_dir,
        "LAUNCH_RUN_ID": plan.run_id,
        "LAUNCH_ATTEMPT": str(attempt),
        "LAUNCH_NODE": str(node.index),
        "LAUNCH_CHECKPOINT_DIR": f"{plan.run_dir}/{checkpoint.dir}",
        "LAUNCH_CHECKPOINT_EVERY": every,
        "LAUNCH_CHECKPOINT_KEEP": str(checkpoint.keep),
        "LAUNCH_GRACE_S": f"{plan.spec.recovery.grace_s:g}",
        "PYTHONUNBUFFERED": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    return {**base, **loopback, **ours, **gpus, **plan.env, **secrets}


def rank_environment(start: Start, local_rank: int, progress: str) -> dict[str, str]:
    """What one rank gets on top of its node's environment."""
    rank = str(start.first_rank + local_rank)
    world = str(start.world_size)
    return {
        "RANK": rank,
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(start.local_world_size),
        "GROUP_RANK": str(start.group_rank),
        "GROUP_WORLD_SIZE": str(start.group_world_size),
        "NODE_RANK": str(start.group_rank),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "ROLE_NAME": "default",
        "MASTER_ADDR": start.master_addr,
        "MASTER_PORT": str(start.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(start.restarts),
        "TORCHELASTIC_MAX_RESTARTS": "1000000",  # the budgets are ours; scripts only ask whether they run elastic
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "LAUNCH_GENERATION": str(start.generation),
        "LAUNCH_PROGRESS": progress,
    }
