"""Messages between agents and the coordinator: frozen structs, one JSON line each, tagged by `t`. An arrow in a
docstring says who sends the message. A generation is one set of ranks that train together; another follows each failure
or change of nodes. Its members are the nodes that have ranks in it; they form a ring in order of their group rank.

No message grows with the number of nodes: a thousand agents get a thousand small lines. The one exception is a Start
with no shared disk or with copies in other nodes' memory: it lists all replica servers.
"""

import re
from typing import Annotated, Literal

import msgspec

from launcher.run.hangs import RankLook, TimesOfGroups
from launcher.run.records import NodeLoad, NotFinite, ProcessId, RankExit

WIRE = "agents"
WIRE_VERSION = 12


# What comes from elsewhere is bounded where it is read.
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Text = Annotated[str, msgspec.Meta(max_length=20_000)]
Name = Annotated[str, msgspec.Meta(max_length=200)]
Tail = Annotated[tuple[Text, ...], msgspec.Meta(max_length=1000)]
_LOG = re.compile(r"(logs(/\w[\w.-]*)+)?")  # relative to the run directory, and inside it


class ReplicaAddress(msgspec.Struct, frozen=True, array_like=True):
    """The address and port at which a node's agent serves and receives files of checkpoints, or bytes for measuring the
    link.
    """

    node: int
    address: Name
    port: Port


class Join(msgspec.Struct, frozen=True, tag="join", tag_field="t"):
    """agent → coordinator: the first message on each connection.

    `port` is one that the agent holds for the next generation's MASTER_PORT; `generation` is that of the ranks that
    still run here, 0 for none; `buried` is the node's previous agent if it is known to have exited.
    """

    node: int
    address: Name
    process: ProcessId  # of the agent
    port: Port  # a port this agent holds for the next generation's MASTER_PORT
    generation: Count = 0  # the generation of the ranks that run on this node; 0: none
    buried: ProcessId | None = None  # the node's previous agent, if it is known to have exited with all its processes
    replica_port: Port = 0  # where it serves and receives checkpoint files; 0: nowhere
    link_port: Port = 0  # where links to it are measured; 0: nowhere


class Ready(msgspec.Struct, frozen=True, tag="ready", tag_field="t"):
    """agent → coordinator: setup is done and ranks can be forked at once."""

    node: int


class Leads(msgspec.Struct, frozen=True, tag="leads", tag_field="t"):
    """agent → coordinator: rank 0 has been forked on this node, so the other nodes, which wait for that, may start
    their ranks.
    """

    node: int
    generation: int


class Started(msgspec.Struct, frozen=True, tag="started", tag_field="t"):
    """agent → coordinator: this node's ranks run, with these pids by local rank. `port` is the MASTER_PORT of a later
    generation if this node is the first of its members; the agent keeps it free until then.
    """

    node: int
    generation: int
    pids: Annotated[tuple[int, ...], msgspec.Meta(max_length=10_000)]  # by local rank
    port: Port  # that this agent keeps free as the MASTER_PORT of a later generation


class SlowRank(msgspec.Struct, frozen=True, array_like=True):
    """A rank for which all others wait, as the ranks measure it together: the seconds of its own work in a step, and
    those of the median rank.
    """

    rank: Count
    own_s: float  # of its own work in each step
    usual_s: float  # of the median rank's work in each step


class WentBack(msgspec.Struct, frozen=True, array_like=True):
    """A rank's report that training continued in place from the checkpoint of `step`, because no rank had a newer
    state; `lost_steps` are done again.
    """

    step: Count
    lost_steps: Count  # steps that are done again
    why: Annotated[str, msgspec.Meta(max_length=500)] = ""  # why no rank had a newer state


