"""A job as read and checked: frozen data without behaviour.

How each field is written in YAML, what it means and its default are in `fields.py`, which names these classes.
"""

from typing import Any, Literal

from msgspec import Struct


class NodeRange(Struct, frozen=True):
    """The number of nodes of a run: it starts with `max` if they come in time, and may continue with `min`."""

    min: int = 1
    max: int = 1

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min}..{self.max}"


class RunOptions(Struct, frozen=True):
    """The program to run: exactly one of script, module and command."""

    script: str | None = None
    module: str | None = None
    command: str | tuple[str, ...] | None = None  # text: for /bin/sh; list: exec'ed as it is
    args: tuple[str, ...] = ()  # a mapping has become `--key value` already
    workdir: str = "."
    setup: str | None = None
    python: str | None = None
    preload: tuple[str, ...] | None = None  # None: decided from what the code imports
    outputs: tuple[str, ...] = ()  # patterns of what ranks write beside their code; none: all of it


class Resources(Struct, frozen=True):
    """The nodes, ranks, GPUs, CPUs, memory and time that a job asks for."""

    nodes: NodeRange = NodeRange()
    ranks_per_node: int | None = None  # None: auto
    gpus_per_node: int | None = None  # None: auto
    cpus_per_rank: int | None = None  # None: auto
    memory_gb: float | None = None
    time_s: float | None = None  # `time:`
    ranks_without_gpus: int = 1


class Secret(Struct, frozen=True):
    """A secret variable, whose value is taken at submit from the environment or from a file."""

    name: str
    file: str | None = None


