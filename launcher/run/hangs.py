"""Records of a hang, when ranks wait for ever: what every rank was doing, and the conclusion drawn from that."""

from enum import StrEnum, auto
from typing import Annotated

import msgspec

from launcher.states import VERSION

MOST_FRAMES = 32
MOST_GROUPS = 16
MOST_COLLECTIVES = 48  # the newest of each process group
MOST_THREAD_LINES = 300
MOST_TIMES = 512

_Number = Annotated[int, msgspec.Meta(ge=-1, le=1 << 53)]
_Rank = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
_Line = Annotated[str, msgspec.Meta(max_length=500)]
_Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
_Ranks = Annotated[tuple[_Rank, ...], msgspec.Meta(max_length=100_000)]
_Sizes = Annotated[tuple[Annotated[tuple[int, ...], msgspec.Meta(max_length=16)], ...], msgspec.Meta(max_length=64)]


class HangKind(StrEnum):
    """Reasons why ranks wait for ever."""

    NEVER_ENTERED = auto()  # some ranks do other work and have not entered a collective in which others wait
    DIFFERENT_COLLECTIVES = auto()  # ranks of one process group called different operations
    DIFFERENT_SHAPES = auto()  # they called the same operation with tensors of different sizes or types
    LEFT_EARLY = auto()  # some ranks finished, or are exiting, while others wait for them
    FROZEN = auto()  # a rank is stopped by a signal or a debugger, or stuck in the kernel or in native code
    DEAD_PEER = auto()  # a rank died, and the others still wait for it
    SLOW_LINK = auto()  # all ranks are in the same collective, and bytes still move
    STORAGE = auto()  # every rank outside a collective waits for a disk
    NOBODY_IN_A_COLLECTIVE = auto()
    UNKNOWN = auto()


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """A call on a Python stack: file, line number, function name."""

    file: _Line
    line: _Number
    name: _Line


Frames = Annotated[tuple[Frame, ...], msgspec.Meta(max_length=MOST_FRAMES)]


class Collective(msgspec.Struct, frozen=True):
    """An entry of torch's Flight Recorder: a collective operation that a rank entered, with its tensors' sizes and
    types and the stack of the call.

    `age_s` is the time since the rank entered it; `p2p` marks a send or receive.
    """

    seq: _Number  # its sequence number in its process group
    op: _Line
    done: bool = False  # it is complete
    sizes: _Sizes = ()
    dtypes: Annotated[tuple[_Line, ...], msgspec.Meta(max_length=64)] = ()
    frames: Frames = ()  # the call, the innermost frame first
    age_s: float = 0.0  # seconds since it was entered
    p2p: bool = False


class GroupLook(msgspec.Struct, frozen=True):
    """A rank's newest collectives (`last`, oldest first) in one process group. `ranks` are the members, none if
    unknown; `entered` is the number of the newest collective.
    """

    name: _Line
    description: _Line = ""  # that torch or the program gave the group
    ranks: _Ranks = ()  # global ranks of the members; empty: unknown
    entered: _Number = 0  # number of the newest collective that the rank entered
    last: Annotated[tuple[Collective, ...], msgspec.Meta(max_length=MOST_COLLECTIVES)] = ()  # oldest first


Groups = Annotated[tuple[GroupLook, ...], msgspec.Meta(max_length=MOST_GROUPS)]


class FlightRecord(msgspec.Struct, frozen=True):
    """A rank's answer to its agent, which has asked what the rank is doing: the stacks of its threads, and its process
    groups from torch's Flight Recorder.

    `number` is that of the agent's question; `problem` says why there are no groups.
    """

    number: _Number  # number of the agent's question, which the answer repeats
    stack: Frames = ()  # of the main thread, the innermost frame first
    threads: Annotated[tuple[_Line, ...], msgspec.Meta(max_length=MOST_THREAD_LINES)] = ()  # of all other threads
    groups: Groups = ()
    problem: _Line = ""  # why there are no groups


class GroupTimes(msgspec.Struct, frozen=True):
    """The times at which a rank entered the newest collectives of one process group, by the clock of its node.

    Entry i of `entered_us` belongs to the collective with the number `first` + i, and that time is `since_us` plus the
    entry.
    """

    name: _Line  # of the group, with its backend
    ranks: _Ranks  # global ranks of the members; empty: unknown
    first: _Number  # number of the oldest collective listed; the next ones follow without a gap
    since_us: _Number  # when that one was entered, in microseconds since 1970
    entered_us: Annotated[tuple[_Number, ...], msgspec.Meta(max_length=MOST_TIMES)]  # each after `since_us`


