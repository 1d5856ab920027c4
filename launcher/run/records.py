"""The records that processes leave for each other in the run directory. Each file's name is in `layout.py`. A
generation is one set of ranks that train together. A spare is a node beyond those that the run needs.
"""

from typing import Annotated, Literal

import msgspec

from launcher.ids import RunId, parse_run_id
from launcher.run.hangs import LastRank
from launcher.states import LOCAL, Cause, ErrorKind, State


class ProcessId(msgspec.Struct, frozen=True):
    """The identity of a process; a pid alone may by now belong to another process. `start_ticks` is its start time in
    /proc/PID/stat.
    """

    host: str
    boot_id: str  # the kernel's id of the boot in which it ran
    pid: int
    start_ticks: int  # field 22 of /proc/PID/stat


class Origin(msgspec.Struct, frozen=True):
    """The record origin.json: the git commit of the code when it was frozen, and whether tracked files differed from
    it.
    """

    commit: str  # 40 hex digits, or 64
    dirty: bool  # tracked files differed from the commit


class Labels(msgspec.Struct, frozen=True, omit_defaults=True):
    """labels.json: a run's name, tags and note, which its user gave it; the launcher itself ignores tags and note."""

    name: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""


class Intent(msgspec.Struct, frozen=True):
    """attempts/0001/token.json: why and by which process the attempt was opened; on disk before the cluster is asked
    for anything.

    `reason` is submit, resume or requeue, `cause` why the previous attempt ended. `token` is the secret by which agents
    prove that they belong; `submit_token` identifies the cluster's job before its id is known; `batch` is the folder of
    runs submitted as one job.
    """

    attempt: int
    token: str  # 64 hex digits; the secret that agents prove to each other
    cluster: str
    reason: str  # submit, resume, requeue
    cause: Cause | None  # why the previous attempt ended
    created_at: float
    created_by: ProcessId
    cluster_kind: str = LOCAL  # such as local, slurm, ssh
    # Identifies the cluster's job before its id is known; no secret.
    submit_token: str = msgspec.field(default="", name="ticket")
    batch: str = ""  # folder of the runs submitted as one job; "": submitted alone


class Handle(msgspec.Struct, frozen=True):
    """attempts/0001/handle.json: how to ask the cluster about this attempt: by the supervisor's process, or the job's
    id and submit token.

    `run` and `path` are the run's id and folder on a login node, if it was submitted through one.
    """

    cluster_kind: str
    supervisor: ProcessId | None = msgspec.field(default=None, name="keeper")
    job_id: str | None = None
    # In that job's comment: a controller that lost its memory assigns ids again.
    submit_token: str = msgspec.field(default="", name="ticket")
    run: str | None = None  # the run's id on a login node, if it was submitted through one; formerly "" if not
    path: str = ""  # the run's folder on the login node

    def run_there(self) -> RunId | None:
        """Return the run's id on the login node, or None if the run was not submitted through one."""
        return parse_run_id(self.run) if self.run else None


class Site(msgspec.Struct, frozen=True):
    """attempts/0001/site.json: the name that the cluster's controller gives itself, because a job id is valid on one
    cluster only. It is written before the job is submitted.
    """

    cluster: str  # the name that its controller gives it


class ClusterAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """attempts/0001/seen.json: the cluster's last answer about the attempt's job.

    `phase` is queued, running, ending, ended, unknown, or gone (no such job); `word` is the cluster's own name for the
    state, `text` its reason. `starts_at` is its estimate, `ended_as` how the run ended if the job left no record,
    `said_by` which machine or program answered, and `silent` why the answer is an old one.
    """

    phase: str  # queued, running, ending, ended, unknown; gone: the cluster has no such job
    word: str  # the cluster's own name of the state, such as PENDING
    at: float
    job_id: str = ""
    text: str = ""  # for people: why it waits, who ended it
    starts_at: float | None = None  # the cluster's estimate
    ended_as: State | None = None  # how the run ended, if the job left no end record
    cause: Cause | None = None
    said_by: str = ""  # name of the machine or program that answered
    unsupervised: str = ""  # the host of a pool that leads the run and has no supervisor
    silent: str = ""  # why this is not today's answer: the cluster did not give any; never on disk