class Code(Struct, frozen=True):
    """The files that are frozen as the job's code, and the limit on their size."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    max_bytes: int = 100_000_000  # `max_size:`


class CheckpointOptions(Struct, frozen=True):
    """How often checkpoints are saved, how many are kept, and where."""

    every_steps: int | None = None  # `every: 500 steps`
    every_s: float | None = None  # `every: 10m`
    keep: int = 3
    dir: str = "checkpoints"  # inside the run directory
    memory_every_steps: int | None = None  # `memory_every: 20 steps`
    memory_every_s: float | None = None  # `memory_every: 30s`
    memory_limit_bytes: int = 8_000_000_000  # `memory_limit:` of each node
    copy_limit_bytes: int | None = None  # `copy_limit:` a second; None: as fast as it goes
    buddy: bool = False  # what is in a node's memory has a copy in the next one's
    copy_lag_steps: int | None = None  # `copy_lag: 500 steps`
    copy_lag_s: float | None = None  # `copy_lag: 10m`
    copy_to: str | None = None  # an address of fsspec
    copy_to_every_steps: int | None = None  # `copy_to_every: 5000 steps`
    copy_to_every_s: float | None = None  # `copy_to_every: 1h`
    copy_to_keep: int | None = None  # None: as many as `keep`
    copy_to_limit_bytes: int | None = None  # `copy_to_limit:` a second; None: as fast as it goes


class Budget(Struct, frozen=True):
    """A limit on restarts for one cause, and the time to wait before each.

    The first restart is at once. `backoff_s` is the wait after the second failure in a row without progress; it doubles
    up to `backoff_max_s`. A restart no longer counts once the run has trained, with progress, for `refill_s`.
    """

    restarts: int | None  # None: no limit
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    refill_s: float | None = 3600.0  # `refill:`; None: off
    explicit: bool = False  # the user set the number of restarts: no other rule ends the run before


class Recovery(Struct, frozen=True):
    """The rules by which a run is restarted after failures: budgets, limits on hangs, and the mode of recovery."""

    user_error: Budget = Budget(3, refill_s=86_400.0)
    out_of_memory: Budget = Budget(3, refill_s=21_600.0)
    killed: Budget = Budget(20)
    hang: Budget = Budget(5, refill_s=21_600.0)
    communication: Budget = Budget(20)
    node_lost: Budget = Budget(20)
    preempted: Budget = Budget(None)
    time_limit: Budget | None = None  # None: none; on Slurm, whose jobs are short parts of a run, no limit
    launcher_fault: Budget = Budget(5)
    disk: Budget = Budget(20, 5.0, 300.0)
    hang_after_s: float | None = 900.0  # None: off
    hang_auto: bool = True  # `hang_after: auto`: at once, where it is certain that no time would mend it
    hang_at_start_s: float = 1800.0  # `hang_at_start:` as hang_after_s, of a rank that has never reported
    no_progress: int | None = 5  # restarts in a row without a newer checkpoint; None: off
    spares: int = 0
    wait_s: float = 60.0  # `wait:` how long to wait for all nodes before going on with `nodes.min`
    lease_s: float = 15.0  # `lease:`
    gone_after_s: float = 900.0  # `gone_after:` how long a lost node may come back with what is on its disk
    avoid_s: float = 3600.0  # `avoid:` how long a lost node is not used again
    grace_s: float = 30.0  # `grace:` between asking ranks to stop and killing them
    group_timeout_s: float | None = None  # `group_timeout:`; None: auto, from `hang_after`
    mode: str = "auto"  # auto, warm, hot
    replace_stragglers: bool = False  # the ranks of a node that all others wait for move to a spare
    reserve: int = 0  # processes of each node that have begun, and wait to be ranks
    health: bool = False  # a node's devices and links are checked before it has ranks, and again after a failure
    link_floor_bytes: int | None = None  # `link_floor:` a second; None: auto, a tenth of what is usual


class NotifyTarget(Struct, frozen=True):
    """A recipient of notifications: `argv` for a command, `address` for email, and for all other kinds the `secret`
    that holds the webhook's address, or `address` itself, which only the user's own settings may contain.
    """

    kind: str  # slack, discord, teams, json, email, command
    secret: Secret | None = None
    address: str = ""
    argv: tuple[str, ...] = ()


class NotifyOptions(Struct, frozen=True):
    """Who is notified of a run, and on which occasions; None means the user's settings, or the default if they are
    silent.
    """

    to: tuple[NotifyTarget, ...] | None = None
    on: tuple[str, ...] | None = None
    restarts: int | None = None
    stalled_after_s: float | None = None  # `stalled_after:`


class Notice(Struct, frozen=True):
    """The ways in which a host announces that it is about to go away; one is enough."""

    file: str | None = None
    command: tuple[str, ...] = ()
    signal: str | None = None
    lead_s: float = 120.0  # `lead:` how long before the host leaves the notice comes

    @property
    def is_given(self) -> bool:
        """Whether a way is set in which the host gives notice."""
        return self.file is not None or self.command != () or self.signal is not None


class Predecessor(Struct, frozen=True):
    """A run for which another one waits, and the state or step that it must have reached."""

    run: str  # an id, a unique beginning of one, a name, or `last`
    until: str = "succeeded"  # succeeded, ended; step: it has made `step` steps
    step: int = 0

    def __str__(self) -> str:
        return f"{self.run}:{self.until}" + (f" {self.step}" if self.until == "step" else "")


class QueueOptions(Struct, frozen=True):
    """The conditions for which a run waits before it starts, and its priority."""

    priority: int = 0
    after: tuple[Predecessor, ...] = ()
    hold: bool = False
    at: str | None = None  # a moment as a person writes it; see `kinds.queueing`
    now: bool = False
    slots: int = 0
    max_parallel: int | None = None


class Slurm(Struct, frozen=True):
    """The options that a spec sets for a job on Slurm."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    nodelist: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    gres: str | None = None
    mail_user: str | None = None
    mail_type: tuple[str, ...] = ()
    signal_before_s: float = 120.0  # `signal_before:`
    interface: str | None = None
    container: str | None = None
    extra: dict[str, str] = {}


class GridEngine(Struct, frozen=True):
    """The options that a spec sets for a job on Grid Engine."""

    pe: str | None = None
    queue: str | None = None
    project: str | None = None
    gpu_resource: str = "gpu"
    exclude: tuple[str, ...] = ()
    interface: str | None = None
    warn_before_s: float = 120.0  # `warn_before:`
    extra: dict[str, str] = {}


class Pbs(Struct, frozen=True):
    """The options that a spec sets for a job on PBS."""

    queue: str | None = None
    project: str | None = None
    account: str | None = None
    gpu_resource: str = "ngpus"
    select: tuple[str, ...] = ()
    place: str = "scatter"
    interface: str | None = None
    warn_before_s: float = 120.0  # `warn_before:`
    extra: dict[str, str] = {}


class Lsf(Struct, frozen=True):
    """The options that a spec sets for a job on LSF."""

    queue: str | None = None
    project: str | None = None
    user_group: str | None = None
    app: str | None = None
    gpu: str | None = None
    exclude: tuple[str, ...] = ()
    interface: str | None = None
    warn_before_s: float = 120.0  # `warn_before:`
    extra: dict[str, str] = {}


class Kubernetes(Struct, frozen=True):
    """The options that a spec sets for a job on Kubernetes."""

    image: str | None = None
    claim: str | None = None
    mount: str | None = None
    queue: str | None = None
    gpu_resource: str = "nvidia.com/gpu"
    selector: tuple[str, ...] = ()


