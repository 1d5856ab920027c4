"""Build the variables of a rank: those torchrun sets, those Lightning, Accelerate and torchtitan read, and LAUNCH_*. A
generation is one set of ranks that train together. A role is one program of a run that has several.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from launcher.plan.model import NodePlan, Plan
from launcher.run.processes import TAG
from launcher.spec.model import CheckpointOptions, Recovery
from launcher.spec.rank_variables import misleads
from launcher.wire.messages import Start

# Variables of a job, or options for one, in the submitting shell: they are not of the job that the ranks will run in.
_OF_ANOTHER_JOB = (
    "SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "PMI_", "PMI2_", "PMIX_", "OMPI_", "PRTE_",
)  # fmt: skip
_OF_NO_JOB = "SLURM_CONF"  # names the cluster, and is the user's own
_DEFAULTED = "LAUNCH_DEFAULTED"  # NAME=value of what we chose for a rank: no export of its user's, if it submits a run
_LEAST_GROUP_TIMEOUT_S = 600.0
_AFTER_A_HANG_S = 300.0


def cleaned(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without the variables of another batch job and without those that another launcher set for its
    own ranks.

    The process that submits a run may itself be a rank, whose variables do not apply to the run.
    """
    kept, ours = job_environment(environ), environ.get(_DEFAULTED, "").split()
    return {
        name: value
        for name, value in kept.items()
        if (not name.startswith(_OF_ANOTHER_JOB) or name == _OF_NO_JOB) and f"{name}={value}" not in ours
    }


