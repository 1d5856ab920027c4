"""Which cluster a job was handed to: several may share one home, and none knows anything of another's jobs."""

from functools import cached_property
from pathlib import Path

from launcher.clusters.batch.queue import Submitting
from launcher.rundir.durable import read_record, write_record
from launcher.rundir.layout import AttemptDir, BatchDir, RunDir
from launcher.rundir.records import Intent, Site


class ThisCluster:
    """The cluster that answers here; asked for its name at most once, and only where it matters."""

    def __init__(self, queue: Submitting) -> None:
        self._queue = queue

    @cached_property
    def name(self) -> str:
        """What its controller calls it; "" where it does not say. Raises Unreachable."""
        return self._queue.site()

    def note(self, site: Path) -> None:
        """Write down, before the job is handed over, where to."""
        if not site.exists():
            write_record(site, Site(self.name))

    def elsewhere(self, run: RunDir, attempt: AttemptDir) -> str:
        """Why nothing can be told of this attempt here: its job is on another cluster. "" where that is not known."""
        there = _noted(run, attempt)
        if not there or not self.name or there == self.name:
            return ""
        called = self._queue.called
        return f"its job is on the {called} cluster {there}, and this is {self.name}: ask on a login node of {there}"


def _noted(run: RunDir, attempt: AttemptDir) -> str:
    """Where the newest job was handed to: an attempt after a requeue is in the job of the one before."""
    for number in range(attempt.number, 0, -1):
        one = run.attempt(number)
        intent = read_record(one.intent, Intent)
        site = read_record(BatchDir(Path(intent.batch)).site if intent is not None and intent.batch else one.site, Site)
        if site is not None:
            return site.cluster
    return ""