class Exclusion(msgspec.Struct, frozen=True):
    """An entry of avoided.json: a host that attempts of the run do not use before the time `until`, because it was
    lost, its disk failed or it was found unfit.
    """

    host: str
    evidence: str  # what showed that, as text for people
    attempt: int  # in which that happened
    at: float  # Unix time of that
    until: float  # Unix time


class Gone(msgspec.Struct, frozen=True):
    """An entry of gone.json: a host that a user has given up for good. An attempt that is handed to the host later
    uses it again.
    """

    host: str
    attempt: int  # the newest attempt at that time: the host is given up in it and in earlier ones


class Endpoint(msgspec.Struct, frozen=True):
    """attempts/0001/coordinator.json: the address and port at which agents reach the coordinator, and its process."""

    address: str
    port: int
    process: ProcessId


class AgentRecord(msgspec.Struct, frozen=True):
    """attempts/0001/node-00/agent.json: the address at which a node's agent listens for other nodes, and its
    process.
    """

    node: int
    address: str
    process: ProcessId


class Environment(msgspec.Struct, frozen=True):
    """The environment in which a node's ranks started, for comparing runs: metrics/environment.n000.a0001.jsonl, by the
    numbers of the node and the attempt.
    """

    host: str
    python: str  # path of the interpreter
    version: str = ""  # such as 3.12.4, or 3.12 if files show no more
    packages: dict[str, str] = {}  # versions by the name in the package index
    cpus: int = 0
    gpus: tuple[str, ...] = ()  # names by the driver
    driver: str = ""  # version of NVIDIA's
    system: str = ""  # the operating system


class RankProcess(msgspec.Struct, frozen=True):
    """attempts/0001/node-00/rank-000.json: the process of a rank that runs or has run.

    `environment` is what the rank has beyond its node's variables, without secrets; `log` is relative to the run
    directory.
    """

    rank: int
    generation: int
    process: ProcessId
    environment: dict[str, str]  # its variables beyond its node's; none of the user's, so no secret
    log: str  # relative to the run directory


class Raised(msgspec.Struct, frozen=True):
    """An exception of a traceback: its last line, and the module that raised it ("" if unknown); its causes have
    entries of their own.
    """

    line: str  # such as "torch.distributed.DistBackendError: NCCL error in ..."
    module: str = ""  # of the innermost frame outside the standard library; "": unknown


class RankExit(msgspec.Struct, frozen=True):
    """A line of attempts/0001/exits.jsonl: how a rank process ended, and the reason as far as its node knows it.

    `done`: it had reported the end of training. `stopping`: after the agent had sent SIGTERM. `asked`: it had reported
    a request to stop. `left`: by sys.exit. `hung`: killed by the agent. `fenced`: a newer start of the run writes the
    checkpoints. `said` is the log's last line, `not_started` why the program was not begun, `where` the innermost frame
    of user code, `left_out` a file missing from the code snapshot, `failed_rank` the rank that the exception names.
    """

    generation: int
    rank: int
    local_rank: int  # its number among the ranks of its node
    node: int
    pid: int
    code: int | None = None  # exit status; None if a signal ended it or the end was not observed
    signal: int | None = None
    done: bool = False  # it had reported `done`: nothing after that is a failure
    stopping: bool = False  # it ended after the agent's SIGTERM
    asked: bool = False  # it had reported a request to stop, such as a signal
    left: bool = False  # its script ended by sys.exit, or argparse did
    said: str = ""  # the last line of its log, if it failed
    not_started: str = ""  # why the program was not begun: the launcher could not become this rank
    error: str | None = None  # last line of the exception, such as "ValueError: bad shape"
    where: str | None = None  # innermost frame of the user's code, such as "train.py:41 in step"
    left_out: str = ""  # the file of the project that it did not find because it was not frozen
    raised: tuple[Raised, ...] = ()  # the exceptions of its traceback, the last one first
    failed_rank: int | None = None  # the rank that its exception names as failed
    oom: bool = False  # evidence from cgroup, kernel or CUDA that memory ran out
    hung: bool = False  # killed by the agent because it made no progress
    fenced: bool = False  # it left because a newer start of the run writes the checkpoints
    peak_memory_bytes: int | None = None  # of it and its children, in main memory; None: unknown
    started_at: float = 0.0
    ended_at: float = 0.0
    log: str = ""  # relative to the run directory


