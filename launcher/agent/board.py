"""What the ranks of the open generation have reported, and how fast they go. Pure."""

from collections import deque
from dataclasses import dataclass

from launcher.agent.messages import RankPulse
from launcher.rundir.records import RankExit, RankState

_RATE_WINDOW_S = 20.0


@dataclass(slots=True)
class RankView:
    """One rank of the open generation."""

    rank: int
    node: int
    pid: int | None = None
    pulse: RankPulse | None = None
    end: RankExit | None = None

    @property
    def live(self) -> bool:
        return self.end is None

    def state(self, stopping: bool) -> RankState:
        step = self.pulse.step if self.pulse is not None else None
        return RankState(self.rank, self.node, self.pid, self._word(stopping), step)

    def _word(self, stopping: bool) -> str:
        if self.end is not None:
            return "done" if self.end.done or self.end.code == 0 else "failed"
        if self.pid is None:
            return "starting"
        return "stopping" if stopping else "running"


class Board:
    """The newest of everything that was reported; survives generations, the rate does not."""

    def __init__(self) -> None:
        self.ranks: dict[int, RankView] = {}
        self.step: int | None = None
        self.best_step: int | None = None
        self.total_steps: int | None = None
        self.checkpoint: int | None = None
        self.fingerprint: str | None = None
        self.metrics: dict[str, float] = {}
        self._marks: deque[tuple[float, int]] = deque()

    def open(self, placement: dict[int, int]) -> None:
        """A new generation with these ranks on these nodes."""
        self.ranks = {rank: RankView(rank, node) for rank, node in placement.items()}
        self.step = None
        self._marks.clear()

    def take(self, pulse: RankPulse, now: float) -> None:
        view = self.ranks.get(pulse.rank)
        if view is None or not view.live:
            return
        view.pulse = pulse
        self.total_steps = pulse.total_steps if pulse.total_steps is not None else self.total_steps
        self.fingerprint = pulse.fingerprint or self.fingerprint
        if pulse.checkpoint is not None:
            self.checkpoint = max(pulse.checkpoint, self.checkpoint or 0)
        if pulse.rank == min(self.ranks):
            self.metrics.update(pulse.metrics)
        else:
            self.metrics = {**pulse.metrics, **self.metrics}
        if pulse.step is not None and pulse.step > (self.step if self.step is not None else -1):
            self._advance(pulse.step, now)

    def _advance(self, step: int, now: float) -> None:
        self.step = step
        self.best_step = max(step, self.best_step or 0)
        self._marks.append((now, step))
        while len(self._marks) > 2 and now - self._marks[0][0] > _RATE_WINDOW_S:
            self._marks.popleft()

    def rate(self) -> float | None:
        """Steps per second over the last while."""
        if len(self._marks) < 2:
            return None
        (first_at, first), (last_at, last) = self._marks[0], self._marks[-1]
        return round((last - first) / (last_at - first_at), 3) if last_at > first_at else None

    def live(self) -> list[RankView]:
        return [view for view in self.ranks.values() if view.live]

    def hung(self, hang_after_s: float) -> list[RankView]:
        """Ranks that hang: all of them silent, or one that used to report while others go on; the culprit first."""
        seen = [(view, view.pulse) for view in self.live() if view.pulse is not None]
        idle = [(view, pulse) for view, pulse in seen if pulse.idle_s >= hang_after_s]
        if not idle:
            return []
        if len(idle) < len(self.live()):
            idle = [(view, pulse) for view, pulse in idle if pulse.reported]
        idle.sort(key=lambda one: (not one[1].frozen, one[1].step if one[1].step is not None else 0, -one[1].idle_s))
        return [view for view, _ in idle]

    def next_silence_s(self, hang_after_s: float) -> float | None:
        """How soon, counted from the pulses, a rank could count as hung."""
        left = [hang_after_s - view.pulse.idle_s for view in self.live() if view.pulse is not None]
        return max(0.0, min(left)) if left else None
