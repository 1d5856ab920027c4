"""Find the state of the user's other runs as far as this host knows, for a run that waits for them."""

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
    """The part of a plan that shows whether other hosts may know more."""

    nodes: tuple[msgspec.Raw, ...]
    disks_apart: bool


class RunsOnHost:
    """The user's other runs on this host.

    A success counts whichever host reports it, another end only if no other host can know more.
    """

    def __init__(self) -> None:
        self._seen: set[Path] = set()

    def look(self, run_dir: Path) -> OtherRun:
        """Return the state of the run in the folder, as far as this host knows it."""
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
    """Return whether other hosts may know how the run ended, because this host may have been cut off."""
    plan, end = plan_as(run, attempt.number, _Disks), readable(attempt.end, AttemptEnd)
    return plan.disks_apart and len(plan.nodes) > 1 and (end is None or end.alone)
