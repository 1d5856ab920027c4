"""Compute the goodput of a disturbed training and where its time went, from its ranks' notes. Pure."""

import statistics
from dataclasses import dataclass
from typing import NamedTuple

STARTS = ("begun", "imported", "met", "loaded", "step")
_WORKS_S = 2.0  # a rank that has made no step for so long has stopped
PHASES = ("noticed", "decided", "begun", "imported", "met", "loaded", "step")


class Note(NamedTuple):
    at: float
    rank: int
    pid: int
    host: str
    step: int
    what: str


class Decided(NamedTuple):
    """The launcher's record of one new start: when it learnt of the failure, and when it started the ranks."""

    noticed: float
    opened: float


@dataclass(frozen=True)
class Blow:
    """A fault that had something to hit."""

    at: float
    fault: str


@dataclass(frozen=True)
class Cost:
    """The cost of one fault: seconds until the next step of all ranks, by phase, and the steps that were repeated.

    A fault that started no rank anew has no phases, but the longest time without a step, beyond that of a step.
    """

    fault: str
    phases: dict[str, float]
    again_s: float = 0.0
    pause_s: float = 0.0

    @property
    def next_step_s(self):
        """Return the seconds without a step of all ranks."""
        return sum(self.phases.values()) + self.pause_s

    @property
    def total_s(self):
        return self.next_step_s + self.again_s


def read_notes(text):
    """Whole lines only: the last one may still be written."""
    found = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        at, rank, pid, host, step, what = line.split()
        found.append(Note(float(at), int(rank), int(pid), host, int(step), what))
    return sorted(found)


def newest(notes):
    """The last process of each rank, by rank."""
    last = {}
    for note in notes:
        if note.what == "begun":
            last[note.rank] = note
    return [last[rank] for rank in sorted(last)]


def useful_steps(notes, ranks, since, until):
    """Steps made in that time, each once: one that only a part of the ranks made counts as that part."""
    before = {(note.rank, note.step) for note in notes if note.what == "step" and note.at <= since}
    made = {(note.rank, note.step) for note in notes if note.what == "step" and since < note.at <= until}
    return len(made - before) / ranks


def first_of_all(notes, ranks, after=float("-inf")):
    """Return when the slowest rank made its first step after that time, or None if not all ranks have."""
    firsts = {}
    for note in notes:
        if note.what == "step" and note.at > after:
            firsts.setdefault(note.rank, note.at)
    return max(firsts.values()) if len(firsts) == ranks else None


def pace(notes, ranks, since, until):
    """Steps a second of the undisturbed training."""
    return useful_steps(notes, ranks, since, until) / (until - since)


def at_gap(share, every_s, gap_s):
    """Return the goodput with one fault every `gap_s`, if each costs what it did with one every `every_s`."""
    return 1 - (1 - share) * every_s / gap_s


def costs(notes, ranks, blows, decisions, rate, until):
    """Return the cost of each fault after which all ranks made a step; faults that overlap with another are left
    out.
    """
    found = []
    for index, blow in enumerate(blows):
        ends = blows[index + 1].at if index + 1 < len(blows) else until
        mine = [note for note in notes if blow.at < note.at < ends]
        before = {note.pid for note in notes if note.at <= blow.at}
        born = [note for note in mine if note.pid not in before]
        trained = {note.pid for note in notes if note.what == "step" and note.at <= blow.at}
        is_calm = not born and all(note.pid in trained for note in newest(note for note in notes if note.at <= blow.at))
        if is_calm and first_of_all(mine, ranks, ends - _WORKS_S) is not None:
            found.append(Cost(blow.fault, {}, pause_s=max(0.0, _longest_gap(notes, blow.at, ends) - 1 / rate)))
        last = {what: _last_first([note for note in born if note.what == what]) for what in STARTS}
        if last["step"] is None or len({note.rank for note in born if note.what == "step"}) < len(newest(born)):
            continue
        made = {note.step for note in notes if note.what == "step" and note.at <= blow.at}
        again = {note.step for note in born if note.what == "step"} & made
        found.append(Cost(blow.fault, _phases(blow, last, decisions, ends), len(again) / rate))
    return found


def _phases(blow, last, decisions, until):
    """Seconds of each phase; those that nobody told of are part of the next."""
    mine = [one for one in decisions if blow.at < one.noticed < until]
    moments = {"noticed": mine[0].noticed, "decided": mine[-1].opened} if mine else {}
    moments |= {what: at for what, at in last.items() if at is not None}
    phases, at = {}, blow.at
    for phase in PHASES:
        if phase in moments:
            phases[phase] = max(0.0, moments[phase] - at)
            at = max(at, moments[phase])
    return phases


def _longest_gap(notes, since, until):
    """Return the longest time that a rank had from one step to the next, of those that end in this time."""
    gaps, before = [0.0], {}
    for note in notes:
        if note.what == "step":
            if since < note.at < until and note.rank in before:
                gaps.append(note.at - before[note.rank])
            before[note.rank] = note.at
    return max(gaps)


def _last_first(notes):
    """Return when the last of the ranks did this for the first time."""
    firsts = {}
    for note in notes:
        firsts.setdefault(note.rank, note.at)
    return max(firsts.values(), default=None)


def middle_costs(costs):
    """Return for each fault how often it came, and the medians of each phase, of all of them, of repeated steps, and
    of the whole.
    """
    rows = {}
    for fault in sorted({cost.fault for cost in costs}):
        mine = [cost for cost in costs if cost.fault == fault]
        phases = {
            phase: statistics.median([cost.phases.get(phase, 0.0) for cost in mine])
            for phase in PHASES
            if any(phase in cost.phases for cost in mine)
        }
        sums = [(cost.next_step_s, cost.again_s, cost.total_s) for cost in mine]
        rows[fault] = (len(mine), phases, *map(statistics.median, zip(*sums, strict=True)))
    return rows