TimesOfGroups = Annotated[tuple[GroupTimes, ...], msgspec.Meta(max_length=MOST_GROUPS)]


class RankTimes(msgspec.Struct, frozen=True):
    """A rank's answer to its agent's question when it entered the newest collectives of its process groups. `number` is
    that of the question, which the answer repeats, and `problem` says why groups are missing.
    """

    number: _Number  # of the question
    groups: TimesOfGroups = ()  # one entry for each of its process groups, at most the two largest
    problem: _Line = ""


class LastRank(msgspec.Struct, frozen=True):
    """The rank for which the other ranks of its process group waited longest in the newest collectives.

    It entered `last_into` of `collectives` last, `by_s` seconds after the median of the other ranks; `share` is the
    part of the others' waiting time that they wait for it, from 0 to 1.
    """

    rank: _Rank
    node: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
    last_into: int  # how many of the `collectives` it entered last
    collectives: int
    by_s: float  # seconds after the median of the other ranks, in those collectives
    share: float  # of the time that other ranks wait

    def __str__(self) -> str:
        into = f"{self.last_into} of {self.collectives} collectives, by {1000 * self.by_s:.3g} ms"
        return (
            f"rank {self.rank} on node {self.node} is last into {into}: {self.share:.0%} of the time others wait for it"
        )


class RankLook(msgspec.Struct, frozen=True):
    """The state of one rank at one moment of a hang, as its node observed it.

    `state` is the kernel's letter; `busy` (processors used) and `moved_bytes` are for the time of the observation;
    `answered` is False if stacks and groups could not be asked for, and `problem` says why. `native` is the C stack,
    `nccl` the report of NCCL's RAS on all ranks, which only one of them gets, and `idle_s` the time since the rank last
    showed activity.
    """

    rank: _Rank
    node: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
    pid: Annotated[int, msgspec.Meta(ge=0, le=1 << 22)] = 0
    state: _Line = ""  # the kernel's letter: R, S, D, T, t, Z; "": it has ended
    busy: float = 0.0  # processors used during the observation
    moved_bytes: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # read and written during the observation
    answered: bool = False  # its thread answered with stacks and groups
    groups: Groups = ()
    stack: Frames = ()  # of the main thread, the innermost frame first
    threads: Annotated[tuple[_Line, ...], msgspec.Meta(max_length=MOST_THREAD_LINES)] = ()  # of all other threads
    native: Annotated[tuple[_Line, ...], msgspec.Meta(max_length=MOST_FRAMES)] = ()  # or one line: why there is none
    nccl: Annotated[tuple[_Line, ...], msgspec.Meta(max_length=MOST_THREAD_LINES)] = ()  # NCCL's RAS report
    gpus_busy: Annotated[tuple[_Percent, ...], msgspec.Meta(max_length=1000)] = ()  # of each GPU on which it has memory
    problem: _Line = ""  # why something of this is missing
    step: _Number | None = None
    idle_s: float = 0.0  # seconds since its last report or output
    ended: bool = False
    exit_code: int | None = None  # if it has ended by itself
    exit_signal: int | None = None  # if a signal has ended it


class HangVerdict(msgspec.Struct, frozen=True):
    """The conclusion about a hang: its kind, the ranks that keep others waiting (likeliest first), the source line, and
    the evidence.

    `distrusts_node` is True if the first rank's node may be the cause; `same` is equal for two hangs by the same
    mismatch in the program, and "" if a restart may help.
    """

    kind: HangKind
    text: str  # one line
    ranks: _Ranks = ()  # at fault, the likeliest first
    where: str = ""  # the source line of the first of these ranks
    evidence: tuple[str, ...] = ()
    hint: str = ""  # what the user can do
    distrusts_node: bool = False  # the node of the first rank may be the cause
    same: str = ""  # equal for two hangs by the same mismatch in the program; "": a restart may help


class HangReport(msgspec.Struct, frozen=True):
    """The record `attempts/…/hang-NNN/report.json`: the verdict about a hang, and the state of every rank. `took_s` is
    the time from suspicion to verdict.
    """

    at: float  # Unix time
    attempt: int
    generation: int
    verdict: HangVerdict
    ranks: tuple[RankLook, ...]
    took_s: float = 0.0  # seconds from the suspicion to the verdict
    launch: str = VERSION  # the launcher's version