class NotFinite(msgspec.Struct, frozen=True):
    """A reported metric that is NaN or infinite, and the step since which it is (None if unknown)."""

    value: Literal["NaN", "Infinity", "-Infinity"]
    since: int | None = None  # the step since which it is so


class Failure(msgspec.Struct, frozen=True):
    """The summary of a failure: the rank that failed first, the cause, and the end of its log (`tail`).

    `where` is the innermost frame of user code, `left_out` a file missing from the code snapshot.
    """

    cause: Cause
    summary: str  # one line
    attempt: int
    generation: int
    rank: int | None = None
    node: int | None = None
    where: str | None = None
    left_out: str = ""  # the file of the project that was not found because it was not frozen
    log: str | None = None  # relative to the run directory
    tail: tuple[str, ...] = ()  # last lines of the log
    at: float = 0.0


class NodeState(msgspec.Struct, frozen=True, gc=False):
    """A node in state.json: its state, its ranks, the cluster's name for it (`host`), and why it is unfit. Among the
    states, `waiting` is not usable yet, `up` has ranks, `drained` gets no more ranks, `unknown` does not answer,
    `unfit` has a faulty device or a slow link, and `left` is that of a run that has ended.
    """

    node: int
    address: str
    state: str  # waiting, up, spare, drained, unknown, lost, unfit or left
    ranks: tuple[int, ...] = ()
    host: str = ""  # the cluster's name of the machine, if it has one
    why: str = ""  # if unfit: the device or link, and its failure


class RankState(msgspec.Struct, frozen=True, gc=False):
    """A rank in state.json: its node, its pid, its state (starting, running, stopping, done, failed), and the last
    step that it has reported.
    """

    rank: int
    node: int
    pid: int | None  # None: it has no process now
    state: str  # starting, running, stopping, done, failed
    step: int | None = None  # None: it has reported none


_Amount = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
_Cores = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class GpuLoad(msgspec.Struct, frozen=True):
    """The use of one GPU of a node by all processes: bytes of memory in use and in all, and the percentage of time that
    it was busy (None if not reported). `index` is the driver's number.
    """

    index: _Amount  # the driver's number of the GPU
    memory: _Amount  # bytes in use
    memory_total: _Amount
    busy: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None  # percent of the time; None: not reported


class RankLoad(msgspec.Struct, frozen=True):
    """The use of a node by one rank with all processes below it: cores, memory, disks and GPUs, as an average over some
    seconds.
    """

    rank: int
    cpu: _Cores  # number of cores in use
    memory: _Amount  # bytes resident; memory shared by its processes counts in each
    processes: _Amount = 1  # how many they are, the rank's own included
    read: _Amount = 0  # bytes a second, from disks
    written: _Amount = 0  # bytes a second, to disks
    gpus: Annotated[tuple[_Amount, ...], msgspec.Meta(max_length=1000)] = ()  # indices of GPUs on which it has memory
    gpu_memory: _Amount = 0  # bytes that it has in use on these GPUs together


