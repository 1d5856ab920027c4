"""Track how far a run has come from what its ranks report: step, rate, metrics and newest checkpoint. A generation is
one set of ranks that train together. Every time `mono` is by the coordinator's monotonic clock.
"""

from collections import deque
from collections.abc import Iterable

from launcher.run.records import Event, NotFinite
from launcher.wire.messages import RankHeartbeat

_WINDOW_S = 20.0
_MOST_METRICS = 128


class Pace:
    """The progress of a run: its newest step and checkpoint, its step rate and its newest metrics."""

    def __init__(self, step: int | None = None, checkpoint: int | None = None) -> None:
        self.step = step
        self.checkpoint = checkpoint
        self.total_steps: int | None = None
        self.fingerprint: str | None = None
        self.metrics: dict[str, float] = {}
        self.not_finite: dict[str, NotFinite] = {}
        self._reporters: dict[str, int] = {}
        self._samples: deque[tuple[float, int]] = deque()
        self._fresh = True
        self._began_at = checkpoint or 0
        self.made_in_all = 0  # steps and newer checkpoints
        self._made_before = 0  # by earlier generations
        self.moves = False  # this generation has made a step: ranks may report the one that they load, too

    def restart(self, *, in_place: bool = False) -> None:
        """Begin to count the progress (`made`) and the step rate of a new generation; the newest step, checkpoint and
        metrics stay.

        With `in_place` the generation continues from the current step, else from the newest checkpoint.
        """
        self._samples.clear()
        self._reporters.clear()
        self.not_finite.clear()
        self._fresh = True
        self._began_at, self.moves = (self.step if in_place else self.checkpoint) or 0, False
        self._made_before = self.made_in_all

    def receive(self, ranks: Iterable[RankHeartbeat], mono: float) -> None:
        """Update the progress from the heartbeats of `ranks`, all of the open generation. A metric that several ranks
        report is taken from the lowest of them.
        """
        for news in ranks:
            if news.checkpoint is not None and not self.moves:
                self._began_at = news.checkpoint  # that they have loaded: an older one, where the newest is damaged
            if news.step is not None:
                self._reach(news.step, mono)
            if news.checkpoint is not None and (self.checkpoint is None or news.checkpoint > self.checkpoint):
                self.made_in_all += self.checkpoint is not None or self.moves  # else it may be the one that was loaded
                self.checkpoint = news.checkpoint
            if news.total_steps is not None:
                self.total_steps = news.total_steps
            if news.fingerprint is not None and self._is_lowest_reporter("fingerprint", news.rank):
                self.fingerprint = news.fingerprint
            for name, value in news.metrics.items():
                if self._measures(name, news.rank):
                    self.metrics[name] = value
                    self.not_finite.pop(name, None)
            for name, none in news.not_finite.items():
                if self._measures(name, news.rank):
                    self.not_finite[name] = none
                    self.metrics.pop(name, None)

    @property
    def made(self) -> int:
        """Return how many steps the current generation has made, plus one for each checkpoint that it has saved
        and that is newer than any before; 0 means no progress.
        """
        return self.made_in_all - self._made_before

    def rate(self, mono: float) -> float | None:
        """Return the steps per second over the last 20 seconds, or over the last two reports of a step if these are
        farther apart; None with fewer than two.

        The rate falls while the next step is overdue: the time since the last one then counts too.
        """
        self._forget(mono)
        if len(self._samples) < 2:
            return None
        (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        usual_gap_s = (last_at - first_at) / (len(self._samples) - 1)
        span_s = max(last_at - first_at, mono - first_at - 2 * usual_gap_s)
        return (last - first) / span_s if span_s > 0 else None

    def still_s(self, mono: float) -> float:
        """Return the seconds since the last new step of this generation, or 0.0 if it has made none."""
        return mono - self._samples[-1][0] if self._samples else 0.0

    def _reach(self, step: int, mono: float) -> None:
        """Record a step, unless the run has already been further in this generation."""
        if not self._fresh and self.step is not None and step <= self.step:
            return
        self.made_in_all += max(0, step - (self._began_at if self._fresh or self.step is None else self.step))
        self._fresh = False
        self.step = step
        self.moves = self.moves or step != self._began_at
        if self._samples and self._samples[-1][0] == mono:
            self._samples.pop()  # two ranks of one node in one heartbeat
        self._samples.append((mono, step))
        self._forget(mono)

    def _forget(self, mono: float) -> None:
        """Drop the samples (time, step) from which the rate is computed that are older than `_WINDOW_S` seconds, but
        keep the last two.
        """
        while len(self._samples) > 2 and self._samples[0][0] < mono - _WINDOW_S:
            self._samples.popleft()

    def _measures(self, name: str, rank: int) -> bool:
        """Return whether the value of the metric that the rank has just reported is used. It is not if a lower rank has
        reported that metric in this generation, or if the metric is new and _MOST_METRICS are known.

        If it is used, the rank is recorded as the lowest that has reported the metric.
        """
        known = name in self.metrics or name in self.not_finite
        room = len(self.metrics) + len(self.not_finite) < _MOST_METRICS
        return (known or room) and self._is_lowest_reporter(f"metric {name}", rank)

    def _is_lowest_reporter(self, about: str, rank: int) -> bool:
        """Return whether no lower rank has reported `about`, a metric's name or `fingerprint`, before, and if so record
        the rank as the lowest. The caller ignores values of higher ranks, so that the shown value does not change back
        and forth between those of two ranks.
        """
        if rank > self._reporters.setdefault(about, rank):
            return False
        self._reporters[about] = rank
        return True


def pace_of(history: Iterable[Event]) -> Pace:
    """Return the progress of a run when its coordinator starts: the last step and the newest checkpoint that the events
    name. Its rate and metrics are not known yet.
    """
    events = list(history)
    steps = [event.step for event in events if event.step is not None]
    checkpoints = [event.checkpoint for event in events if event.checkpoint is not None]
    return Pace(steps[-1] if steps else None, max(checkpoints, default=None))
