"""Disturbs one run as a schedule says, watches it from outside, and says what went wrong."""

import contextlib
import heapq
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from lab import Lab

from tests.chaos.audit import OVER, Told, steps_lost, violations
from tests.chaos.schedule import Schedule, Strike, written
from tests.chaos.worlds import World

EVERY, PAUSE_S = 5, 0.05
_LOOK_S = 1.5
# Against hanging alone: the machine may be slow, and have other tests to run.
_FIRST_STEP_S, _HIT_S, _END_S, _LEFT_S, _STATUS_S = 300.0, 60.0, 600.0, 150.0, 120.0


@dataclass
class Outcome:
    """The outcome of one disturbed run."""

    schedule: Schedule
    fired: Counter[str] = field(default_factory=Counter)
    harmed: dict[str, str] = field(default_factory=dict)  # records, and how
    ended_early: bool = False  # before all faults had come
    wrong: list[str] = field(default_factory=list)
    lost_steps: int = 0
    took_s: float = 0.0

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.fired.items())) or "none"
        lines = [f"{self.took_s:.0f} s, {self.lost_steps} steps made again; faults: {faults}"]
        if self.wrong:
            lines += [f"schedule: {written(self.schedule)}; damaged: {self.harmed}", *self.wrong]
        return "\n  ".join(lines)


def disturb(world: World, schedule: Schedule) -> Outcome:
    """Submit a run that lasts a little longer than its faults; at the end nothing is left of it."""
    began, outcome = time.monotonic(), Outcome(schedule)
    steps = int(world.steps_per_s * (10 + sum(strike.after_s for strike in schedule)))
    world.submit(steps, EVERY, PAUSE_S)
    with Watch(world) as watch:
        _until("the first step", _FIRST_STEP_S, outcome, lambda: any(deed.what == "step" for deed in world.deeds()))
        with contextlib.ExitStack() as undo:
            _strike_all(world, schedule, outcome, watch, undo)
        _until("the end of the run", _END_S, outcome, lambda: watch.all_told_an_end(since=time.monotonic()))
    deeds = world.deeds()
    outcome.wrong += violations(
        deeds,
        watch.told,
        replace(world.promise, damaged=frozenset(world.damaged), resumed=tuple(watch.resumed)),
    )
    outcome.wrong += _end(world, steps)
    outcome.lost_steps = steps_lost(deeds)
    if not _until("the end of all its processes", _LEFT_S, outcome, lambda: not world.left()):
        outcome.wrong += world.left()
    outcome.took_s, outcome.harmed = time.monotonic() - began, world.harmed
    return outcome


def _end(world: World, steps: int) -> list[str]:
    """Every run of a schedule that leaves it enough ends with the weights that nothing disturbs."""
    status = world.status(world.desk, _STATUS_S)
    if status is None:
        said = world.desk.launch("status", world.run, check=None, timeout=_STATUS_S).stderr
        return [] if names(said, world.harmed) else [f"status has no answer after the end: {said}"]
    wanted = world.fingerprint(steps)
    if status["state"] != "succeeded":
        why = status.get("message") or status.get("reason")
        if names(str(why), world.harmed):
            return []
        logs = world.desk.launch("logs", world.run, check=None).stdout.splitlines()[-8:]
        return [f"the run is {status['state']}, {status.get('cause')}: {why}", *logs]
    return [] if status["fingerprint"] == wanted else [f"other weights: {status['fingerprint']}, expected {wanted}"]


def names(said: str, harmed: Iterable[str]) -> bool:
    """Return whether a run that cannot continue because of a damaged record names that record."""
    return any(name in said for name in harmed)


def _strike_all(
    world: World, schedule: Sequence[Strike], outcome: Outcome, watch: "Watch", undo: contextlib.ExitStack
) -> None:
    """Strike each fault at its time, and undo earlier faults at theirs."""
    undone: list[tuple[float, int, contextlib.ExitStack]] = []
    now = time.monotonic()
    for number, strike in enumerate(schedule):
        now += strike.after_s
        _undo(undone, now)
        if watch.is_over():
            outcome.ended_early = True
            break
        fault, deadline = world.faults[strike.fault], time.monotonic() + _HIT_S
        while True:
            with contextlib.ExitStack() as stack:
                if hit := stack.enter_context(fault(world, strike.target)):
                    undo.push(lasting := stack.pop_all())
                    heapq.heappush(undone, (time.monotonic() + strike.lasts_s, number, lasting))
            if hit or time.monotonic() > deadline or watch.is_over():
                break
            _undo(undone, time.monotonic() + 0.1)
        outcome.fired[strike.fault] += hit
    _undo(undone, max((at for at, *_ in undone), default=0.0))


def _undo(undone: list[tuple[float, int, contextlib.ExitStack]], until: float) -> None:
    """Sleep until this time, and undo every fault whose end comes before it."""
    while undone and undone[0][0] <= until:
        at, _, lasting = heapq.heappop(undone)
        _sleep_until(at)
        lasting.close()
    _sleep_until(until)


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))


def _until(what: str, limit_s: float, outcome: Outcome, condition: Callable[[], object]) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            outcome.wrong.append(f"never came within {limit_s:.0f} s: {what}")
            return False
        time.sleep(0.1)
    return True


class Watch:
    """Everybody who may look asks for the status all along, each in a thread of their own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.told: list[Told] = []
        self.resumed: list[float] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._look, args=one, daemon=True) for one in world.observers.items()]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def is_over(self) -> bool:
        return any(one.state in self._over() for one in self.told)

    def _over(self) -> frozenset[str]:
        return OVER - self._world.resumed_by_hand

    def all_told_an_end(self, since: float) -> bool:
        """The last that each was told is an end; of a damaged record nothing is told, and nothing is left to end."""
        last = {one.who: one.state for one in self.told}
        if len(last) < len(self._world.observers):
            return False
        told = set(last.values())
        over = self._over()
        return told <= over or (bool(self._world.harmed) and told <= {*over, None} and not self._world.left())

    def _look(self, who: str, desk: Lab) -> None:
        while not self._ended.wait(_LOOK_S):
            began = time.monotonic()
            try:
                said = self._world.status(desk, _STATUS_S)
            except subprocess.TimeoutExpired:
                said = None
            at, took = time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic() - began
            words = "" if said is None else f"{said.get('cause') or ''} {said.get('reason') or ''}".strip()
            state = None if said is None else said["state"]
            if said and state == "unknown" and names(f"{said.get('message')} {said.get('reason')}", self._world.harmed):
                state = None  # nothing can be told, as a record is damaged that is named
            self.told.append(Told(at, who, state, took, words))
            if state in self._world.resumed_by_hand and desk is self._world.desk:
                self.resumed.append(time.clock_gettime(time.CLOCK_BOOTTIME))
                desk.launch("resume", self._world.run, check=None, timeout=_STATUS_S)
