"""How other runs of the user are, as far as this host knows: for one that waits for them."""

from pathlib import Path

import msgspec

from launcher.run.attempts import newest, plan_as
from launcher.run.durable import readable
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import AttemptEnd
from launcher.states import State
from launcher.status.derive import derive, state_text
from launcher.status.facts import read_facts
from launcher.supervisor.waiting import OtherRun


class _Disks(msgspec.Struct, frozen=True):
    """What of a plan tells whether other hosts may know better."""

    nodes: tuple[msgspec.Raw, ...]
    disks_apart: bool


class RunsOnHost:
    """That one has succeeded is taken of any host that has heard so; another end only where nobody can know better."""

    def __init__(self) -> None:
        self._seen: set[Path] = set()

    def look(self, run_dir: Path) -> OtherRun:
        run = RunDir(run_dir)
        attempt = newest(run)
        if attempt is None:
            return OtherRun(None) if run_dir in self._seen else OtherRun(State.UNKNOWN, "not on this host")
        self._seen.add(run_dir)
        status = derive(read_facts(run_dir))
        if status.state.ended and status.state is not State.SUCCEEDED and _others_may_know_better(run, attempt):
            return OtherRun(State.UNKNOWN, f"{state_text(status)} as far as this host knows", status.step)
        return OtherRun(status.state, state_text(status), status.step)


def _others_may_know_better(run: RunDir, attempt: AttemptDir) -> bool:
    """A host that was cut off says of itself alone how a run ended, and nothing of what has become of the others."""
    plan, end = plan_as(run, attempt.number, _Disks), readable(attempt.end, AttemptEnd)
    return plan.disks_apart and len(plan.nodes) > 1 and (end is None or end.alone)
