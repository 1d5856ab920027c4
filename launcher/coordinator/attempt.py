"""The state of one attempt, shared by the parts of the coordinator that decide. A generation is one set of ranks that
train together; another follows each failure or change of nodes. A voter is a host of a pool that takes part in electing
the leader, whose coordinator runs the attempt. Every `..._at` and `until` is a time by the coordinator's monotonic
clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from math import inf

from launcher.clock import node_lost_after_s
from launcher.coordinator import verdict
from launcher.coordinator.effects import Ledger, Now
from launcher.coordinator.gathering import Gathering
from launcher.coordinator.generation import Generation
from launcher.coordinator.nodes import NodeTable
from launcher.coordinator.pace import pace_of
from launcher.coordinator.policy import as_explained, restarts_by_cause
from launcher.coordinator.snapshot import Standing, run_state
from launcher.coordinator.verdict import Verdict
from launcher.plan.model import Plan
from launcher.plan.on_hosts import voters_of
from launcher.run.records import ANEW, KEPT, Event, RunState


class AttemptPhase(Enum):
    """The phases of an attempt: waiting for nodes, starting ranks, running, copying last files, closing, over."""

    WAITING = auto()
    STARTING = auto()
    RUNNING = auto()
    COPYING = auto()  # all ranks have finished; their last checkpoint is still copied to a second disk or to the store
    CLOSING = auto()  # the ranks of the generation are being ended, before a new one or the attempt's end
    OVER = auto()


_OPEN = (AttemptPhase.STARTING, AttemptPhase.RUNNING, AttemptPhase.COPYING)


@dataclass(slots=True)
class Closing:
    """The closing of a generation: its reason, the nodes that have not yet answered `Stopped`, and the time limit for
    their answers.
    """

    verdict: Verdict | None  # why the generation is closed; None: derived from its ranks' exits
    graceful: bool  # the attempt ends with this generation
    grace_s: float  # the seconds that ranks have to save before they are killed
    waits: set[int]  # nodes that have not yet answered that the generation's processes have ended
    gives_up_at: float  # when nodes that have not answered are excluded


@dataclass(slots=True)
class Joining:
    """The start of ranks on additional nodes, which join the next generation while the present ranks train on."""

    generation: Generation  # the one that will open with the newcomers
    newcomers: set[int]  # its members that are not in the open generation
    after: int  # the number of the open generation
    began_at: float
    gives_up_at: float  # when the new ranks are stopped if they are not ready


@dataclass(slots=True)
class Awaited:
    """A wait, until `until`, for absent nodes, which may have a complete checkpoint that no present node has."""

    verdict: Verdict  # why no checkpoint can be loaded
    here: set[int]  # nodes that were present when the wait began; none of them has a complete checkpoint
    until: float


class Attempt:
    """An attempt of a run: its nodes, its newest generation, its phase, and what was requested of it."""

    def __init__(
        self,
        plan: Plan,
        number: int,
        history: Sequence[Event],
        now: Now,
        job: str | None,
        used_s: float,
    ) -> None:
        self.plan = plan
        self.rules = plan.spec.recovery
        self.history = [event for event in as_explained(history) if event.kind in ("failure", "resumed")]
        self.nodes = NodeTable(
            plan.nodes, node_lost_after_s(self.rules.lease_s), {*plan.away}, now.mono, voters_of(plan)
        )
        self.pace = pace_of(history)
        self.ledger = Ledger(number, self.pace, now)
        self.standing = Standing(number, restarts=restarts_by_cause(history, number), job=job)
        self.standing.used_s, self.standing.began_at = used_s, now.mono
        self.standing.started_at = next((event.at for event in history if event.kind == "generation_opened"), None)
        if self.history and self.history[-1].kind == "failure":
            self.standing.failure = verdict.failure_of(self.history[-1])
        self.phase = AttemptPhase.WAITING
        self.generation: Generation | None = None  # the open one, or the last
        self.closing: Closing | None = None
        self.joining: Joining | None = None
        self._numbered = 0  # the newest generation that was given a number, whatever has become of it
        self.stop: str | None = None  # cancel, preempt or limit, once requested
        self.lost: Verdict | None = None  # why places of the open generation are to be taken by other nodes
        self.leaving: set[int] = set()  # members that end their ranks before others take the places
        self.warm_because = ""  # recovery.mode hot: why all ranks have to be started anew this time
        self.fenced = ""  # which rank found a newer start of the run
        self.gathering = Gathering(plan, self.nodes, now.mono, now.mono, first=True)
        self.awaited: Awaited | None = None  # until ranks run again
        kept = [event.kind for event in history if event.kind in (KEPT, ANEW)][-1:]
        self.kept = kept == [KEPT]  # checkpoints of the trainer's: the run does not begin without any
        self.may_begin_anew = kept == [ANEW]  # at a user's request
        resumed = [event.attempt for event in history if event.kind == "resumed"]
        self.by_person = number == max(resumed, default=1)  # all hosts that the run was on have been asked
        self.start_by = inf
        self.blame_at = inf  # a failure waits so long for its reason: the lost peer, or that the run is to stop
        limit_s = None if plan.limit_per_job else plan.spec.resources.time_s  # the cluster signals when it is near
        self.limit_at = inf if limit_s is None else now.mono + limit_s - used_s

    @property
    def mono(self) -> float:
        """Return the monotonic time of the event that is being handled."""
        return self.ledger.mono

    @property
    def is_open(self) -> bool:
        """Return True while a generation is open: its ranks start, run, or have finished while their last files are
        copied.
        """
        return self.phase in _OPEN

    @property
    def current(self) -> Generation:
        """Return the open generation, or else the newest; raise AssertionError if none was opened yet."""
        if self.generation is None:
            raise AssertionError("no generation has been opened")
        return self.generation

    def outvoted(self) -> tuple[int, int] | None:
        """Return (number of voters that certainly still follow this coordinator, number of all voters) if these are
        fewer than half, so that the other voters could elect another leader. Return None if they are enough, or if the
        attempt has no voters.

        A voter follows as long as its node's lease runs, whether it has ranks or not.
        """
        if not self.nodes.voters:
            return None
        return self.nodes.quorum_shortfall(self.nodes.followers(self.mono))

    def next_number(self) -> int:
        """Return a number for a new generation; each call returns the next number, which is then taken."""
        self._numbered += 1
        return self._numbered

    def is_current(self, number: int) -> bool:
        """Return whether `number` is that of the newest generation that was opened, whether or not it is still open."""
        return self.generation is not None and number == self.generation.number

    def state(self, now: Now, *, ended: bool = True) -> RunState:
        """Return the record for `state.json`; with `ended=False`, leave out how the attempt ended."""
        stopping, end = self.phase is AttemptPhase.CLOSING, self.standing.end if ended else None
        if self.phase is AttemptPhase.WAITING and self.generation is None and not self.standing.message:
            waits = replace(self.standing, message=self.gathering.waiting_text(now.mono))
            return run_state(self.plan, waits, self.nodes, None, self.pace, stopping, now, end)
        return run_state(self.plan, self.standing, self.nodes, self.generation, self.pace, stopping, now, end)
