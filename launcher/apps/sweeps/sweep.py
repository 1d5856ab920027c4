"""A sweep from Python, and all that `launch sweep` stands on.

import launcher

sweep = launcher.sweep("jobs/resnet_sweep.yaml")
print(sweep.wait().state, sweep.best().params)
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from launcher.api import Spec, as_files
from launcher.apps.sweeps.beginning import begin
from launcher.apps.sweeps.folder import (
    SweepDir,
    SweepOrder,
    SweepState,
    TrialNote,
    Wanted,
    conductor_lives,
    find_sweep,
    record_of,
)
from launcher.errors import BadInput, Refused
from launcher.ids import RunId
from launcher.run.durable import readable, write_record
from launcher.run.locks import locked
from launcher.states import LOCAL
from launcher.supervisor.standby import StandbySupervisor

_WAIT_STEP_S = 0.1
_CONDUCTOR = "launcher.apps.sweeps.conductor:Conductor"


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep: many runs of one spec, from start to end."""

    id: RunId
    path: Path

    @classmethod
    def get(cls, ref: str) -> "Sweep":
        """Return the sweep with this id or unique beginning of an id, or the newest for `last`."""
        found = find_sweep(ref)
        return cls(found.id, found.path)

    def status(self) -> SweepState:
        """Return its trials and its state: running, stopped, succeeded, failed, or lost if no conductor is alive."""
        lives = conductor_lives(self._folder)  # before its last word is read, which may be its end
        said = readable(self._folder.state, SweepState)
        if said is None:
            return SweepState("lost", f"it has no readable state: {self._folder.state}", (), 0.0)
        if said.state == "running" and lives is False:
            why = f"its conductor is gone: launch sweep resume {self.id} goes on, and nothing is lost"
            return msgspec.structs.replace(said, state="lost", message=why)
        return said

    def best(self) -> TrialNote | None:
        """Return the complete trial with the best value, or None if there is none."""
        sign = 1 if record_of(self._folder).options.mode == "max" else -1
        complete = [one for one in self.status().trials if one.state == "complete" and one.value is not None]
        return max(complete, key=lambda one: (sign * (one.value or 0.0), -one.number), default=None)

    def importances(self) -> dict[str, float]:
        """Return the importance of each option for the result, summing to 1; empty if it cannot be computed yet."""
        from launcher.apps.sweeps.pictures import importances  # late: Optuna takes a second

        return importances(self._folder)

    def plot(self, out: str | Path, kinds: Sequence[str] = ()) -> list[str]:
        """Write a page with pictures of it (.html), or one picture; return a line for each that was left out.

        Kinds: history, parallel, slice, importance; none: all.
        """
        from launcher.apps.sweeps.pictures import KINDS, draw  # late: Optuna takes a second

        return draw(self._folder, Path(out), kinds or KINDS)

    def trials_wanted(self) -> int:
        """Return the number of trials wanted so far."""
        wanted = readable(self._folder.wanted, Wanted)
        return wanted.trials if wanted is not None else 0

    def stop(self) -> SweepState:
        """Save and stop all trials, and return once that is done; `resume` continues them where they were."""
        if self.status().state in ("succeeded", "failed", "stopped"):
            raise Refused(f"{self.id} is {self.status().state}: there is nothing to stop")
        write_record(self._folder.order, SweepOrder(stop=True))
        self._conduct()
        return self.wait()

    def resume(self) -> None:
        """Resume what was stopped, or a sweep whose conductor has died."""
        state = self.status()
        if state.state not in ("stopped", "lost"):
            hint = f"hint: launch sweep add {self.id} --trials 20" if state.state == "succeeded" else ""
            raise Refused(f"{self.id} is {state.state}: there is nothing to resume", *filter(None, [hint]))
        if state.state == "stopped":
            write_record(self._folder.order, SweepOrder(stop=False))
        self._conduct()

    def add(self, trials: int) -> int:
        """Add so many trials and return the new total. A sweep that is over resumes with them."""
        points = record_of(self._folder).points
        with locked(self.path / ".wanted-lock", wait=True):
            wanted = self.trials_wanted() + trials
            if points is not None and wanted > len(points):
                raise BadInput(f"{self.id}: there are {len(points)} points, and no more")
            write_record(self._folder.wanted, Wanted(wanted))
        if self.status().state in ("succeeded", "lost"):
            self._conduct()
        return wanted

    def extend(self, best: int, overrides: Sequence[str]) -> list[str]:
        """Train the `best` trials further, from their checkpoints, with these changes; return their runs.

        Each becomes one more trial with the same point and the same run; trials that have not begun yet wait for them.
        """
        from launcher.apps.sweeps.extending import chosen  # late: Optuna takes a second, and reading specs a tenth

        with locked(self.path / ".wanted-lock", wait=True):
            runs = chosen(self._folder, self.status(), best, overrides)
            write_record(self._folder.wanted, Wanted(self.trials_wanted() + best))
        if self.status().state in ("succeeded", "lost"):
            self._conduct()
        return runs

    def wait(self, timeout_s: float | None = None) -> SweepState:
        """Wait until no trial is active any more, and return the state. Raise TimeoutError."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (status := self.status()).state == "running":
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{self.id} is still running after {timeout_s:g} s")
            time.sleep(_WAIT_STEP_S)
        return status

    def _conduct(self) -> None:
        """Make sure that a conductor runs and has read what was written before."""
        sweep = self._folder
        if conductor_lives(sweep) and self.status().state == "running":
            return
        said = readable(sweep.state, SweepState)
        if said is not None and said.state != "running":
            with locked(sweep.lock, wait=True):  # of one that has said its last word, and is about to leave
                write_record(sweep.state, msgspec.structs.replace(said, state="running", message="it goes on"))
        supervisor = StandbySupervisor(_CONDUCTOR, sweep.path)
        supervisor.report()
        supervisor.close()

    @property
    def _folder(self) -> SweepDir:
        """The sweep's folder."""
        return SweepDir(self.path)


def sweep(spec: Spec, *, on: str = LOCAL, overrides: Sequence[str] = ()) -> Sweep:
    """Begin a sweep and return as soon as a conductor runs. The spec is a file, or the content of one."""
    with as_files([spec]) as ([file], roots):
        folder = begin(file, on=on, overrides=tuple(overrides), root=roots.get(file))
    found = Sweep(folder.id, folder.path)
    found._conduct()  # noqa: SLF001 - of our own class
    return found
