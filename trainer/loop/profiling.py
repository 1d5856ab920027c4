"""Trace some steps with torch.profiler, for a browser (Perfetto, chrome://tracing), and summarise the trace."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torch.autograd.profiler import record_function

from trainer.loop.callbacks import Callback
from trainer.loop.phases import Phases, Spent
from trainer.loop.progress import Training
from trainer.loop.sums import gathered
from trainer.loop.trace_summary import LAP, merged, summary_of, traced

if TYPE_CHECKING:
    from torch.profiler import profile

Report = Callable[[Training, Mapping[str, float]], None]


class MarkedPhases:
    """A stopwatch of a step's phases, such as `data`, that also marks the end of each phase in the trace.

    The time itself is counted by `phases`, the stopwatch that is used without a trace. A `Spent` is a pair: the seconds
    of each phase, and those that passed in all.
    """

    def __init__(self, phases: Phases) -> None:
        self._phases = phases

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to `phase`, and mark the phase's end in the trace."""
        self._phases.lap(phase)
        _mark(phase)

    def take(self) -> Spent:
        """Return the seconds of each phase, and those that passed in all, since the last call; begin again at 0."""
        return self._phases.take()

    def so_far(self) -> Spent:
        """Return what `take` returns, the seconds of each phase and those that passed in all, but continue counting."""
        return self._phases.so_far()

    def go_on_from(self, spent: Spent) -> None:
        """Continue counting as if the time in `spent`, which an earlier `take` returned, had passed already."""
        self._phases.go_on_from(spent)


def _mark(phase: str) -> None:
    """Record the end of a phase in the trace."""
    with record_function(f"{LAP}{phase}"):
        pass


class Profiler(Callback):
    """A callback that traces the steps with numbers `first` to `last`; each rank writes its own file into `folder`.

    After a complete trace, one that no restart cut short, `report(training, times)` is called on each rank. `times` has
    by name means per step and rank, as `trace_summary.merged` returns them, and as `model_bytes` the size of the
    trained parameters on this rank.
    """

    def __init__(self, first: int, last: int, folder: Path, report: Report = lambda *_: None) -> None:
        self._first, self._last, self._folder, self._report = first, last, folder, report
        self._running: profile | None = None
        self._begun = 0  # after so many steps

    def on_start(self, training: Training) -> None:
        """Start the profiler if the next step is one to trace."""
        self._begin_if_due(training.step)

    def on_step(self, training: Training) -> None:
        """Start the profiler if the next step is one to trace; after the last one write and summarise the trace."""
        if self._running is not None and training.step >= self._last:
            _mark("other")
            self._summarise(training, self._finish(training, self._running))
        self._begin_if_due(training.step)

    def on_end(self, training: Training) -> None:
        """Stop the profiler if it still runs, and write the incomplete trace."""
        if self._running is not None:
            self._finish(training, self._running)

    def _begin_if_due(self, step: int) -> None:
        """Start the profiler if it is not running and the step after `step` is one to trace."""
        if self._running is None and self._first <= step + 1 <= self._last:
            from torch.profiler import ProfilerActivity, profile, supported_activities  # late: nobody else needs it

            wanted = {ProfilerActivity.CPU, ProfilerActivity.CUDA} & set(supported_activities())
            self._running, self._begun = profile(activities=list(wanted), record_shapes=True), step
            self._running.start()
            _mark("other")

    def _finish(self, training: Training, running: "profile") -> Path:
        """Stop the profiler, write its trace, and return the file."""
        self._running = None
        running.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"trace-{self._first}-{self._last}-rank-{training.world.rank:05d}.json"
        running.export_chrome_trace(str(path))
        training.say(f"profile of steps {self._first} to {self._last}: {path}")
        return path

    def _summarise(self, training: Training, path: Path) -> None:
        """Summarise the trace at `path` over all ranks, which all call it, and print the summary.

        Its numbers are passed to the function `report` that the profiler was made with. Nothing is done if a restart
        cut the trace short.
        """
        if self._begun == self._first - 1:
            mine = traced(json.loads(path.read_bytes())["traceEvents"])
            found = merged(gathered(mine, training.world), self._last - self._begun)
            trained = [one for one in training.strategy.module.parameters() if one.requires_grad]
            found["model_bytes"] = float(sum(one.numel() * one.element_size() for one in trained))
            training.say(summary_of(found))
            self._report(training, found)