class SshHost(Struct, frozen=True):
    """One host of a pool; None means the pool's own option, or the default if the pool has none."""

    name: str
    address: str | None = None
    user: str | None = None
    port: int | None = None
    key: str | None = None
    gpus: int | None = None
    python: str | None = None
    workdir: str | None = None
    transport: str | None = None


class Ssh(Struct, frozen=True):
    """A pool of hosts, with the options of hosts that set none themselves."""

    hosts: tuple[SshHost, ...] = ()
    shared: bool = False
    user: str | None = None
    port: int | None = None
    key: str | None = None
    agent: bool = False
    gpus: int | None = None
    python: str | None = None
    workdir: str | None = None
    transport: str | None = None


class Login(Struct, frozen=True):
    """A login node, through whose `launch` runs are started on its cluster."""

    node: str | None = None
    launch: str = "launch"
    folder: str = "~/launch"
    cluster: str | None = None  # what the cluster is called there; None: it is that machine
    transport: str = "openssh"


Word = bool | int | float | str  # one value of an option, as a sweep chooses it


class Dimension(Struct, frozen=True):
    """The choices of a sweep for one option: one of `values`, or a number from `low` to `high`."""

    values: tuple[Word, ...] = ()
    low: float = 0.0  # `from:`
    high: float = 0.0  # `to:`
    step: float | None = None
    log: bool = False
    whole: bool = False  # integers only
    when: tuple[str, Word] | None = None  # chosen only where this other option has this value


class EarlyStop(Struct, frozen=True):
    """The rule by which a trial that does worse than others is stopped early."""

    early: str = "none"  # asha, hyperband, median, none
    min_steps: int = 1
    factor: int = 3


class SweepBudget(Struct, frozen=True):
    """The time limit of a sweep."""

    time_s: float | None = None  # `time:` after which no new trial begins


class SweepOptions(Struct, frozen=True):
    """A sweep: many runs of one spec that differ in some options, and how these are chosen."""

    metric: str
    mode: str  # min, max
    search: str = "tpe"  # or the path of a CSV file of points
    trials: int | None = None  # None: all points of a grid or a file
    parallel: int = 1
    space: dict[str, Dimension] = {}
    stop: EarlyStop = EarlyStop()
    budget: SweepBudget = SweepBudget()
    failures: int | None = 5  # None: no limit
    seed: int | None = None  # None: drawn


class Readiness(Struct, frozen=True):
    """The condition under which a rank of a role counts as ready; exactly one of the options is set."""

    port: bool | str = False  # its own port takes connections; or that of this name does
    path: str | None = None  # an HTTP request for it, to that port, is answered with 200
    log: str | None = None  # its log has this text
    file: str | None = None  # this file is there; relative to workdir


class Role(Struct, frozen=True):
    """One of several programs of a run, and how it relates to the others."""

    main: bool = False
    after: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()  # names of further ones of each rank
    ready: Readiness | None = None
    colocate: str | None = None  # another role, on whose nodes it is; None: it has nodes of its own
    restart: str = "role"  # all its ranks; alone: each rank by itself; all: every role of the run
    spec: "JobSpec | None" = None  # None: of the role whose spec has all roles: the main one, or else the first


class JobSpec(Struct, frozen=True):
    """A whole job as its spec describes it."""

    name: str
    run: RunOptions
    description: str = ""
    resources: Resources = Resources()
    env: dict[str, str] = {}
    secrets: tuple[Secret, ...] = ()
    code: Code = Code()
    checkpoint: CheckpointOptions = CheckpointOptions()
    recovery: Recovery = Recovery()
    notify: NotifyOptions = NotifyOptions()
    notice: Notice = Notice()
    queue: QueueOptions = QueueOptions()
    slurm: Slurm = Slurm()
    gridengine: GridEngine = GridEngine()
    pbs: Pbs = Pbs()
    lsf: Lsf = Lsf()
    k8s: Kubernetes = Kubernetes()
    ssh: Ssh = Ssh()
    login: Login = Login()
    sweep: SweepOptions | None = None  # of no meaning for a single run
    steps: dict[str, tuple[str, ...]] = {}  # likewise: of a file with several jobs, what each of them needs
    roles: dict[str, Role] = {}  # of a run of several programs all of them
    plugins: dict[str, dict[str, Any]] = {}  # by kind: options of clusters of other packages


RunKind = Literal["script", "module", "command"]
