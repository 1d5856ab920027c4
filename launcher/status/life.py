"""The timeline of a run: on which activity each second was spent, what happened when, and the goodput. Goodput is the
share of the counted time that was spent on steps which did not have to be repeated. A generation is one start of all
ranks within an attempt; an attempt is one batch job, or one start on a pool's hosts.

A step counts once: training after the last checkpoint that had to be repeated is `lost`. The time from a failure, or
the last step before it, to the end of the first step after it is `recovering`. Time on which the launcher has no
influence is not counted: the queue before a start that a user asked for, and the time from an end to a user's `resume`.
Validations, saves and slow input count as training. A script that reports no steps has no goodput.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import fsum, inf
from pathlib import Path

import msgspec

from launcher.run.durable import Damaged, read_lines
from launcher.run.layout import RunDir
from launcher.run.records import NOT_TOLD, TOLD, Event
from launcher.states import Cause
from launcher.status.derive import RunStatus


class Doing(StrEnum):
    """An activity on which a stretch of a run's time was spent. RECOVERING is from a failure to the first step after
    it, LOST is training whose steps had to be repeated, RUNNING is that of ranks that report no steps, and IDLE is the
    time between an end and a user's `resume`.
    """

    WAITING = "waiting"  # in a queue, for a back-off, or for nodes
    STARTING = "starting"  # until the first step, after a user's submit or resume
    TRAINING = "training"
    RECOVERING = "recovering"  # from a failure, or a move to other nodes, until the first step after it
    LOST = "lost"  # training whose steps all had to be repeated
    RUNNING = "running"  # ranks run, but report no steps
    IDLE = "idle"  # between an end and a user's resume


class Segment(msgspec.Struct, frozen=True, rename={"since": "from", "until": "to"}):
    """A stretch of a run's time that was spent on one activity (`kind`); `text` tells users with what it began."""

    kind: Doing
    since: float  # Unix time
    until: float
    attempt: int
    generation: int
    text: str = ""  # what it began with, for users


class LifeMark(msgspec.Struct, frozen=True):
    """An event on the timeline; `kind` and `text` are as in events.jsonl, and `log` is the log of a rank that
    failed.
    """

    at: float  # Unix time
    kind: str  # as in events.jsonl
    text: str
    attempt: int
    generation: int
    step: int | None = None
    rank: int | None = None
    node: int | None = None
    cause: Cause | None = None
    log: str | None = None  # of the rank that failed, relative to the run directory


class Life(msgspec.Struct, frozen=True, rename={"since": "from", "until": "to"}):
    """The timeline of a run from its submit to its end, or until now. `goodput` is None if no step is reported, and
    `counted_s` the time of which it is a share: all but the queue before a start that a user asked for, and the time
    from an end to a user's `resume`. `seconds` has the time spent on each activity. The segments, each a stretch of one
    activity, follow one another without gaps.
    """

    since: float  # Unix time of the submit
    until: float
    goodput: float | None  # None: no step was reported
    counted_s: float  # the time of which goodput is a share
    seconds: dict[Doing, float]  # spent on each activity
    segments: tuple[Segment, ...]
    marks: tuple[LifeMark, ...]


def read_life(status: RunStatus, now: float) -> Life:
    """Return the timeline that the events in the run's folder give: up to the run's end, or when its state was last
    known, or else to the Unix time `now`.

    If the events cannot be read, there are no segments.
    """
    try:
        events = read_lines(RunDir(Path(status.run_dir)).events, Event)
    except (Damaged, OSError):
        events = []
    return life_of(events, status.ended_at or status.as_of or now, status.step)


def life_of(events: Sequence[Event], until: float, step: int | None = None) -> Life:
    """Return the timeline of the events up to the Unix time `until`, when the run ended or was last known to be active.

    `step` is its newest step by then, which the events may not show; None: unknown.
    """
    with_steps = step is not None or any(event.step is not None for event in events)
    timeline = _Timeline(with_steps=with_steps)
    for event in events:
        timeline.extend(event)
    stretches = timeline.stretches(until, step)
    segments = tuple(_segments(stretches))
    seconds = {kind: fsum(one.until - one.since for one in segments if one.kind is kind) for kind in Doing}
    counted_s = fsum(one.until - one.since for one in stretches if one.counts)
    return Life(
        since=segments[0].since if segments else until,
        until=segments[-1].until if segments else until,
        goodput=seconds[Doing.TRAINING] / counted_s if with_steps and counted_s else None,
        counted_s=counted_s,
        seconds=seconds,
        segments=segments,
        marks=tuple(marks_of(events)),
    )


