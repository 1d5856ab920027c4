"""Define the plan: all that is decided before anything starts, written once as plan.json and read by every agent, the
launcher's process on each node. The zygote is a process on each node that forks the ranks. An attempt is one batch job,
or one start on a pool's hosts; a generation is one start of all ranks in it. A run of several programs has a role for
each, with a plan of its own; the plan of one role, the main one if there is one, contains those of the others, the side
roles.
"""

import msgspec

from launcher.ids import RunId
from launcher.spec.model import JobSpec, RunKind

ROLES = "roles"  # in a run directory: those of the roles beside the main one


class RankCommand(msgspec.Struct, frozen=True):
    """The command that starts one rank process. `target` is a script's path inside the frozen code, a module or a
    program, as `kind` says; `python` runs ranks and the zygote, and `preload` are the modules that the zygote imports
    before it forks.
    """

    kind: RunKind
    target: str  # script: path inside code/; module: its dotted name; command: argv[0]
    args: tuple[str, ...]  # arguments after the target
    python: str  # absolute path of the interpreter that runs ranks and the zygote
    preload: tuple[str, ...]  # modules that the zygote imports before it forks


class NodePlan(msgspec.Struct, frozen=True):
    """A node of the plan."""

    index: int
    address: str  # at which other nodes reach it, the only one on which its agent listens; "": its agent finds out
    spare: bool  # it starts without ranks, to replace a node that is lost or drained
    gpus: tuple[str, ...] | None  # CUDA_VISIBLE_DEVICES; None: as its agent has them
    host: str = ""  # the cluster's name for the machine; "": not known yet, or this machine
    votes_only: bool = False  # its host is another role's: it votes and stores copies, but never has ranks of this plan


class AwaitedRun(msgspec.Struct, frozen=True):
    """A run that must succeed, end or reach `step` before another one may start, as `until` says."""

    run_id: RunId
    run_dir: str  # absolute
    until: str  # succeeded, ended, or step: it has made `step` steps
    step: int = 0


class FrozenCode(msgspec.Struct, frozen=True):
    """The frozen copy of the user's code: its digest, number of files and size."""

    digest: str
    files: int
    bytes: int  # of all files


