"""A job's spec as read and checked: frozen data without behaviour. How each field is written in YAML, its meaning and
its default are in `fields.py`, whose table names these classes.
"""

from typing import Any, Literal

from msgspec import Struct


class NodeRange(Struct, frozen=True):
    """The number of nodes of a run: it starts with `max` if so many come within `recovery.wait`, else with those that
    came, but at least `min`. After a loss of nodes it may continue with at least `min`.
    """

    min: int = 1
    max: int = 1

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min}..{self.max}"


class RunOptions(Struct, frozen=True):
    """The program to run: exactly one of script, module and command; a text `command` is for /bin/sh, a list is
    executed as it is. `setup` is shell code that runs first, `preload` the modules imported before ranks are forked
    (None: chosen from the code's imports), `outputs` patterns of files that ranks write.
    """

    script: str | None = None
    module: str | None = None
    command: str | tuple[str, ...] | None = None  # text: for /bin/sh; list: exec'ed as it is
    args: tuple[str, ...] = ()  # a mapping in YAML was converted to `--key value`
    workdir: str = "."  # relative to the code's root
    setup: str | None = None
    python: str | None = None  # the interpreter of the ranks; None: chosen at submit
    preload: tuple[str, ...] | None = None  # None: chosen from the code's imports
    outputs: tuple[str, ...] = ()  # patterns of files that ranks write beside their code; empty: all


class Resources(Struct, frozen=True):
    """The nodes, ranks, GPUs, CPUs, memory and time that a job asks for. None means automatic for ranks, GPUs and CPUs,
    and no request for memory and time; `ranks_without_gpus` is the automatic number of ranks where there is no GPU.
    """

    nodes: NodeRange = NodeRange()
    ranks_per_node: int | None = None  # None: auto
    gpus_per_node: int | None = None  # None: auto
    cpus_per_rank: int | None = None  # None: auto
    memory_gb: float | None = None
    time_s: float | None = None  # `time:`
    ranks_without_gpus: int = 1


class Secret(Struct, frozen=True):
    """A secret variable, whose value is read at submit from `file`, or from the environment if that is None."""

    name: str
    file: str | None = None