class RankHeartbeat(msgspec.Struct, frozen=True, array_like=True):
    """The recent activity of one rank.

    `idle_s` is the time since its last report or output; `reported` tells whether it has reported in this generation;
    `frozen` that a signal has stopped it; `breakpoint` where it waits for a debugger. `can_continue` tells whether it
    can survive when another rank is replaced, `resizes` also with another number of ranks, `goes_back` from what was
    saved. `waits` means that it is to join others and waits for them.
    """

    rank: int
    idle_s: float  # since its last report or output
    reported: bool  # it has reported something in this generation
    frozen: bool  # a signal has stopped it, according to the kernel
    # From `step` to `not_finite` the newest values that the rank reported, None or empty if it reported none.
    step: Count | None = None
    total_steps: Count | None = None
    checkpoint: Count | None = None  # the newest step that is safely on disk
    metrics: Annotated[dict[Name, float], msgspec.Meta(max_length=128)] = {}
    fingerprint: Text | None = None  # hash of the weights
    not_finite: Annotated[dict[Name, NotFinite], msgspec.Meta(max_length=128)] = {}
    breakpoint: str = ""  # the FILE:LINE at which it waits for a debugger
    malformed: Count = 0  # lines that were no valid reports
    can_continue: bool | None = None  # it can survive when another rank is replaced; None: not reported yet
    address: str = ""  # where it answers requests
    resizes: bool = False  # with `can_continue`: it can continue with fewer or more ranks
    goes_back: bool = False  # with `can_continue`: it can continue from a saved state, with fewer ranks
    waits: bool = False  # it was started to join other ranks, and waits for them
    slow: SlowRank | None = None  # as reported in this generation
    went_back: WentBack | None = None  # as reported in this generation


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat", tag_field="t"):
    """agent → coordinator: the agent is alive; sent once a second, less often if there are thousands of nodes, and
    sooner when a rank has reported something.

    `fetched` is the bytes of a checkpoint fetched so far, `keeps` that the trainer's checkpoints were found on this
    node's own disk, `preparing` what has to end before ranks can start. `answered` is the newest heartbeat that was
    answered, after `took_s`.
    """

    node: int
    seq: Count  # sequence number, by which the answer names it
    generation: int
    ranks: tuple[RankHeartbeat, ...] = ()
    fetched: Count | None = None  # bytes fetched so far of the checkpoint that its ranks will load; None: no fetch
    keeps: bool = False  # with a disk per node: a checkpoint of the trainer's was found on this node's disk
    preparing: Name = ""  # what must be complete before ranks can start here
    load: NodeLoad | None = None  # if there is a new sample
    answered: Count = 0  # sequence number of the newest heartbeat that was answered
    took_s: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0  # seconds from that heartbeat to its answer
    same: bool = False  # instead of `ranks`: they are as in the heartbeat before and have done nothing since


class Exited(msgspec.Struct, frozen=True, tag="exited", tag_field="t"):
    """agent → coordinator: a rank process has ended; `tail` are the last lines of its log if it failed."""

    node: int
    exit: RankExit
    tail: Tail = ()  # last lines of its log, if it failed

    def __post_init__(self) -> None:
        if not _LOG.fullmatch(self.exit.log):
            raise ValueError("the log of a rank is inside the run's folder of logs")


class Stopped(msgspec.Struct, frozen=True, tag="stopped", tag_field="t"):
    """agent → coordinator: no process of that generation runs on this node any more."""

    node: int
    generation: int


class Fault(msgspec.Struct, frozen=True, tag="fault", tag_field="t"):
    """agent → coordinator: this node cannot run ranks.

    `setup`: the user's setup failed, or (without a log) the user's interpreter cannot run ranks; `disk`: it is full or
    refuses writes; `unfit`: a device failed its check; `port`: another program has the port of one of its ranks; else
    the launcher's own fault.
    """

    node: int
    setup: bool
    text: Text
    log: str | None = None  # of the user's setup, relative to the run directory
    disk: bool = False
    unfit: bool = False
    port: bool = False

    def __post_init__(self) -> None:
        """Cut the text to what the wire allows."""
        if not _LOG.fullmatch(self.log or ""):
            raise ValueError("the log of a node is inside the run's folder of logs")


class NotFetched(msgspec.Struct, frozen=True, tag="not_fetched", tag_field="t"):
    """agent → coordinator: the checkpoint that this node's ranks should load could not be fetched, so that none of
    these ranks was started.
    """

    node: int
    generation: int
    text: Text


class NothingWhole(msgspec.Struct, frozen=True, tag="nothing_whole", tag_field="t"):
    """agent → coordinator: the run had checkpoints, and none is complete on the nodes that are present.

    No rank is started; `text` is the error message for the user.
    """

    node: int
    generation: int
    text: Text


