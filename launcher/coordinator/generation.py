"""A generation, a set of ranks that train together, as the coordinator sees it: its ranks, where they are, how they
do, and how they ended. Every time `mono` is by the coordinator's monotonic clock. Its members are the nodes with those
ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from launcher.coordinator.classify import failed, finished, foretells_stop, is_by_itself
from launcher.run.records import RankExit
from launcher.wire.messages import Heartbeat, RankHeartbeat


@dataclass(slots=True)
class Rank:
    """A rank of a generation as the coordinator sees it: where it runs, what it last reported, and how it ended."""

    number: int  # RANK
    local: int  # LOCAL_RANK
    node: int  # the index of its node
    pid: int | None = None
    step: int | None = None
    active_at: float = 0.0  # time of its last report or output, by the coordinator's monotonic clock
    reported: bool = False  # it has reported something in this generation
    frozen: bool = False  # a signal has stopped it
    idle: bool = False  # it was silent for longer than the spec allows, according to the last heartbeat
    breakpoint: str = ""  # the FILE:LINE at which it waits for a debugger
    address: str = ""  # the address at which it serves requests, if it serves a model
    malformed: int = 0  # number of lines on its progress pipe that could not be parsed
    can_continue: bool | None = None  # it can stay in its process when another rank is replaced; None: not reported yet
    resizes: bool = False  # it can do so in a process group of another size, too
    goes_back: bool = False  # it can return to its newest snapshot, in a smaller process group, too
    joins: bool = False  # it has just been started and takes over the training's state from other ranks
    waits: bool = False  # it waits to connect to ranks that are training, which are then asked to do so
    exit: RankExit | None = None
    lost: bool = False  # its node was lost

    @property
    def live(self) -> bool:
        """Return whether the rank has neither ended nor been lost with its node."""
        return self.exit is None and not self.lost


class Silence:
    """The limits on a rank's silence: after so many seconds without report or output it counts as hung.

    The limit is `hang_after_s` (None: never) or, for a rank that has not reported yet, `hang_at_start_s` if that is
    longer.
    """

    def __init__(self, hang_after_s: float | None, hang_at_start_s: float) -> None:
        self.after_s = inf if hang_after_s is None else hang_after_s
        self._at_start_s = max(self.after_s, hang_at_start_s)

    def limit_s(self, *, reported: bool) -> float:
        """Return the limit in seconds for a rank that has reported something in this generation (`reported`), or for
        one that has not.
        """
        return self.after_s if reported else self._at_start_s


class Generation:
    """The ranks of one generation: those that run, those that ended, and those that are silent."""

    def __init__(self, number: int, members: Sequence[int], ranks_per_node: int, silence: Silence, mono: float) -> None:
        self.number = number
        self.members = tuple(members)
        self.went_back = ""  # why, and from where, its ranks continued from what was saved
        self.ranks = [
            Rank(group_rank * ranks_per_node + local, local, node, active_at=mono)
            for group_rank, node in enumerate(self.members)
            for local in range(ranks_per_node)
        ]
        self._of_node = {
            node: self.ranks[group_rank * ranks_per_node : (group_rank + 1) * ranks_per_node]
            for group_rank, node in enumerate(self.members)
        }
        self._silence = silence
        self._finished = 0
        self._idle = 0
        self._stopped: dict[int, float] = {}  # since when a signal holds this rank still, by its heartbeats
        self._quiet_until: dict[int, float] = {}  # by node: no live rank of it is silent for too long before then
        self._debugged_at = -inf  # when a rank was last in a breakpoint: ranks that wait for it do not count as hung
        self._live = len(self.ranks)
        self.starting = set(self.members)
        self.led = False  # rank 0 has been forked
        self.in_place = False  # some of its ranks were in the one before, in the same processes
        self.lost: set[int] = set()  # members that are
        self.returned: set[int] = set()  # members that were cut off for a while: news of their ranks may be missing
        self.failures: list[RankExit] = []  # in order of arrival
        self._by_themselves = 0  # of these, that were not about a lost peer
        self._foretelling = 0  # and of those, that may mean that the cluster stops the run
        self._tails: dict[int, tuple[str, ...]] = {}
        self._fetched: dict[int, int] = {}  # bytes, of members that bring a checkpoint to their disk before they start
        self.fetched_bytes = 0  # of all members
        self.copied: int | None = None  # the newest step of which each member's files lie on two nodes
        self._copied_of: dict[int, set[int]] = {}  # by step: members whose files do
        self._settled: set[int] = set()  # members whose ranks have ended and whose files wait for no copy
        self.uncopied: list[str] = []  # why some of them have none

    @property
    def finished(self) -> bool:
        """Return True if every rank has ended with its work done: it reported so, or exited with 0 without being asked
        to stop.
        """
        return self._finished == len(self.ranks)

    @property
    def settled(self) -> bool:
        """Return True once the ranks of all members have ended and none of their checkpoint files waits for a copy on
        another node.
        """
        return len(self._settled) == len(self.members)

    @property
    def live(self) -> int:
        """Return the number of ranks that have neither ended nor been lost."""
        return self._live

    def has_settled(self, node: int) -> bool:
        """Return whether the node's ranks have ended and none of their checkpoint files waits for a copy on another
        node.
        """
        return node in self._settled

    def of_node(self, node: int) -> Sequence[Rank]:
        """Return the ranks of this node, or an empty sequence if it has none."""
        return self._of_node.get(node, ())

    def rank_of(self, node: int, number: int) -> Rank | None:
        """Return the rank with this number, or None if it does not run on this node."""
        ranks = self.of_node(node)
        place = number - ranks[0].number if ranks else -1
        return ranks[place] if 0 <= place < len(ranks) else None

    def start(self, node: int, pids: Sequence[int]) -> None:
        """Record that the node's ranks have started, with their `pids` in the order of their local numbers."""
        self.starting.discard(node)
        for rank, pid in zip(self.of_node(node), pids, strict=False):
            rank.pid = pid

    def receive(self, heartbeat: Heartbeat, mono: float) -> list[RankHeartbeat]:
        """Update the ranks from a node's heartbeat, and return the reports in it that are about ranks of this
        generation.
        """
        if heartbeat.same:
            for still in self.of_node(heartbeat.node):
                if still.live:
                    idle_s = mono - max(still.active_at, self._debugged_at)
                    self._set_idle(still, idle_s > self._silence.limit_s(reported=still.reported))
            return []
        known, quiet_until = [], inf
        for news in heartbeat.ranks:
            rank = self.rank_of(heartbeat.node, news.rank)
            if rank is None:
                continue
            known.append(news)
            rank.step = news.step if news.step is not None else rank.step
            rank.reported, rank.frozen = rank.reported or news.reported, news.frozen
            if news.frozen:
                self._stopped.setdefault(rank.number, mono)
            else:
                self._stopped.pop(rank.number, None)
            rank.malformed, rank.breakpoint, rank.address = news.malformed, news.breakpoint, news.address
            rank.waits = news.waits
            if news.can_continue is not None:
                rank.can_continue, rank.resizes, rank.goes_back = news.can_continue, news.resizes, news.goes_back
            if rank.breakpoint:
                self._debugged_at = mono
            idle_s = min(news.idle_s, mono - self._debugged_at)
            rank.active_at = max(rank.active_at, mono - idle_s)
            if rank.live:
                limit_s = self._silence.limit_s(reported=rank.reported)
                self._set_idle(rank, idle_s > limit_s)
                quiet_until = min(quiet_until, rank.active_at + limit_s)
        self._quiet_until[heartbeat.node] = quiet_until
        return known

    def is_unchanged_by(self, heartbeat: Heartbeat, mono: float) -> bool:
        """Return whether the heartbeat changes nothing: its node reports no change of its ranks, and none of these has
        by the time `mono` been silent so long that it counts as hung (`Silence`).
        """
        return heartbeat.same and mono < self._quiet_until.get(heartbeat.node, 0.0)

    def unaccounted(self, heartbeat: Heartbeat) -> list[Rank]:
        """Return the ranks that should be running on the heartbeat's node but are missing in the heartbeat, because the
        news of their end was lost. None are if the node never lost its connection in this generation, or if the
        heartbeat lists no ranks because nothing has changed (`same`).
        """
        if heartbeat.node not in self.returned or heartbeat.same:
            return []
        named = {news.rank for news in heartbeat.ranks}
        return [rank for rank in self.of_node(heartbeat.node) if rank.live and rank.number not in named]

    def end(self, exit: RankExit, tail: tuple[str, ...]) -> bool:
        """Record how a rank ended, with the last lines of its log in `tail`.

        Return False if its end was already known or the rank is not on the node that reports it.
        """
        rank = self.rank_of(exit.node, exit.rank)
        if rank is None or rank.exit is not None:
            return False
        self._count_out(rank)
        rank.exit = exit
        self._finished += finished(exit)
        if tail:
            self._tails[exit.rank] = tail
        if failed(exit):
            self.failures.append(exit)
            alone = is_by_itself(exit)
            self._by_themselves += alone
            self._foretelling += alone and foretells_stop(exit)
        return True

    @property
    def may_be_stopped(self) -> bool:
        """Return whether the cluster may be stopping the job: at least one rank failed for another reason than the loss
        of its connection to a rank, and each such rank ended as ranks do when clusters announce a stop (by SIGTERM,
        SIGUSR1 or SIGUSR2, or with an exit code that stands for one or asks for a resume).
        """
        return 0 < self._by_themselves == self._foretelling

    def fetch(self, node: int, fetched: int) -> bool:
        """Record how many bytes of its checkpoint a starting member has fetched in all; return True if that is more
        than before.

        Return False if the node is not starting.
        """
        before = self._fetched.get(node, -1)
        if node not in self.starting or fetched <= before:
            return False
        self._fetched[node] = fetched
        self.fetched_bytes += fetched - max(0, before)
        return True

    def copy(self, node: int, step: int) -> None:
        """Record the report Copied of node `node`: one more node's files of `step` have a copy on another node. Once
        all members have sent it, `copied` is `step`.
        """
        if node not in self._of_node or (self.copied is not None and step <= self.copied):
            return
        nodes = self._copied_of.setdefault(step, set())
        nodes.add(node)
        if len(nodes) == len(self.members):
            self.copied = step
            self._copied_of = {newer: by for newer, by in self._copied_of.items() if newer > step}

    def settle(self, node: int, problem: str = "") -> None:
        """Record that the node's ranks have ended and that none of its checkpoint files waits for a copy on another
        node any more; `problem` says why some could not be copied, or is "".
        """
        if node in self._of_node and node not in self._settled:
            self._settled.add(node)
            self.uncopied += [problem] if problem else []

    def end_of_log(self, rank: int) -> tuple[str | None, tuple[str, ...]]:
        """Return (log path, last lines) for a rank that has ended; the path is None if the rank has no log."""
        end = self.ranks[rank].exit
        return (end.log or None) if end is not None else None, self._tails.get(rank, ())

    def lose(self, node: int) -> None:
        """Mark the ranks of the node that have not ended as lost, and no longer wait for the node to start any. No rank
        is stopped or replaced here.
        """
        self.starting.discard(node)
        self.lost.add(node)
        for rank in self.of_node(node):
            self._count_out(rank)
            rank.lost = rank.exit is None

    def stalls(self, node: int) -> bool:
        """Return True if a rank of the node counts as hung, because it has been silent for too long (`Silence`).

        A rank that has never reported does not suffice, unless every live rank of the generation counts as hung.
        """
        if not self._idle:
            return False
        return self._idle == self._live or any(rank.idle and rank.reported for rank in self.of_node(node))

    def suspects(self, mono: float) -> list[Rank]:
        """Return the ranks that may have caused a hang, the likeliest first: those that a signal has stopped, and those
        silent for longer than the spec allows (`Silence`) at the time `mono`.

        The limit is longer for ranks that have not reported yet, unless a rank that has reported is silent too.
        """
        limit_s = self._silence.limit_s(reported=any(rank.idle and rank.reported for rank in self.ranks))
        found = [rank for rank in self.ranks if rank.live and (rank.frozen or mono - rank.active_at > limit_s)]
        return sorted(found, key=_culprit_key)

    def stopped_at(self) -> float:
        """Return when the first of the live ranks that a signal has stopped was stopped.

        Return inf if no live rank is stopped, or if all are, because then no rank waits for them.
        """
        moments = [at for number, at in self._stopped.items() if self.ranks[number].live]
        return min(moments) if 0 < len(moments) < self._live else inf

    def active_from(self, mono: float) -> float:
        """Return when the rank that has been silent longest was last active; `mono`, the present, if there is none.

        Only live ranks count that have reported something in this generation.
        """
        return min((rank.active_at for rank in self.ranks if rank.live and rank.reported), default=mono)

    def silent(self, mono: float, limit_s: float) -> list[Rank]:
        """Return the live ranks that have reported before but not for `limit_s` seconds, the likeliest culprit first:
        frozen ranks (stopped by a signal), then those at the lowest step.
        """
        found = [rank for rank in self.ranks if rank.live and rank.reported and mono - rank.active_at > limit_s]
        return sorted(found, key=_culprit_key)

    def _count_out(self, rank: Rank) -> None:
        """Take a rank that is about to be marked as ended or lost out of the counts of live and idle ranks; do nothing
        if it is marked already.
        """
        if rank.live:
            self._set_idle(rank, False)
            self._live -= 1

    def _set_idle(self, rank: Rank, idle: bool) -> None:
        """Set whether the rank is idle, that is without report or output for longer than its limit in `Silence`, and
        update the number of idle ranks.
        """
        self._idle += idle - rank.idle
        rank.idle = idle


def _culprit_key(rank: Rank) -> tuple[bool, int, float, int]:
    """Return a sort key that puts the likeliest culprit first: ranks that are frozen (stopped by a signal) before the
    others; among each, those without a reported step, then the lowest step; at the same step, the one silent longest.
    """
    return not rank.frozen, -1 if rank.step is None else rank.step, rank.active_at, rank.number
