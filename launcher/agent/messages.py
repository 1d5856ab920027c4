"""What crosses the wire between agents and the coordinator: frozen structs, one JSON line each, tagged by `t`.

No message grows with the number of nodes: a thousand agents get a thousand small lines. But for one: with disks apart
a Start says where all the replica servers are.
"""

import msgspec

from launcher.rundir.records import ProcessId, RankExit

WIRE_VERSION = 3


class ReplicaAddress(msgspec.Struct, frozen=True, array_like=True):
    """Where another agent gives and takes files of checkpoints."""

    node: int
    address: str
    port: int


class Join(msgspec.Struct, frozen=True, tag="join", tag_field="t"):
    """agent → coordinator, first after the proof, and again after a reconnect."""

    node: int
    address: str
    process: ProcessId
    port: int  # a port this agent holds for the next generation's MASTER_PORT
    generation: int = 0  # the generation whose ranks it still runs; 0: none
    buried: ProcessId | None = None  # the agent that was here before, known to be gone with all that it ran
    replica_port: int = 0  # where it gives and takes files of checkpoints; 0: it has none


class Ready(msgspec.Struct, frozen=True, tag="ready", tag_field="t"):
    """agent → coordinator: setup is done and ranks can be forked at once."""

    node: int


class Leads(msgspec.Struct, frozen=True, tag="leads", tag_field="t"):
    """agent → coordinator: rank 0 has been forked."""

    node: int
    generation: int


class Started(msgspec.Struct, frozen=True, tag="started", tag_field="t"):
    """agent → coordinator: this node's ranks run."""

    node: int
    generation: int
    pids: tuple[int, ...]  # by local rank
    port: int  # the port it holds now for a generation after this one


class RankPulse(msgspec.Struct, frozen=True, array_like=True):
    """What one rank did lately."""

    rank: int
    idle_s: float  # since its last report or output
    reported: bool  # it has used the progress wire in this generation
    frozen: bool  # the kernel says that it is stopped
    step: int | None = None
    total_steps: int | None = None
    checkpoint: int | None = None
    metrics: dict[str, float] = {}
    fingerprint: str | None = None


class Pulse(msgspec.Struct, frozen=True, tag="pulse", tag_field="t"):
    """agent → coordinator: alive, once a second, sooner where a rank has news."""

    node: int
    seq: int
    generation: int
    ranks: tuple[RankPulse, ...] = ()
    fetched: int | None = None  # bytes of a checkpoint so far, while it brings here what its ranks are to load


class Exited(msgspec.Struct, frozen=True, tag="exited", tag_field="t"):
    """agent → coordinator: a rank process is gone."""

    node: int
    exit: RankExit
    tail: tuple[str, ...] = ()  # last lines of its log, where it failed


class Stopped(msgspec.Struct, frozen=True, tag="stopped", tag_field="t"):
    """agent → coordinator: no process of that generation is left on this node."""

    node: int
    generation: int


class Fault(msgspec.Struct, frozen=True, tag="fault", tag_field="t"):
    """agent → coordinator: this node cannot run ranks. `setup`: the user's setup failed; else our own fault."""

    node: int
    setup: bool
    text: str
    log: str | None = None  # relative to the run directory


class NotFetched(msgspec.Struct, frozen=True, tag="not_fetched", tag_field="t"):
    """agent → coordinator: what this node's ranks are to load could not be brought here; none was started."""

    node: int
    generation: int
    text: str


class Copied(msgspec.Struct, frozen=True, tag="copied", tag_field="t"):
    """agent → coordinator: another node has a second copy of this node's files of that checkpoint."""

    node: int
    generation: int
    step: int


class Settled(msgspec.Struct, frozen=True, tag="settled", tag_field="t"):
    """agent → coordinator: disks apart; its ranks have ended, and nothing of theirs waits for its second copy.

    `problem`: why there is none of the newest.
    """

    node: int
    generation: int
    problem: str = ""


class Noted(msgspec.Struct, frozen=True, tag="noted", tag_field="t"):
    """agent → coordinator: a line for the run's events. kind: checkpoint_fetched, checkpoint_set_aside, copy_failed."""

    node: int
    kind: str
    text: str


class StopAsked(msgspec.Struct, frozen=True, tag="stop_asked", tag_field="t"):
    """agent → coordinator: this agent got SIGTERM. kind: cancel, preempt."""

    node: int
    kind: str


class Welcome(msgspec.Struct, frozen=True, tag="welcome", tag_field="t"):
    """coordinator → agent: the answer to Join."""

    lease_s: float


class Start(msgspec.Struct, frozen=True, tag="start", tag_field="t"):
    """coordinator → agent: fork these ranks. Ranks of one node are consecutive."""

    generation: int
    first_rank: int
    local_world_size: int
    world_size: int
    group_rank: int
    group_world_size: int
    master_addr: str
    master_port: int
    restarts: int  # restarts of the run so far
    replicas: tuple[ReplicaAddress, ...] = ()  # disks apart: the members' by group rank, then of all others that joined


class Follow(msgspec.Struct, frozen=True, tag="follow", tag_field="t"):
    """coordinator → agent: rank 0 is there, fork yours. One that looks for it too early tries again much later."""

    generation: int


class Stop(msgspec.Struct, frozen=True, tag="stop", tag_field="t"):
    """coordinator → agent: end every process of this generation, then answer Stopped.

    grace_s 0: SIGKILL at once. Else SIGTERM to each rank process alone, then SIGKILL to all that is left.
    `hung`: ranks whose stacks are to be dumped into their logs first.
    """

    generation: int
    grace_s: float
    hung: tuple[int, ...] = ()


class PulseAck(msgspec.Struct, frozen=True, tag="ack", tag_field="t"):
    """coordinator → agent: renews the agent's lease as of when it sent that pulse."""

    seq: int


class End(msgspec.Struct, frozen=True, tag="end", tag_field="t"):
    """coordinator → agent: the attempt is over; leave."""

    reason: str
    goes_on: bool = False  # the run does, in another attempt


ToCoordinator = (
    Join | Ready | Leads | Started | Pulse | Exited | Stopped | Fault | StopAsked
    | NotFetched | Copied | Settled | Noted
)  # fmt: skip
ToAgent = Welcome | Start | Follow | Stop | PulseAck | End
