"""Every file name in the run directory, in one place. Nothing here touches the disk."""

import re
from dataclasses import dataclass
from pathlib import Path

_LOG_FOLDER = re.compile(r"a(\d{4,})\.(?:g(\d{4,})|setup)")
_LOG_FILE = re.compile(r"(?:rank|node)-(\d{2,})\.log")


@dataclass(frozen=True, slots=True)
class AttemptDir:
    """attempts/0001/: one allocation of the run."""

    path: Path
    number: int

    @property
    def intent(self) -> Path:
        return self.path / "token.json"

    @property
    def plan(self) -> Path:
        """Only where this attempt's plan is not the one before's: after `resume --set` or `--on`."""
        return self.path / "plan.json"

    @property
    def handle(self) -> Path:
        return self.path / "handle.json"

    @property
    def started(self) -> Path:
        """Made with O_EXCL by whoever carries the attempt out: there is only one."""
        return self.path / "started"

    @property
    def endpoint(self) -> Path:
        return self.path / "coordinator.json"

    @property
    def exits(self) -> Path:
        return self.path / "exits.jsonl"

    @property
    def end(self) -> Path:
        return self.path / "exit.json"

    @property
    def stop(self) -> Path:
        return self.path / "stop.json"

    @property
    def seen(self) -> Path:
        """The cluster's last answer."""
        return self.path / "seen.json"

    @property
    def site(self) -> Path:
        """Which of the clusters of its kind the attempt was handed to."""
        return self.path / "site.json"

    @property
    def job_script(self) -> Path:
        """What was handed to the cluster's batch system."""
        return self.path / "job.sh"

    @property
    def job_lock(self) -> Path:
        """Held as long as somebody may be handing the attempt over."""
        return self.path / ".job-lock"

    @property
    def others_log(self) -> Path:
        """What the program that starts agents on other machines says."""
        return self.path / "others.log"

    @property
    def keeper_log(self) -> Path:
        return self.path / "keeper.log"

    def node(self, index: int) -> Path:
        return self.path / f"node-{index:02d}"

    def node_started(self, index: int) -> Path:
        """Claimed once by the keeper of a node that does not lead."""
        return self.node(index) / "started"

    @property
    def fetched(self) -> Path:
        """There once all that its ranks wrote on other machines has been copied here."""
        return self.path / "fetched"

    @property
    def hosts(self) -> Path:
        """Where the attempt's hosts are, and what its run directory is there."""
        return self.path / "hosts.json"

    def agent(self, index: int) -> Path:
        return self.node(index) / "agent.json"

    def agent_log(self, index: int) -> Path:
        return self.node(index) / "agent.log"

    def node_keeper_log(self, index: int) -> Path:
        return self.node(index) / "keeper.log"

    def zygote_log(self, index: int) -> Path:
        return self.node(index) / "zygote.log"

    def progress(self, index: int, local_rank: int) -> Path:
        """The FIFO on which a rank reports to its agent."""
        return self.node(index) / f"progress-{local_rank:03d}"


@dataclass(frozen=True, slots=True)
class BatchDir:
    """<runs root>/.batch-<ticket>/: several runs that were handed to a cluster as one job."""

    path: Path

    @property
    def runs(self) -> Path:
        """The runs' folders, by their index in the job."""
        return self.path / "runs.json"

    @property
    def site(self) -> Path:
        return self.path / "site.json"

    @property
    def script(self) -> Path:
        return self.path / "job.sh"

    @property
    def lock(self) -> Path:
        return self.path / ".job-lock"


@dataclass(frozen=True, slots=True)
class RunDir:
    """One run's folder."""

    path: Path

    @property
    def spec(self) -> Path:
        return self.path / "spec.yaml"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def secrets(self) -> Path:
        return self.path / "secrets.json"

    @property
    def code(self) -> Path:
        return self.path / "code"

    @property
    def fence(self) -> Path:
        return self.path / "FENCE"

    @property
    def fence_lock(self) -> Path:
        """Held only while the fence is looked at and raised."""
        return self.path / ".fence-lock"

    @property
    def attempts(self) -> Path:
        return self.path / "attempts"

    def attempt(self, number: int) -> AttemptDir:
        return AttemptDir(self.attempts / f"{number:04d}", number)

    @property
    def avoided(self) -> Path:
        """Nodes that were lost and are not used again for a while."""
        return self.path / "avoided.json"

    @property
    def gone(self) -> Path:
        """Hosts whose word nobody waits for any more."""
        return self.path / "gone.json"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def state(self) -> Path:
        return self.path / "state.json"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def generation_logs(self, attempt: int, generation: int) -> Path:
        return self.logs / f"a{attempt:04d}.g{generation:04d}"

    def rank_log(self, attempt: int, generation: int, rank: int) -> Path:
        return self.generation_logs(attempt, generation) / f"rank-{rank:05d}.log"

    def setup_log(self, attempt: int, node: int) -> Path:
        return self.logs / f"a{attempt:04d}.setup" / f"node-{node:02d}.log"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics"


def parse_log_folder(name: str) -> tuple[int, int] | None:
    """Attempt and generation of a folder in logs/; generation 0: the setup's."""
    found = _LOG_FOLDER.fullmatch(name)
    return (int(found[1]), int(found[2] or 0)) if found else None


def parse_log_file(name: str) -> int | None:
    """The rank, or for a setup's log the node, that this log is of."""
    found = _LOG_FILE.fullmatch(name)
    return int(found[1]) if found else None


def times_of(log: Path) -> Path:
    """Beside each rank log: when which byte was written, for the merged view (lines `unix_ms offset`)."""
    return log.with_suffix(".times")
