"""The environment variables that tell a process its rank, the number of ranks, and the address of rank 0. A rank gets
only the launcher's own values of these, because those left by another launcher or by a batch system would mislead it.
All other variables of a job are passed on to ranks.
"""

import re

# A * stands for any characters.
WHO_READS_WHAT: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "torchrun and torch.distributed",
        (
            "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
            "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_*", "PET_*",
        ),
    ),
    ("`trainer` and this launcher", ("LAUNCH_*",)),
    (
        "Lightning, and scripts that look for a step of Slurm's",
        (
            "NODE_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_NTASKS",
            "SLURM_NTASKS_PER_*", "SLURM_NPROCS", "SLURM_TASKS_PER_NODE", "SLURM_STEPID", "SLURM_STEP_*",
            "SLURM_TASK_PID", "JSM_NAMESPACE_*",
        ),
    ),
    (
        "srun in a rank, which would take them for its own options",
        ("SLURM_CPU_BIND*", "SLURM_MEM_BIND*", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_*"),
    ),
    (
        "MPI, and Accelerate and DeepSpeed, which look for MPI",
        (
            "PMI_*", "PMI2_*", "PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SERVER_*", "OMPI_COMM_WORLD_*",
            "OMPI_UNIVERSE_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_*", "HYDI_CONTROL_FD",
        ),
    ),
    (
        "scripts for DeepSpeed's launcher, Horovod and submitit",
        ("CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE", "HOROVOD_*RANK", "HOROVOD_*SIZE", "SUBMITIT_*"),
    ),
)  # fmt: skip
PATTERNS = tuple(pattern for _, patterns in WHO_READS_WHAT for pattern in patterns)
EXPRESSION = "|".join(pattern.replace("*", ".*") for pattern in PATTERNS)
_MISLEADS = re.compile(EXPRESSION, re.DOTALL)


def misleads(name: str) -> bool:
    """Return whether the variable is one that a rank must not inherit: it gets the launcher's own value, or none."""
    return _MISLEADS.fullmatch(name) is not None
