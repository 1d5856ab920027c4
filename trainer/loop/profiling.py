"""A trace of some steps by torch.profiler, to be opened in a browser (Perfetto, chrome://tracing)."""

from pathlib import Path
from typing import TYPE_CHECKING

from trainer.loop.callbacks import Callback
from trainer.loop.progress import Training

if TYPE_CHECKING:
    from torch.profiler import profile


class Profiler(Callback):
    """Traces the steps `first` to `last` of each rank into a file of its own."""

    def __init__(self, first: int, last: int, folder: Path) -> None:
        self._first, self._last, self._folder = first, last, folder
        self._running: profile | None = None

    def on_start(self, training: Training) -> None:
        self._begin_if_due(training.step)

    def on_step(self, training: Training) -> None:
        if self._running is not None and training.step >= self._last:
            self._finish(training)
        self._begin_if_due(training.step)

    def on_end(self, training: Training) -> None:
        if self._running is not None:
            self._finish(training)

    def _begin_if_due(self, step: int) -> None:
        """The next step is the first to trace, or a later one after a restart."""
        if self._running is None and self._first <= step + 1 <= self._last:
            from torch.profiler import ProfilerActivity, profile, supported_activities  # late: nobody else needs it

            wanted = {ProfilerActivity.CPU, ProfilerActivity.CUDA} & set(supported_activities())
            self._running = profile(activities=list(wanted))
            self._running.start()

    def _finish(self, training: Training) -> None:
        if self._running is None:
            return
        running, self._running = self._running, None
        running.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"trace-{self._first}-{self._last}-rank-{training.world.rank:05d}.json"
        running.export_chrome_trace(str(path))
        training.say(f"profile of steps {self._first} to {self._last}: {path}")