class Copied(msgspec.Struct, frozen=True, tag="copied", tag_field="t"):
    """agent → coordinator: one more node's files of `step` have a copy on another node.

    Once each member has sent this for a step, all files of the step have copies. With checkpoints on disk, the files
    are those of `node`, the sender; with snapshots in memory, `node` now has a copy of those of the previous node in
    the ring.
    """

    node: int
    generation: int
    step: Count


class Settled(msgspec.Struct, frozen=True, tag="settled", tag_field="t"):
    """agent → coordinator: this node's ranks have ended, and the copies that the spec asks for (on another node, or
    uploaded) of their last checkpoint are complete or given up.

    `problem` is why that checkpoint could not be copied, or "".
    """

    node: int
    generation: int
    problem: Text = ""


class Noted(msgspec.Struct, frozen=True, tag="noted", tag_field="t"):
    """agent → coordinator: an event of this kind is to be added to `events.jsonl`."""

    node: int
    kind: Literal[
        "checkpoint_fetched", "checkpoint_set_aside", "checkpoint_passed_over", "checkpoint_stored", "copy_failed",
        "memory_copied", "node_fit", "health_unknown", "in_reserve", "no_reserve", "notice_failed",
    ]  # fmt: skip
    text: Text


class LinkSeen(msgspec.Struct, frozen=True, tag="link_seen", tag_field="t"):
    """agent → coordinator: the result of measuring a network link, as the answer to the CheckLink of the same number.
    The link is the one between node `node`, which sends this, and the peer that the CheckLink names.
    """

    node: int
    number: Count  # of the CheckLink that this answers
    bytes_per_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # of the slower direction
    round_trip_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    problem: Name = ""  # why nothing was measured


class Looked(msgspec.Struct, frozen=True, tag="looked", tag_field="t"):
    """agent → coordinator: what one rank of the node was doing (`look`, which names the rank). It answers the Look with
    this number; the node sends one for each live rank.
    """

    node: int
    number: Count
    look: RankLook


class Entered(msgspec.Struct, frozen=True, tag="entered", tag_field="t"):
    """agent → coordinator: when `rank` entered its newest collectives, by process group (`groups`). It is the answer to
    a Look, the coordinator's request to inspect ranks, in which `times` is set; `number` is that Look's.

    The times are by the node's clock. So are `asked_at`, when the node asked its ranks, and `answered_at`, when it
    sends this message; the coordinator computes from them how far that clock is off.
    """

    node: int
    number: Count
    rank: Count
    groups: TimesOfGroups
    asked_at: float
    answered_at: float


class DeviceFails(msgspec.Struct, frozen=True, tag="device_fails", tag_field="t"):
    """agent → coordinator: this node's kernel log reports a failing device, while its ranks still run."""

    node: int
    text: Text


class HostLeaves(msgspec.Struct, frozen=True, tag="host_leaves", tag_field="t"):
    """agent → coordinator: this node's host is about to be taken away, as `text` says; "" withdraws an earlier
    message.
    """

    node: int
    text: Text


class StopAsked(msgspec.Struct, frozen=True, tag="stop_asked", tag_field="t"):
    """agent → coordinator: this attempt is to stop, because of SIGTERM or a user's request; `kind` is cancel or
    preempt.
    """

    node: int
    kind: Name  # cancel, preempt


class Welcome(msgspec.Struct, frozen=True, tag="welcome", tag_field="t"):
    """coordinator → agent: the answer to Join, with the length in seconds of the lease under which the node's ranks may
    run.

    `brief` means that this coordinator understands `Heartbeat.same` (nothing about the ranks has changed since the
    heartbeat before), which those of older versions do not.
    """

    lease_s: float
    brief: bool = False  # heartbeats may say `same`, as coordinators of older versions do not understand


class CheckLink(msgspec.Struct, frozen=True, tag="check_link", tag_field="t"):
    """coordinator → agent: measure the network link between this node and the node `peer`, then answer with a LinkSeen
    of the same number.
    """

    number: int
    peer: ReplicaAddress


