"""Measure a step's time by phase; a `Spent` is a pair: seconds by phase, and seconds that passed by the clock.

The GPU is not waited for. Both parts of `Spent` are without validation.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Protocol

import torch

VALIDATION = "validation"  # a phase that no step has
Spent = tuple[dict[str, float], float]  # seconds per phase, and by the clock on the wall
PHASES = ("data", "copy", "forward", "backward", "optimizer", "checkpoint", "other")


class Phases(Protocol):
    """A stopwatch for the phases of a step: each lap adds the time since the last one to a phase."""

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to `phase`."""

    def take(self) -> Spent:
        """Return the time spent since the last call, and count from 0 again.

        The result is (seconds by phase, seconds passed by the clock), both without validation. On a GPU phases overlap
        (data is fetched while it computes), so the sum of phases may be larger than the seconds that passed.
        """

    def so_far(self) -> Spent:
        """Return the seconds by phase and by the clock that `take` would return now, and continue counting.

        Only the host's clock is read.
        """

    def go_on_from(self, spent: Spent) -> None:
        """Continue counting as if `spent`, a result of `take`, had passed before."""


class HostPhases:
    """Measures phases by this process's clock, which suffices on a CPU."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._last = self._taken = clock()

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to `phase`."""
        now = self._clock()
        self._seconds[phase] += now - self._last
        self._last = now

    def take(self) -> Spent:
        """Return the time spent since the last call, and count from 0 again.

        The result is (seconds by phase, seconds passed by the clock), both without validation.
        """
        now, seconds, self._seconds = self._clock(), self._seconds, defaultdict(float)
        passed, self._taken = now - self._taken, now
        passed -= seconds.pop(VALIDATION, 0.0)
        return _in_order(seconds), passed

    def so_far(self) -> Spent:
        """Return what `take` would return now, and continue counting.

        That is (seconds by phase, seconds passed by the clock) since the last `take`, both without validation.
        """
        seconds = dict(self._seconds)
        return seconds, self._clock() - self._taken - seconds.pop(VALIDATION, 0.0)

    def go_on_from(self, spent: Spent) -> None:
        """Continue counting as if `spent`, a result of `take`, had passed before."""
        seconds, passed = spent
        self._taken -= passed
        for phase, spent_s in seconds.items():
            self._seconds[phase] += spent_s


class DevicePhases:
    """Measures phases by events in the GPU's stream, which are read only in `take`.

    The phases in which the GPU does nothing, such as waiting for data and saving, are measured by the host's clock.
    """

    _OF_HOST = ("data", "checkpoint", "other")  # the phases that the host's clock measures

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._host = HostPhases(clock)
        self._spare: list[torch.cuda.Event] = []
        self._marks: list[tuple[str, torch.cuda.Event]] = []
        self._first = self._mark()
        self._before: dict[str, float] = {}  # in another process, or before others were met

    def lap(self, phase: str) -> None:
        """Record that `phase` ends here, having begun at the last lap: by an event in the GPU's stream and on the host.

        `take` later chooses by which of the two the phase is measured.
        """
        self._host.lap(phase)
        self._marks.append((phase, self._mark()))

    def take(self) -> Spent:
        """Return the time spent since the last call, and count from 0 again.

        The result is (seconds by phase, seconds passed by the clock), both without the time of validation. It waits for
        the GPU to finish the last phase that `lap` ended.
        """
        if self._marks:
            self._marks[-1][1].synchronize()
        of_host, passed = self._host.take()
        seconds = defaultdict(float, {phase: s for phase, s in of_host.items() if phase in self._OF_HOST})
        for phase, before_s in self._before.items():
            seconds[phase] += before_s
        self._before = {}
        before = self._first
        for phase, mark in self._marks:
            if phase not in (*self._OF_HOST, VALIDATION):
                seconds[phase] += before.elapsed_time(mark) / 1000
            self._spare.append(before)
            before = mark
        self._first, self._marks = before, []
        return _in_order(seconds), passed

    def so_far(self) -> Spent:
        """Return the seconds by phase and by the clock since the last `take`, and continue counting.

        All are by the host's clock, so that this need not wait for the GPU.
        """
        seconds, passed = self._host.so_far()
        return {
            phase: seconds.get(phase, 0.0) + self._before.get(phase, 0.0) for phase in seconds | self._before
        }, passed

    def go_on_from(self, spent: Spent) -> None:
        """Continue counting as if `spent`, a result of `take`, had passed before."""
        self._before, passed = spent
        self._host.go_on_from(({}, passed))

    def _mark(self) -> torch.cuda.Event:
        """Record an event in the GPU's stream and return it."""
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event


def phases_on(device: torch.device) -> Phases:
    """Return the stopwatch for a device: by events in its stream for a GPU, else by the host's clock."""
    return DevicePhases(device) if device.type == "cuda" else HostPhases()


def _in_order(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds in the order in which a step has its phases; other names come last."""
    order = {phase: place for place, phase in enumerate(PHASES)}
    return dict(sorted(seconds.items(), key=lambda item: order.get(item[0], len(order))))