class NodeLoad(msgspec.Struct, frozen=True):
    """The use of a node's machine by all processes, and by each rank on it: an average over some seconds.

    `cpu` is the number of its `cores` in use; `received`, `sent`, `read` and `written` are bytes per second of networks
    and disks.
    """

    node: int
    at: float  # wall clock, for people
    cores: _Amount  # number of cores
    cpu: _Cores  # number of cores in use
    memory: _Amount  # bytes in use
    memory_total: _Amount
    received: _Amount = 0  # bytes a second, over networks that training may use
    sent: _Amount = 0
    read: _Amount = 0  # bytes a second, of local disks
    written: _Amount = 0
    gpus: Annotated[tuple[GpuLoad, ...], msgspec.Meta(max_length=1000)] = ()
    ranks: Annotated[tuple[RankLoad, ...], msgspec.Meta(max_length=10_000)] = ()


class RunState(msgspec.Struct, frozen=True):
    """state.json: the run's newest state, written by the coordinator, or by the supervisor if there is none.

    `rate` is steps per second; `restarts` counts by cause over all attempts; `malformed` counts unreadable reports of
    ranks. `checkpoint` is the newest saved step; `safe_checkpoint` the newest with second copies on other nodes, where
    `second_copies` are made; `memory_copy` the newest step with snapshots in other nodes' memory. `fingerprint` is a
    hash of the weights, `job` the cluster's id, `used_s` the time used since submit or resume; `boot_id` and
    `monotonic_s` date the state on its machine.
    """

    run: str
    name: str
    cluster: str
    state: State
    attempt: int
    generation: int
    submitted_at: float
    cause: Cause | None = None
    exit_code: int | None = None
    step: int | None = None
    total_steps: int | None = None  # that the run will make, if its ranks reported that
    rate: float | None = None  # steps per second
    metrics: dict[str, float] = {}  # the newest numbers that ranks reported: loss and the like
    not_finite: dict[str, NotFinite] = {}  # those metrics that are NaN or infinite now
    malformed: int = 0  # lines from this generation's ranks that were no valid reports
    checkpoint: int | None = None  # the newest step that ranks reported as saved
    second_copies: bool = False  # several nodes with a disk each: checkpoints get second copies
    safe_checkpoint: int | None = None  # the newest with all second copies, complete without any one node's disk
    memory_copy: int | None = None  # the newest step whose snapshots are in another node's memory as well
    fingerprint: str | None = None
    world_size: int | None = None  # number of ranks
    restarts: dict[str, int] = {}  # by cause, over all attempts
    nodes: tuple[NodeState, ...] = ()
    ranks: tuple[RankState, ...] = ()
    loads: tuple[NodeLoad, ...] = ()  # the newest sample of each node; none once the run has ended
    last_rank: LastRank | None = None  # the rank for which other ranks wait in collectives
    failure: Failure | None = None
    message: str = ""  # what the run waits for, or another notice
    started_at: float | None = None
    ended_at: float | None = None
    job: str | None = None  # the cluster's job id, if it has one
    used_s: float = 0.0  # seconds that attempts have lasted since a user submitted or resumed the run
    updated_at: float = 0.0  # wall clock, for people
    boot_id: str = ""  # with `monotonic_s`: the age of the state on the same machine
    monotonic_s: float = 0.0


KEPT = "checkpoint_kept"  # the first checkpoint of the trainer's: from then on the run does not begin without one
ANEW = "may_begin_anew"  # a user has allowed it
EXPLAINED = "explained"  # the cluster reported the cause of the attempt's last failure later: this `cause` counts
NODE_UNFIT = "node_unfit"  # its `evidence` is what was seen of which device of the node
MOVED, NOT_MOVED = "moved", "not_moved"  # what has come of `launch nodes move`, of the node that had the ranks
TOLD, NOT_TOLD = "notified", "not_notified"  # `brief` is the message, `evidence` the recipient