class Look(msgspec.Struct, frozen=True, tag="look", tag_field="t"):
    """coordinator → agent: inspect the live ranks of this generation (their stacks, their collectives and the kernel's
    counters), then answer with a Looked for each. With `times`, answer with an Entered for each instead, which has the
    times at which it entered its newest collectives.

    Looks with and without `times` are numbered separately. Answers repeat `number`, so that the coordinator ignores
    those to an earlier Look.
    """

    generation: int
    number: Count  # of this Look, which its answers repeat
    times: bool = False  # send only the times at which ranks entered their collectives


class Start(msgspec.Struct, frozen=True, tag="start", tag_field="t"):
    """coordinator → agent: fork these ranks. Ranks of one node are consecutive.

    `restarts` counts the run's restarts so far. `replicas` are the replica servers: the members' by group rank, then
    others'; `all_here` means that no other node can have checkpoint files, `kept` that the run has saved checkpoints
    and does not begin without one, `anew` that a user has allowed that, and `joins` that ranks on other nodes are in
    the middle of training and wait for these.
    """

    generation: int
    first_rank: int  # number of this node's first rank
    local_world_size: int  # number of ranks on this node
    world_size: int
    group_rank: int  # number of this node among the members
    group_world_size: int
    master_addr: str  # where rank 0 listens
    master_port: int
    restarts: int  # of the run so far
    replicas: tuple[ReplicaAddress, ...] = ()  # replica servers: the members' by group rank, then those of other nodes
    all_here: bool = True  # no other node can have checkpoint files of the run
    kept: bool = False  # the run has saved checkpoints, and does not begin without one
    anew: bool = False  # a user has allowed it to begin without one
    joins: bool = False  # ranks on other nodes are in the middle of training, and wait for these


class ContinueInPlace(msgspec.Struct, frozen=True, tag="continue_in_place", tag_field="t"):
    """coordinator → agent: a new generation in which this node has ranks again; those in `survivors` keep their
    processes.

    The other ranks are forked. The numbers in `survivors` are the new ones, which differ from the old if nodes before
    this one are gone. With `at_step_end` no rank was lost: others join at the end of the current step. The answer is
    Started.
    """

    start: Start
    survivors: tuple[int, ...]  # those ranks of this node, by their new numbers, that keep their processes
    at_step_end: bool = False  # no rank was lost: others join at the end of the current step


class Follow(msgspec.Struct, frozen=True, tag="follow", tag_field="t"):
    """coordinator → agent: rank 0 of the generation has been forked, so fork this node's ranks. A rank that looked for
    rank 0 before that would retry only much later.
    """

    generation: int


class Stop(msgspec.Struct, frozen=True, tag="stop", tag_field="t"):
    """coordinator → agent: end every process of this generation, then answer Stopped.

    grace_s 0: SIGKILL at once. Else SIGTERM to each rank process alone, then SIGKILL to all that is left. `hung`: ranks
    whose stacks are to be dumped into their logs first.
    """

    generation: int
    grace_s: float
    hung: tuple[int, ...] = ()


class HeartbeatAck(msgspec.Struct, frozen=True, tag="ack", tag_field="t"):
    """coordinator → agent: heartbeat `seq` has arrived. The lease under which the node's ranks run is renewed from the
    moment at which the agent sent this heartbeat.
    """

    seq: int


class End(msgspec.Struct, frozen=True, tag="end", tag_field="t"):
    """coordinator → agent: the attempt is over, so exit. `reason` is for people; `goes_on` means that the run continues
    in another attempt.
    """

    reason: str
    goes_on: bool = False  # the run continues in another attempt


ToCoordinator = (
    Join | Ready | Leads | Started | Heartbeat | Exited | Stopped | Fault | StopAsked
    | NotFetched | NothingWhole | Copied | Settled | Noted | LinkSeen | DeviceFails | HostLeaves | Looked | Entered
)  # fmt: skip
ToAgent = Welcome | CheckLink | Look | Start | ContinueInPlace | Follow | Stop | HeartbeatAck | End

TO_COORDINATOR: msgspec.json.Decoder[ToCoordinator] = msgspec.json.Decoder(ToCoordinator)
TO_AGENT: msgspec.json.Decoder[ToAgent] = msgspec.json.Decoder(ToAgent)
