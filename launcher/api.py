"""The Python API, and all that the command line stands on.

from launcher import submit, runs

run = submit("jobs/resnet_ddp.yaml", overrides=["resources.ranks_per_node=2"])
for line in run.logs(follow=True):
    print(line.rank, line.text)
print(run.wait().state)

for run in runs():
    print(run.id, run.status().state)
"""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.clusters import cluster
from launcher.clusters.protocol import CancelReport
from launcher.errors import Refused
from launcher.rundir import registry
from launcher.rundir.attempts import newest, read_plan
from launcher.rundir.layout import RunDir
from launcher.status.derive import RunStatus, derive
from launcher.status.facts import read_facts
from launcher.status.logs import LogLine, merged_logs

if TYPE_CHECKING:
    from launcher.plan.model import Plan
    from launcher.rundir.code_list import CodeList
    from launcher.status.checkpoints import Checkpoint

_WAIT_STEP_S = 0.1


@dataclass(frozen=True, slots=True)
class Run:
    """One submitted spec, for its whole life."""

    id: str
    path: Path

    def status(self) -> "RunStatus":
        """The truth as far as it can be known from here."""
        return derive(read_facts(self.path))

    def logs(self, *, ranks: Collection[int] | None = None, follow: bool = False) -> "Iterator[LogLine]":
        """The merged log of all ranks; with `follow`, as it grows, until the run has ended."""
        return merged_logs(RunDir(self.path), ranks=ranks, follow=follow)

    def checkpoints(self, *, verify: bool = False) -> "Iterator[Checkpoint]":
        """What the trainer has committed, the newest first; with `verify` every byte is read and compared."""
        from launcher.status.checkpoints import checkpoints  # late: 10 ms that no other question needs

        return checkpoints(RunDir(self.path), verify=verify)

    def wait(self, timeout_s: float | None = None) -> "RunStatus":
        """Return when the run has ended, or raise TimeoutError."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not (status := self.status()).state.ended:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{self.id} is still {status.state} after {timeout_s:g} s")
            time.sleep(_WAIT_STEP_S)
        return status

    def cancel(self) -> CancelReport:
        """End the run: the ranks are asked first, and after the spec's grace nothing of it is left."""
        run = RunDir(self.path)
        attempt = newest(run)
        if attempt is None:
            return CancelReport((), already=True)
        plan = read_plan(run, attempt.number)
        return cluster(plan.cluster).cancel(run, attempt, plan)

    def resume(self, *, on: str | None = None, overrides: Sequence[str] = ()) -> "Run":
        """Open a new attempt of an ended or lost run. Raises Refused on a live one."""
        from launcher.submission import reopen  # late: it reads YAML, which `status` must not pay for

        status = self.status()
        if not status.state.ended:
            raise Refused(f"{self.id} is {status.state}: there is nothing to resume", f"hint: launch status {self.id}")
        reopen(RunDir(self.path), on=on, overrides=tuple(overrides))
        return self


def submit(spec: str | Path, *, on: str = "local", overrides: Sequence[str] = ()) -> Run:
    """Start a run and return as soon as its agents are on their way."""
    from launcher.submission import open_run  # late: it reads YAML, which `status` must not pay for

    run_id, path = open_run(Path(spec), on=on, overrides=tuple(overrides))
    return Run(run_id, path)


def prepare(spec: str | Path, *, on: str = "local", overrides: Sequence[str] = ()) -> "tuple[Plan, CodeList]":
    """What `submit` would do, as data: the plan, and the code that would be frozen. Starts and writes nothing."""
    from launcher.submission import prepare as prepare_run  # late: it reads YAML, which `status` must not pay for

    return prepare_run(Path(spec), on=on, overrides=tuple(overrides))


def validate(spec: str | Path, *, overrides: Sequence[str] = ()) -> None:
    """Raise BadInput with every problem of a spec, as far as they do not depend on where it will run."""
    from launcher.submission import validate as validate_spec  # late: it reads YAML, which `status` must not pay for

    validate_spec(Path(spec), tuple(overrides))


def run(ref: str) -> Run:
    """The run of this id, unique beginning of one, or `last`."""
    path = registry.find(ref)
    return Run(path.name, path)


def runs() -> list[Run]:
    """Every run of this user, from any folder."""
    return [Run(run_id, path) for run_id, path in registry.registered()]