def marks_of(events: Iterable[Event]) -> Iterator[LifeMark]:
    """Yield a mark on the timeline for each event, except for notifications that were sent to users."""
    return (_mark(event) for event in events if event.kind not in (TOLD, NOT_TOLD))


def _mark(event: Event) -> LifeMark:
    """Return the mark on the timeline for an event."""
    log = None
    if event.kind == "failure" and event.rank is not None and event.generation:
        log = str(RunDir(Path()).rank_log(event.attempt, event.generation, event.rank))
    return LifeMark(
        event.at, event.kind, event.brief or event.text, event.attempt, event.generation,
        event.step, event.rank, event.node, event.cause, log,
    )  # fmt: skip


@dataclass(slots=True)
class _Stretch:
    """A stretch of the timeline: the time from `since` to `until`, with one activity, `kind`. The newest stretch has no
    end until the next one begins.
    """

    kind: Doing
    since: float  # Unix time
    attempt: int
    generation: int
    text: str  # what it began with, for users
    asked: bool  # it belongs to a start by submit or resume, not to one after a failure or a change of nodes
    until: float = inf  # Unix time; infinity while it lasts
    first: int = 0  # the first step that was trained in it; 0 if it is of another activity
    last: int = 0  # the last such step

    @property
    def counts(self) -> bool:
        """Whether the stretch counts for goodput: all but the time after an end, and waiting for a start that a user
        asked for.
        """
        return self.kind is not Doing.IDLE and not (self.kind is Doing.WAITING and self.asked)