class Code(Struct, frozen=True):
    """The files that are frozen as the job's code, and the limit on their size. Patterns in `include` add files to
    those that git does not ignore, patterns in `exclude` remove files.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    max_bytes: int = 100_000_000  # `max_size:`


class CheckpointOptions(Struct, frozen=True):
    """The options for checkpoints: when they are saved, how many are kept, and where. `memory_every` is the interval of
    step snapshots in memory, `buddy` copies these to the next node, `copy_lag` is how old a checkpoint's copy on
    another node may be, and `copy_to` an object store. Of each interval in steps and seconds, one is set or none.
    """

    every_steps: int | None = None  # `every: 500 steps`
    every_s: float | None = None  # `every: 10m`
    keep: int = 3  # how many of the newest are kept
    dir: str = "checkpoints"  # inside the run directory
    memory_every_steps: int | None = None  # `memory_every: 20 steps`
    memory_every_s: float | None = None  # `memory_every: 30s`
    memory_limit_bytes: int = 8_000_000_000  # `memory_limit:` per node
    copy_limit_bytes: int | None = None  # `copy_limit:` per second; None: no limit
    buddy: bool = False  # step snapshots in a node's memory are copied to the next node's
    copy_lag_steps: int | None = None  # `copy_lag: 500 steps`
    copy_lag_s: float | None = None  # `copy_lag: 10m`
    copy_to: str | None = None  # an address of fsspec
    copy_to_every_steps: int | None = None  # `copy_to_every: 5000 steps`
    copy_to_every_s: float | None = None  # `copy_to_every: 1h`
    copy_to_keep: int | None = None  # None: as many as `keep`
    copy_to_limit_bytes: int | None = None  # `copy_to_limit:` per second; None: no limit


class Budget(Struct, frozen=True):
    """A limit on restarts for one cause (None: no limit), and how long to wait before each: `backoff_s` from the second
    failure in a row without progress on, doubled up to `backoff_max_s`. A restart no longer counts once the run has
    trained for `refill_s` since. `explicit`: the user wrote the number, so that a failure that recurs at the same place
    does not end the run earlier.
    """

    restarts: int | None  # None: no limit
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    refill_s: float | None = 3600.0  # `refill:`; None: every restart counts for ever
    explicit: bool = False  # the user wrote the number of restarts: a failure that recurs does not end the run earlier


class Recovery(Struct, frozen=True):
    """The rules by which a run recovers from failures: for each cause a budget, which has the number of restarts, the
    first and the longest wait before one, and after how many seconds of training one no longer counts (`refill_s`);
    after how long without progress ranks count as hung (`hang_…`); after how many restarts without a newer checkpoint
    the run ends (`no_progress`); and how long to wait for nodes, leases and lost hosts. `mode` is warm (all ranks are
    replaced), hot (survivors continue in place) or auto; `reserve` processes per node wait to become ranks.
    """

    user_error: Budget = Budget(3, refill_s=86_400.0)
    out_of_memory: Budget = Budget(3, refill_s=21_600.0)
    killed: Budget = Budget(20)
    hang: Budget = Budget(5, refill_s=21_600.0)
    communication: Budget = Budget(20)
    node_lost: Budget = Budget(20)
    preempted: Budget = Budget(None)
    time_limit: Budget | None = None  # None: 0, or no limit on a batch system that limits each job
    launcher_fault: Budget = Budget(5)
    disk: Budget = Budget(20, 5.0, 300.0)
    hang_after_s: float | None = 900.0  # None: off
    hang_auto: bool = True  # `hang_after: auto`: earlier, if the ranks' states show that waiting is of no use
    hang_at_start_s: float = 1800.0  # `hang_at_start:` for ranks that have not reported a step yet
    no_progress: int | None = 5  # restarts in a row without a newer checkpoint; None: off
    spares: int = 0  # nodes that start without ranks, to replace lost ones
    wait_s: float = 60.0  # `wait:` for all nodes, before the run continues with `nodes.min`
    lease_s: float = 15.0  # `lease:` after how long without a heartbeat a node is lost
    gone_after_s: float = 900.0  # `gone_after:` how long a lost node may come back with the data on its disk
    avoid_s: float = 3600.0  # `avoid:` how long a lost node is not used again
    grace_s: float = 30.0  # `grace:` between asking ranks to stop and killing them
    group_timeout_s: float | None = None  # `group_timeout:` of torch's process groups; None: auto, from `hang_after`
    mode: str = "auto"  # auto, warm, hot
    replace_stragglers: bool = False  # the ranks of a node for which all others wait move to a spare
    reserve: int = 0  # processes on each node that have started and wait to become ranks
    health: bool = False  # a node's devices and links are checked before it gets ranks, and after a failure
    link_floor_bytes: int | None = None  # `link_floor:` per second; None: auto, a tenth of the usual speed


class NotifyTarget(Struct, frozen=True):
    """A recipient of notifications: `argv` for a command, `address` for email. Other kinds have a `secret`, which holds
    the webhook's address, or `address` itself, which only the user's own settings may contain.
    """

    kind: str  # slack, discord, teams, json, email, command
    secret: Secret | None = None
    address: str = ""
    argv: tuple[str, ...] = ()


class NotifyOptions(Struct, frozen=True):
    """The recipients (`to`) and occasions (`on`) of notifications about a run. None means the value in the user's
    settings, or the default if these have none; `restarts` and `stalled_after_s` are the thresholds for two of the
    occasions.
    """

    to: tuple[NotifyTarget, ...] | None = None
    on: tuple[str, ...] | None = None
    restarts: int | None = None  # more restarts than this are an occasion
    stalled_after_s: float | None = None  # `stalled_after:` so long without progress is an occasion


class Notice(Struct, frozen=True):
    """The way in which a host announces that it is about to be taken away: a file, a command or a signal, one of which
    is enough. The notice comes `lead_s` seconds before the host's end.
    """

    file: str | None = None  # a file that appears on the host; relative to the ranks' working folder
    command: tuple[str, ...] = ()  # exits with 0 if its host will leave
    signal: str | None = None  # HUP or PWR, sent to the agent
    lead_s: float = 120.0  # `lead:` seconds from the notice to the host's end

    @property
    def is_given(self) -> bool:
        """Whether a file, command or signal is set by which a host gives notice."""
        return self.file is not None or self.command != () or self.signal is not None


class Predecessor(Struct, frozen=True):
    """A run for which another one waits until it has `succeeded`, has `ended`, or has made `step` steps (`until`).
    `run` is an id, the beginning of one, a name, or `last`.
    """

    run: str  # an id, a unique beginning of one, a name, or `last`
    until: str = "succeeded"  # succeeded, ended; step: it has made `step` steps
    step: int = 0

    def __str__(self) -> str:
        return f"{self.run}:{self.until}" + (f" {self.step}" if self.until == "step" else "")


class QueueOptions(Struct, frozen=True):
    """The conditions for which a run waits before it starts, and its priority: the runs in `after`, a release by its
    user (`hold`), a moment (`at`), its turn among the runs of one submit (`max_parallel`), and on the cluster `local`
    free GPUs and cores of this machine (`slots`; not with `now`).
    """

    priority: int = 0  # higher numbers start first
    after: tuple[Predecessor, ...] = ()
    hold: bool = False  # wait until `launch release`
    at: str | None = None  # a time as the user wrote it; see `kinds.queueing`
    now: bool = False  # do not wait for GPUs and cores of this machine, and share those of other runs
    slots: int = 0  # cores of this machine that the run waits for and has for itself; 0: it shares all cores
    max_parallel: int | None = None  # runs of one submit that may be active at the same time; None: no limit


class Slurm(Struct, frozen=True):
    """The options that a spec sets for a job on Slurm, called as sbatch calls them. Ranks are asked to save
    `signal_before_s` before the time limit; `interface` is the network interface for traffic between nodes, and `extra`
    has further options.
    """

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
    container: str | None = None  # an image for Pyxis, a .sif file, or a command that opens a container
    extra: dict[str, str] = {}


class GridEngine(Struct, frozen=True):
    """The options that a spec sets for a job on Grid Engine. `pe` is the parallel environment, `gpu_resource` the
    site's name for GPUs, `exclude` the hosts not to use, `interface` the network interface for traffic between nodes;
    ranks are asked to save `warn_before_s` before the time limit, and `extra` has further options of qsub.
    """

    pe: str | None = None
    queue: str | None = None  # one, or several separated by commas
    project: str | None = None
    gpu_resource: str = "gpu"
    exclude: tuple[str, ...] = ()
    interface: str | None = None
    warn_before_s: float = 120.0  # `warn_before:`
    extra: dict[str, str] = {}


class Pbs(Struct, frozen=True):
    """The options that a spec sets for a job on PBS. `gpu_resource` is the site's name for GPUs, `select` has further
    parts of each chunk, `place` is how chunks are placed, `interface` the network interface for traffic between nodes;
    ranks are asked to save `warn_before_s` before the time limit, and `extra` has further options of qsub.
    """

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
    """The options that a spec sets for a job on LSF: bsub's -q, -P, -G and -app, `gpu` for requirements of GPUs besides
    their number, and `exclude` for hosts not to use. Ranks are asked to save `warn_before_s` before the time limit;
    `interface` is the network interface for traffic between nodes, and `extra` has further options.
    """

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
    """The options that a spec sets for a job on Kubernetes: the container image, the persistent volume claim with the
    runs and where it is mounted, the queue, the resource that counts GPUs, and node selectors.
    """

    image: str | None = None
    claim: str | None = None  # name of a PersistentVolumeClaim
    mount: str | None = None  # absolute path
    queue: str | None = None  # local queue of Kueue
    gpu_resource: str = "nvidia.com/gpu"
    selector: tuple[str, ...] = ()  # labels that nodes must have, such as gpu=a100


class SshHost(Struct, frozen=True):
    """A host of an SSH pool; None means the pool's own option, or the default if the pool has none. `key` is the file
    of the SSH key, `gpus` the number to use, and `transport` the SSH client.
    """

    name: str
    address: str | None = None
    user: str | None = None
    port: int | None = None
    key: str | None = None
    gpus: int | None = None
    python: str | None = None  # path of the interpreter on the host
    workdir: str | None = None  # folder on the host for code and runs
    transport: str | None = None  # paramiko or openssh


class Ssh(Struct, frozen=True):
    """A pool of SSH hosts, with the options for hosts that set none themselves. `shared`: all hosts see the same disk;
    `agent`: keys of the SSH agent may be used too; `transport` is the SSH client.
    """

    hosts: tuple[SshHost, ...] = ()
    shared: bool = False
    user: str | None = None
    port: int | None = None
    key: str | None = None  # file of the SSH key
    agent: bool = False
    gpus: int | None = None  # the number to use of each host
    python: str | None = None  # path of the interpreter on each host
    workdir: str | None = None  # folder on each host for code and runs
    transport: str | None = None  # paramiko or openssh


class Login(Struct, frozen=True):
    """A login node, through whose `launch` command runs are started on its cluster. `folder` is where runs are kept
    there, and `cluster` the name of the cluster there (None: that machine itself).
    """

    node: str | None = None  # its host for ssh; None: the cluster's commands are on this machine
    launch: str = "launch"  # the program on the login node
    folder: str = "~/launch"
    cluster: str | None = None  # the cluster's name on the login node; None: that machine itself
    transport: str = "openssh"  # the SSH client


Word = bool | int | float | str  # one value of an option, as a sweep chooses it


class Dimension(Struct, frozen=True):
    """The choices of a sweep for one option: one of `values`, or a number from `low` to `high`, in steps of `step`,
    logarithmic with `log`, integer with `whole`. With `when`, a value is chosen only if that other option has that
    value.
    """

    values: tuple[Word, ...] = ()
    low: float = 0.0  # `from:`
    high: float = 0.0  # `to:`
    step: float | None = None
    log: bool = False
    whole: bool = False  # integers only
    when: tuple[str, Word] | None = None  # it is chosen only if this other option has this value


class EarlyStop(Struct, frozen=True):
    """The rule by which a trial that does worse than others is stopped: `early` is asha, hyperband, median or none. No
    trial stops before `min_steps` training steps.

    With asha trials are compared after `min_steps` steps, then after `factor` times as many, and so on; the best one of
    `factor` continues each time. With hyperband groups of trials are treated so, some from a later step on. With median
    `factor` has no meaning.
    """

    early: str = "none"  # asha, hyperband, median, none
    min_steps: int = 1
    factor: int = 3


class SweepBudget(Struct, frozen=True):
    """The limit of a sweep: after `time_s` seconds, no new trial starts."""

    time_s: float | None = None  # `time:`; None: no limit


class SweepOptions(Struct, frozen=True):
    """A sweep: many runs of one spec that differ in the options of `space`. `mode` tells whether the smallest (min) or
    largest `metric` is best, `search` how values are chosen (all of a grid or a file, at random, or by Optuna),
    `parallel` how many trials run at a time, and after `failures` failed trials no new one starts.
    """

    metric: str  # the name of the metric by which trials are compared
    mode: str  # min, max
    search: str = "tpe"  # or the path of a CSV file of points
    trials: int | None = None  # None: all points of a grid or a file
    parallel: int = 1
    space: dict[str, Dimension] = {}
    stop: EarlyStop = EarlyStop()  # when a trial with poor values is ended early
    budget: SweepBudget = SweepBudget()  # the time after which no new trial starts
    failures: int | None = 5  # None: no limit
    seed: int | None = None  # None: random


class Readiness(Struct, frozen=True):
    """The condition under which a rank of a role counts as ready; one of these: its port (True, or one by name) accepts
    connections, an HTTP request for `path` succeeds, its log has the text `log`, or `file` exists.
    """

    port: bool | str = False  # its own port, or the port of this name, accepts connections
    path: str | None = None  # an HTTP request for this path is answered with 200
    log: str | None = None  # its log contains this text
    file: str | None = None  # this file exists; relative to workdir


class Role(Struct, frozen=True):
    """A program of a run that consists of several. It starts once the roles in `after` are ready, as their `ready`
    says, and restarts whenever one of those in `follows` does; `colocate` is the role on whose nodes it runs. `restart`
    tells what a failed rank restarts: its role, `alone` itself, or `all` roles. `spec` is None for the role whose spec
    contains all others.
    """

    main: bool = False  # the run ends with this role
    after: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()  # names of further ports of each rank
    ready: Readiness | None = None  # when a rank of it counts as ready; None: no role has it in `after`
    colocate: str | None = None  # the role on whose nodes it runs; None: it has nodes of its own
    restart: str = "role"  # what a failed rank restarts: role; alone: only itself; all: every role
    spec: "JobSpec | None" = None  # None for the role whose spec contains all others: the main one, else the first


class JobSpec(Struct, frozen=True):
    """The whole spec of a job. `steps` has what each step of a file with several jobs needs, `roles` the programs of a
    run with several, and `plugins` options of clusters of other packages, by kind.
    """

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
    sweep: SweepOptions | None = None  # ignored for a single run
    steps: dict[str, tuple[str, ...]] = {}  # ignored for a single run: what each step of a file with several jobs needs
    roles: dict[str, Role] = {}  # all programs of a run of several
    plugins: dict[str, dict[str, Any]] = {}  # by kind: options of clusters of other packages


RunKind = Literal["script", "module", "command"]
