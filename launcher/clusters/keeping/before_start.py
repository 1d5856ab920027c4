"""What a run waits for before it wants anything of a machine: a person, a moment, other runs."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from launcher.clusters.keeping.turn import OtherRun, has_come_to_it, never_will, waits_for
from launcher.plan.model import Plan
from launcher.rundir.layout import AttemptDir, RunDir


class BeforeStart:
    """The waits of one attempt, for whoever keeps it. What has happened once is not looked at again."""

    def __init__(self, run: RunDir, attempt: AttemptDir, plan: Plan, other: Callable[[Path], OtherRun]) -> None:
        self._run, self._attempt, self._other = run, attempt, other
        self._hold, self._starts_at, self._awaited = plan.spec.queue.hold, plan.starts_at, [*plan.awaited]

    def look(self) -> tuple[str, list[str]]:
        """Why its turn can never come, and what it waits for: without either nothing holds it back."""
        seen = [(one, self._other(Path(one.run_dir))) for one in self._awaited]
        left = [(one, other) for one, other in seen if not has_come_to_it(one, other)]
        self._awaited = [one for one, _ in left]
        hopeless = filter(None, (never_will(one, other) for one, other in left))
        return "; ".join(hopeless), [*self._by_itself(), *(waits_for(one, other) for one, other in left)]

    def _by_itself(self) -> Iterator[str]:
        if self._hold and not self._attempt.released.exists():
            yield f"held until `launch release {self._run.id}`"
        if self._starts_at is not None and time.time() < self._starts_at:
            yield f"starts at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self._starts_at))}"
