"""What a run waits for before it wants anything of a machine: a person, a moment, other runs, its number."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from launcher.clusters.keeping.turn import OtherRun, has_come_to_it, never_will, waits_for
from launcher.plan.model import Plan
from launcher.rundir.attempts import read_intent
from launcher.rundir.durable import readable
from launcher.rundir.layout import AttemptDir, BatchDir, RunDir


class BeforeStart:
    """The waits of one attempt, for whoever keeps it. What has happened once is not looked at again."""

    def __init__(self, run: RunDir, attempt: AttemptDir, plan: Plan, other: Callable[[Path], OtherRun]) -> None:
        self._run, self._attempt, self._other = run, attempt, other
        self._hold, self._starts_at, self._awaited = plan.spec.queue.hold, plan.starts_at, [*plan.awaited]
        self._at_once = plan.spec.queue.max_parallel or 0
        self._earlier = _submitted_before(run, attempt) if self._at_once else []

    def look(self) -> tuple[str, list[str]]:
        """Why its turn can never come, and what it waits for: without either nothing holds it back."""
        seen = [(one, self._other(Path(one.run_dir))) for one in self._awaited]
        left = [(one, other) for one, other in seen if not has_come_to_it(one, other)]
        self._awaited = [one for one, _ in left]
        hopeless = filter(None, (never_will(one, other) for one, other in left))
        reasons = [*self._by_itself(), *(waits_for(one, other) for one, other in left), *self._by_its_number()]
        return "; ".join(hopeless), reasons

    def _by_itself(self) -> Iterator[str]:
        if self._hold and not self._attempt.released.exists():
            yield f"held until `launch release {self._run.id}`"
        if self._starts_at is not None and time.time() < self._starts_at:
            yield f"starts at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self._starts_at))}"

    def _by_its_number(self) -> Iterator[str]:
        """Of those that were submitted with it and before it, so many must have ended that its number may go on."""
        going = list[Path]()
        for number, path in enumerate(self._earlier):
            if not self._other(path).over:
                going.append(path)
            if len(going) == self._at_once:
                self._earlier = [*going, *self._earlier[number + 1 :]]
                names = ", ".join(one.name for one in going)
                yield f"{self._at_once} of the runs that were submitted with it go on: {names}"
                return
        self._earlier = going


def _submitted_before(run: RunDir, attempt: AttemptDir) -> list[Path]:
    batch = read_intent(attempt).batch
    together = [Path(path) for path in readable(BatchDir(Path(batch)).runs, list[str]) or []] if batch else []
    return together[: together.index(run.path)] if run.path in together else []