def job_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables in `environ` that ranks may inherit. Left out are those that the launcher sets for each rank
    itself, and those that would mislead a rank, such as SLURM_PROCID or PMI_RANK.
    """
    return {name: value for name, value in environ.items() if not misleads(name)}


def node_environment(
    base: Mapping[str, str],
    plan: Plan,
    node: NodePlan,
    attempt: int,
    secrets: Mapping[str, str],
    memory: Path | None = None,
    interface: str | None = None,
) -> dict[str, str]:
    """Return the environment that all processes of one node share, made from `base`; the zygote and `run.setup` get it
    unchanged.

    `attempt` is the attempt's number, and `secrets` are the spec's secrets by variable. `memory` is the node's folder
    for snapshots, or None without snapshots; `interface` is the network interface with the node's address, over which
    ranks reach each other, or None if torch is to choose.
    """
    gpus = {} if node.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(node.gpus)}
    disk = {"LAUNCH_DISK": "apart"} if plan.disks_apart else {}
    checkpoint, recovery = plan.spec.checkpoint, plan.spec.recovery
    ours = {
        TAG: plan.run_dir,
        "LAUNCH_RUN_ID": plan.run_id,
        "LAUNCH_ATTEMPT": str(attempt),
        "LAUNCH_NODE": str(node.index),
        "LAUNCH_ARTIFACTS": f"{plan.run_dir}/{plan.workdir}/artifacts",
        "LAUNCH_CHECKPOINT_DIR": f"{plan.run_dir}/{checkpoint.dir}",
        "LAUNCH_CHECKPOINT_EVERY": _every(checkpoint.every_steps, checkpoint.every_s),
        "LAUNCH_CHECKPOINT_KEEP": str(checkpoint.keep),
        "LAUNCH_GRACE_S": f"{recovery.grace_s:g}",
        "LAUNCH_GROUP_TIMEOUT_S": f"{group_timeout_s(recovery):g}",
        "TORCHELASTIC_RUN_ID": plan.run_id,  # torch and Lightning take its presence for "started by torchrun"
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",  # torch's own default
    }
    ours |= {**disk, **_memory_variables(checkpoint, memory), **gpus, **_role_variables(plan)}
    copy_lag = _every(checkpoint.copy_lag_steps, checkpoint.copy_lag_s)
    if plan.disks_apart and copy_lag:
        ours["LAUNCH_CHECKPOINT_COPY_LAG"] = copy_lag
    if memory is not None and plan.keeps_copies:
        ours["LAUNCH_CHECKPOINT_BUDDY"] = "1"
    if plan.ranks_may_stay and plan.nodes_vary:
        # Who is left may have to go on from what was noted on a node that is lost. Ranks of a node that has no memory
        # to note anything in are told, too: the others ask all.
        ours["LAUNCH_NOTES_COPIED"] = "1"
    defaults = {**_defaults(interface, hot=recovery.mode == "hot"), **plan.env}
    chosen = [name for name in defaults if not any(name in others for others in (base, ours, plan.spec.env, secrets))]
    ours[_DEFAULTED] = " ".join(f"{name}={defaults[name]}" for name in chosen)
    return with_own_folders({**defaults, **base, **ours, **plan.spec.env, **secrets}, plan)


def with_own_folders(environ: Mapping[str, str], plan: Plan) -> dict[str, str]:
    """Return the environment with the run's copy of the project's own packages first on PYTHONPATH, before installed
    versions.
    """
    code = Path(plan.run_dir, "code")
    said = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    inside = [os.path.relpath(part, plan.project) for part in said if Path(part).is_relative_to(plan.project)]
    frozen = [str(code / folder) for folder in (*plan.own_folders, *inside)]
    return {**environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*frozen, *said]))} if frozen else dict(environ)


def _defaults(interface: str | None, *, hot: bool) -> dict[str, str]:
    """Return the variables that apply unless the spec, the user's exports or the cluster set them.

    `interface` is the network interface that gloo and NCCL should use, None to let them choose. `hot` adds variables
    that keep torch from ending survivors when another rank is lost.
    """
    # Hot: the agent informs surviving ranks of a lost one, and torch must not end them meanwhile.
    # Huge pages for large tensors: in small ones a process that starts or ends spends much of its time on its pages.
    found = {"PYTHONUNBUFFERED": "1", "THP_MEM_ALLOC_ENABLE": "1"}
    found |= {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0" if hot else "1"}
    if hot:
        found["TORCH_NCCL_DUMP_ON_TIMEOUT"] = (
            "0"  # else an abort takes a minute, for which torch waits for its own report
        )
    if interface is not None:
        found["GLOO_SOCKET_IFNAME"] = interface
    if interface is not None and interface != "lo":
        found["NCCL_SOCKET_IFNAME"] = f"={interface}"  # exactly this one: NCCL takes a name for a beginning
    return found


def group_timeout_s(recovery: Recovery) -> float:
    """Return the time-out of torch's process groups in seconds: the spec's, or one longer than hang detection takes.

    With a shorter one, the ranks that wait for a hung rank would time out first and be reported as the cause.
    """
    if recovery.group_timeout_s is not None:
        return recovery.group_timeout_s
    hang_s = 0.0 if recovery.hang_after_s is None else max(recovery.hang_after_s, recovery.hang_at_start_s)
    return max(_LEAST_GROUP_TIMEOUT_S, hang_s + _AFTER_A_HANG_S)


def _every(steps: int | None, seconds: float | None) -> str:
    """Return the interval as text, such as `500 steps` or `90 s`: `steps` if it is given, else `seconds`. Return "" if
    both are None.
    """
    if steps is not None:
        return f"{steps} steps"
    return "" if seconds is None else f"{seconds:g} s"


def _memory_variables(checkpoint: CheckpointOptions, memory: Path | None) -> dict[str, str]:
    """Return the variables that tell ranks where (`memory`), how often and how much to save in memory; none if `memory`
    is None.
    """
    if memory is None:
        return {}
    return {
        "LAUNCH_CHECKPOINT_MEMORY_DIR": str(memory),
        "LAUNCH_CHECKPOINT_MEMORY_EVERY": _every(checkpoint.memory_every_steps, checkpoint.memory_every_s),
        "LAUNCH_CHECKPOINT_MEMORY_LIMIT": str(checkpoint.memory_limit_bytes),
    }


def hot_variables(plan: Plan, control: Path, notes: Path, *, joins: bool) -> dict[str, str]:
    """Return the variables of a rank for `recovery.mode` hot or auto: `control`, the path of its control FIFO, `notes`,
    the folder in which it records its state at each step, and with several nodes the length of the lease under which
    its node's ranks may run.

    With `joins` the rank joins a training under way and gets its state from the other ranks.
    """
    words = {"LAUNCH_CONTROL": str(control), "LAUNCH_NOTES_DIR": str(notes)}
    if plan.spec.recovery.mode == "auto":
        words["LAUNCH_STAYS"] = "auto"
    if len(plan.nodes) > 1:
        words["LAUNCH_LEASE_S"] = f"{plan.spec.recovery.lease_s:g}"
    return words | ({"LAUNCH_JOINS": "1"} if joins else {})


def _role_variables(plan: Plan) -> dict[str, str]:
    """Return the variables that give ranks the name of their role, LAUNCH_ROLE, and the addresses of the ranks of each
    role, LAUNCH_ADDR_NAME; none in a run of one program.
    """
    addresses = {f"LAUNCH_ADDR_{name.upper()}": ",".join(some) for name, some in plan.addresses.items()}
    return {"LAUNCH_ROLE": plan.role, **addresses} if plan.role else {}


def role_rank_variables(plan: Plan, rank: int) -> dict[str, str]:
    """Return the variables that tell a rank its number in its role, and the ports on which it has to serve; none in a
    run of one program. A port is "" if the role has none for this rank.

    `rank` is the rank's number in the plan. Its number in the role is another one if each rank of the role restarts
    alone: then each has a plan of its own, in which it is rank 0.
    """
    if not plan.role:
        return {}
    number, words = plan.role_rank + rank, dict[str, str]()
    for name, key in plan.address_keys.items():
        mine = plan.addresses.get(key, ())
        port = mine[number].rpartition(":")[2] if number < len(mine) else ""
        words[f"LAUNCH_PORT_{name.upper()}" if name else "LAUNCH_PORT"] = port
    return {"LAUNCH_ROLE_RANK": str(number), **words}


def sizes(start: Start) -> dict[str, str]:
    """Return the variables WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_WORLD_SIZE and ROLE_WORLD_SIZE, which are the same for
    all ranks of a node. `start` is the coordinator's order to start the ranks of a generation.
    """
    world = str(start.world_size)
    return {
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(start.local_world_size),
        "GROUP_WORLD_SIZE": str(start.group_world_size),
        "ROLE_WORLD_SIZE": world,
    }


def rank_environment(start: Start, local_rank: int, progress: str, error_file: str) -> dict[str, str]:
    """Return the variables of the rank with the number `local_rank` on this node, beyond its node's environment: its
    ranks and sizes, MASTER_ADDR, and its report files.

    `start` is the coordinator's order to start the ranks of a generation. `progress` is the path of the FIFO on which
    the rank reports, `error_file` the path of the file to which torch's `@record` writes the rank's exception.
    """
    rank = str(start.first_rank + local_rank)
    return {
        **sizes(start),
        "RANK": rank,
        "LOCAL_RANK": str(local_rank),
        "GROUP_RANK": str(start.group_rank),
        "NODE_RANK": str(start.group_rank),
        "ROLE_RANK": rank,
        "ROLE_NAME": "default",
        "MASTER_ADDR": start.master_addr,
        "MASTER_PORT": str(start.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(start.restarts),
        "TORCHELASTIC_MAX_RESTARTS": "1000000",  # the budgets are ours; scripts only ask whether they run elastic
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # unlike torchrun's: no store of ours listens at MASTER_PORT
        "TORCHELASTIC_ERROR_FILE": error_file,
        "LAUNCH_GENERATION": str(start.generation),
        "LAUNCH_PROGRESS": progress,
    }