class Plan(msgspec.Struct, frozen=True):
    """Everything that is decided about a run, or a role of it, before it starts. `defaults` are spec options that the
    cluster set, `told` names who is notified, `elects` says that hosts elect another leader, `away` are nodes lost
    before the attempt was opened, `awaited` are runs that must come first. Roles: `roles` are the plans of the others,
    `role_rank` its rank 0's number in the role, `first_host` and `first_gpu` where its share of the run's hosts and
    their GPUs begins, `addresses` HOST:PORT of each rank by role.
    """

    run_id: RunId
    name: str
    cluster: str  # `local`, or a name in the clusters file
    cluster_kind: str  # such as slurm or ssh
    submitted_at: float  # Unix time
    spec_file: str  # absolute path as submitted, for messages
    project: str  # absolute path of the folder whose code was frozen
    run_dir: str  # absolute
    workdir: str  # relative to the run directory, inside code/
    spec: JobSpec  # with the overrides applied
    overrides: tuple[str, ...]  # as given by --set, in order
    entry: RankCommand
    setup: str | None  # shell code that runs first on each node; None: none
    nodes: tuple[NodePlan, ...]
    nodes_min: int  # with fewer nodes than this no generation starts
    nodes_max: int  # more nodes than this are spares
    ranks_per_node: int
    cpus_per_rank: int
    gpus_per_node: int
    env: dict[str, str]  # variables of every rank beside the launcher's own; no secrets
    secrets: tuple[str, ...]  # names only
    code: FrozenCode
    defaults: tuple[tuple[str, str], ...] = ()  # options that the cluster set, as neither spec nor --set names them
    limit_per_job: bool = False  # the cluster limits each job to resources.time; else that is for the whole run
    interface: str | None = None  # the network interface on which nodes listen; None: that of their names
    one_machine: bool = False  # one machine plays all nodes
    disks_apart: bool = False  # each node has a disk of its own, with a run directory for its ranks' files
    elects: bool = False  # its hosts elect another leader if theirs falls silent
    told: tuple[str, ...] = ()  # recipients of notifications, without secret addresses
    own_folders: tuple[str, ...] = ()  # inside code/: from which the project's own packages are imported
    starts_at: float | None = None  # Unix time before which it does not start
    awaited: tuple[AwaitedRun, ...] = ()  # runs that must come first
    umask: int | None = None  # of the user, and so of ranks; None: planned by an older version, 0o077
    away: tuple[int, ...] = ()  # nodes that were lost before the attempt was opened, and may still come
    role: str = ""  # "": a run of one program
    role_rank: int = 0  # the number of its rank 0 in the role: ranks that restart alone have a plan each
    restarts_all: bool = False  # a failed rank ends the attempt, so that all roles start again
    roles: tuple["Plan", ...] = ()  # plans of the side roles, in that of the main role or, without one, of the first
    first_host: int = 0  # index of its node 0 among the run's hosts
    first_gpu: int = 0  # index of its first GPU among those that the run has on a host
    first_attempt: int = 1  # of a side role: number of its next attempt, above those that it has had here or elsewhere
    ports: tuple[str, ...] = ()  # names of the further ports of each rank
    coordinator: str = ""  # address of the machine with its coordinator; "": node 0's agent includes it
    addresses: dict[str, tuple[str, ...]] = {}  # by role, or role_port: HOST:PORT of each rank, once it starts

    @property
    def is_beside_main(self) -> bool:
        """Whether this plan is of a side role, whose run directory is below the main role's."""
        return bool(self.role) and not self.spec.roles

    def addresses_of(self, node: int) -> tuple[str, ...]:
        """Return the HOST:PORT addresses of the ranks on a node, or () in a run without roles. A role may give each
        rank several ports: then all are returned.
        """
        first = self.role_rank + node * self.ranks_per_node
        found = [self.addresses.get(key, ())[first : first + self.ranks_per_node] for key in self.address_keys.values()]
        return tuple(address for some in found for address in some)

    @property
    def address_keys(self) -> dict[str, str]:
        """A dict from the name of each port that the role's ranks have to its key in `addresses`.

        The first port has the name "", and the role's name as its key. The key of another port is ROLE_PORT: port
        `metrics` of role `server` has `server_metrics`.
        """
        return {"": self.role} | {port: f"{self.role}_{port}" for port in self.ports}

    @property
    def ends_with_all(self) -> bool:
        """Whether the run ends once all its roles have ended, because none is the main one."""
        return bool(self.spec.roles) and not any(role.main for role in self.spec.roles.values())

    @property
    def nodes_vary(self) -> bool:
        """Whether the next generation may have other nodes than the present one, as there are spares, or as the run
        may continue on fewer nodes.
        """
        nodes = sum(not node.votes_only for node in self.nodes)
        return self.nodes_max > 1 and (nodes > self.nodes_max or self.nodes_min < self.nodes_max)

    @property
    def ranks_may_stay(self) -> bool:
        """Whether ranks may keep their processes while others are replaced.

        They may with `recovery.mode: hot`, and with `auto` if the nodes cannot change.
        """
        mode = self.spec.recovery.mode
        return mode == "hot" or (mode == "auto" and not self.nodes_vary)

    @property
    def copies_last(self) -> bool:
        """Whether the last checkpoint is copied before the run ends: to another node's disk, or to
        `checkpoint.copy_to`.
        """
        return self.disks_apart or self.spec.checkpoint.copy_to is not None

    @property
    def keeps_copies(self) -> bool:
        """Whether nodes keep copies of each other's step snapshots in memory, as they do with
        `checkpoint.buddy`.

        It is False for a single node, and without a shared disk, where nodes keep copies of checkpoints on their disks
        instead.
        """
        return self.spec.checkpoint.buddy and len(self.nodes) > 1 and not self.disks_apart