class _Timeline:
    """A timeline that is built from events in order. Its time never goes backward, even if clocks do."""

    def __init__(self, *, with_steps: bool) -> None:
        self._with_steps = with_steps
        self._stretches: list[_Stretch] = []
        self._asked = True
        self._heard_at = 0.0
        self._opened_at = 0.0  # the newest generation
        self._goes_on_from = 0  # the checkpoint that was the newest then
        self._newest: int | None = None  # step that was known when the last generation ended

    def extend(self, event: Event) -> None:
        """Extend the timeline by one event; ignore an event of an attempt that a later one has followed already."""
        if not self._stretches:
            self._enter(Doing.WAITING, event.at, event)
        if event.attempt < self._now.attempt:
            return  # said late, of an attempt that others have followed
        if event.attempt > self._now.attempt and self._now.kind not in (Doing.WAITING, Doing.IDLE):
            # The attempt before left no last word: what nobody has written down is not called training.
            self._enter(Doing.IDLE if event.kind == "resumed" else Doing.WAITING, self._heard_at, event)
        match event.kind:
            case "submitted" | "resumed":
                self._asked = True
                self._enter(Doing.WAITING, event.at, event)
            case "agent_joined" if self._begins_start(event):
                self._enter(self._getting_ready, event.at, event)
            case "generation_opened":
                if self._now.kind is Doing.TRAINING:  # others join: nothing has failed, nor asked for it
                    self._reach(event.step)
                    self._asked = False
                self._opened_at, self._goes_on_from = event.at, event.checkpoint or 0
                self._enter(self._getting_ready if self._with_steps else Doing.RUNNING, event.at, event)
            case "training":
                self._enter(Doing.TRAINING, event.at, event)
                self._now.first = self._now.last = event.step or 0
            case "failure":
                self._end_training(event)
            case "regroup" if self._now.kind in (Doing.TRAINING, Doing.RUNNING):  # somebody wanted ranks elsewhere
                self._end_training(event)
            case "regroup" | "requeue" | "ended":
                self._reach(event.step)
                self._asked = False
                self._enter(Doing.IDLE if event.kind == "ended" else Doing.WAITING, event.at, event)
            case _:
                pass
        self._heard_at = max(self._heard_at, event.at)

    def stretches(self, until: float, step: int | None) -> list[_Stretch]:
        """End the timeline at the Unix time `until`, when the run's newest step was `step` (None: none was reported),
        and return all its stretches.

        The time after the end of a run that was not resumed is left out.
        """
        if not self._stretches:
            return []
        self._reach(step)
        if self._now.kind is Doing.IDLE:
            self._stretches.pop()
        else:
            self._now.until = max(until, self._now.since)
        return self._stretches

    @property
    def _now(self) -> _Stretch:
        """The newest stretch, the time since the activity (training, waiting, ...) last changed, which has no end yet.
        Raise IndexError before the first event.
        """
        return self._stretches[-1]

    @property
    def _getting_ready(self) -> Doing:
        """The activity while ranks start: STARTING if a user asked for the start, else RECOVERING."""
        return Doing.STARTING if self._asked else Doing.RECOVERING

    def _begins_start(self, event: Event) -> bool:
        """Return whether the event, which tells that an agent has joined, begins a start of ranks: the run waits or has
        ended, and no generation of the event's attempt was opened yet.

        An agent that joins while a run waits for nodes after a failure begins none.
        """
        begins = event.attempt > self._now.attempt or not self._now.generation
        return begins and self._now.kind in (Doing.WAITING, Doing.IDLE)

    def _end_training(self, event: Event) -> None:
        """End the present stretch of training at the time of its last progress, not when the failure was noticed, and
        let recovery begin there.
        """
        self._reach(event.step)
        at = event.at
        if self._now.kind in (Doing.TRAINING, Doing.RUNNING):
            heard_until = self._opened_at + event.ran_s if event.ran_s else at
            at = max(self._now.since, min(at, heard_until) - event.still_s)
        self._asked = False
        self._enter(Doing.RECOVERING, at, event)

    def _reach(self, step: int | None) -> None:
        """Record `step` as the newest of the present stretch, the time since the activity last changed; do nothing if
        `step` is None.

        A stretch in which ranks start or recover counts as training if it has made a new step.
        """
        if step is None:
            return
        now = self._now
        if now.kind in (Doing.STARTING, Doing.RECOVERING) and now.generation and step != self._newest:
            # By a coordinator that does not tell when the first step was made: all since the ranks began.
            now.kind, now.first = Doing.TRAINING, self._goes_on_from + 1
        if now.kind is Doing.TRAINING:
            now.last = max(now.first, step)
            self._newest = step

    def _enter(self, kind: Doing, at: float, event: Event) -> None:
        """End the present stretch at Unix time `at`, and begin one of the activity `kind` with the attempt, generation
        and text of `event`.
        """
        if self._stretches:
            at = max(at, self._now.since)
            self._now.until = at
        text = event.brief or event.text
        self._stretches.append(_Stretch(kind, at, event.attempt, event.generation, text, self._asked))


def _segments(stretches: Iterable[_Stretch]) -> Iterator[Segment]:
    """Yield the segments that result from the stretches, in order, without those of no length.

    A stretch becomes one segment. If steps of a training stretch were repeated later, it is cut in two, and its end is
    a LOST segment.
    """
    parts: list[Segment] = []
    made_again_from = inf
    for one in reversed([*stretches]):
        cut = one.until
        if one.kind is Doing.TRAINING:
            cut = max(one.since, cut - _lost_share(one, made_again_from) * (cut - one.since))
            made_again_from = min(made_again_from, one.first)
            parts.append(_part(one, Doing.LOST, cut, one.until))
        parts.append(_part(one, one.kind, one.since, cut))
    return (part for part in reversed(parts) if part.until > part.since)


def _lost_share(one: _Stretch, made_again_from: float) -> float:
    """Return the share, 0 to 1, of a training stretch that was spent on steps which were repeated later, if all its
    steps took equally long.

    `made_again_from` is the lowest number of a step that was repeated after the stretch.
    """
    if one.last < made_again_from:
        return 0.0
    if one.first >= made_again_from:
        return 1.0
    return (one.last - made_again_from + 1) / (one.last - one.first)


def _part(one: _Stretch, kind: Doing, since: float, until: float) -> Segment:
    """Return the part of a stretch from `since` to `until`, which the caller keeps inside it, as a segment of the
    activity `kind`, which may differ from the stretch's.
    """
    return Segment(kind, since, until, one.attempt, one.generation, one.text)
