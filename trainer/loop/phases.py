"""Where the time of a step goes, measured without holding up a GPU."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Protocol

import torch

PHASES = ("data", "forward", "backward", "optimizer", "checkpoint", "other")


class Phases(Protocol):
    """A stopwatch with laps: each lap's time goes to one phase."""

    def lap(self, phase: str) -> None: ...

    def take(self) -> dict[str, float]:
        """Seconds per phase since the last time it was asked."""


class HostPhases:
    """By this process's clock: all there is to know on a CPU."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._last = clock()

    def lap(self, phase: str) -> None:
        now = self._clock()
        self._seconds[phase] += now - self._last
        self._last = now

    def take(self) -> dict[str, float]:
        seconds, self._seconds = self._seconds, defaultdict(float)
        return _in_order(seconds)


class DevicePhases:
    """By marks in the GPU's stream, read when it is asked for: only then does this process wait for the GPU.

    The host's own laps count for what the GPU has no part in: waiting for data, and checkpoints.
    """

    _OF_HOST = ("data", "checkpoint", "other", "validation")

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._host = HostPhases(clock)
        self._spare: list[torch.cuda.Event] = []
        self._marks: list[tuple[str, torch.cuda.Event]] = []
        self._first = self._mark()

    def lap(self, phase: str) -> None:
        self._host.lap(phase)
        self._marks.append((phase, self._mark()))

    def take(self) -> dict[str, float]:
        seconds = defaultdict(float, {phase: s for phase, s in self._host.take().items() if phase in self._OF_HOST})
        if self._marks:
            self._marks[-1][1].synchronize()
        before = self._first
        for phase, mark in self._marks:
            if phase not in self._OF_HOST:
                seconds[phase] += before.elapsed_time(mark) / 1000
            self._spare.append(before)
            before = mark
        self._first, self._marks = before, []
        return _in_order(seconds)

    def _mark(self) -> torch.cuda.Event:
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event


def phases_on(device: torch.device) -> Phases:
    return DevicePhases(device) if device.type == "cuda" else HostPhases()


def _in_order(seconds: Mapping[str, float]) -> dict[str, float]:
    order = {phase: place for place, phase in enumerate(PHASES)}
    return dict(sorted(seconds.items(), key=lambda item: order.get(item[0], len(order))))