class AttemptEnd(msgspec.Struct, frozen=True):
    """attempts/0001/exit.json: how the attempt ended; if it is missing, the attempt has not ended or was lost.

    The state `queued` means that another attempt follows, after `delay_s` seconds. `alone` marks an end that a host
    wrote which did not lead the attempt.
    """

    state: State  # succeeded, failed, cancelled; queued: another attempt follows
    cause: Cause | None  # of its failure or cancellation; None: neither, or no known cause
    exit_code: int
    ended_at: float
    message: str = ""
    delay_s: float = 0.0  # queued: seconds before the next attempt starts
    alone: bool = False  # written by a host that did not lead the attempt: other hosts may have continued


class StopRequest(msgspec.Struct, frozen=True):
    """attempts/0001/stop.json: a request to end the attempt, on disk before any signal is sent.

    `kind` is cancel; or preempt, limit, notice (its host is about to go) or restart, after which another attempt
    follows.
    """

    kind: str  # cancel; or another attempt follows: preempt, limit (the job's time ends), notice, restart
    at: float  # Unix time of the request
    by: ProcessId  # the process that requested it


class MoveRequest(msgspec.Struct, frozen=True):
    """A request to move the ranks of node `node` to the node `to`, or to any spare node if `to` is None."""

    node: int
    to: int | None = None  # None: any spare node


class DrainRequest(msgspec.Struct, frozen=True):
    """attempts/0001/drain.json: nodes that are to have no ranks in this attempt, and single moves of ranks.

    `why` has the scheduler's reason for each node that the scheduler drains.
    """

    nodes: tuple[int, ...] = ()  # without ranks for the rest of the attempt
    why: dict[int, str] = {}  # the scheduler's reasons, for nodes that it drains
    moves: tuple[MoveRequest, ...] = ()  # each is made once, in this order; a node in `moves` alone may get ranks again


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of events.jsonl: what happened, when, and its cause and evidence.

    `text` is a line for people, `brief` a few words of it. A failure has `where` (frame of user code), `signal`,
    `code`, `said` (last line of the log), `left_out` (file that was not frozen), the `steps` of its generation and of
    its attempt (`steps_in_all`), how long the generation ran (`ran_s`) and made no step (`still_s`), and whether
    survivors continue (`in_place`). `same` identifies repeated hangs, `end` is how the attempt is about to end.
    """

    at: float
    attempt: int
    kind: str  # submitted, agent_joined, agent_lost, generation_opened, training, failure, ended, ...
    text: str  # for people, one line
    generation: int = 0
    node: int | None = None
    rank: int | None = None
    cause: Cause | None = None
    where: str | None = None  # frame of user code in a user error, by which a repetition is recognised
    left_out: str = ""  # of a user error: the file of the project that was not found because it was not frozen
    signal: int | None = None  # of a failure: the signal that ended its rank
    code: int | None = None  # of a failure: the exit code of its rank
    said: str = ""  # of a failure without an exception: the last line of its rank's log
    error_kind: ErrorKind | None = None  # of a user error
    steps: int = 0  # of a failure: steps and checkpoints that its generation had made
    steps_in_all: int = 0  # of a failure: steps and checkpoints that its attempt had made
    brief: str = ""  # of a failure and its consequence: a few words for a log
    step: int | None = None  # newest step at that time
    checkpoint: int | None = None  # newest checkpoint at that time
    ran_s: float = 0.0  # of a failure or a new generation without one: seconds that the generation ran
    still_s: float = 0.0  # of the same events: seconds for which the generation had made no step
    in_place: bool = False  # of a failure: the surviving ranks were to continue after `step` in their processes
    same: str = ""  # of a hang that a restart does not mend: equal for its repetitions
    end: AttemptEnd | None = None  # of `ending`: how the attempt ends once half of a pool's voters have this line
    evidence: str = ""  # for people: what the cause was inferred from, such as lines of a log
