"""The name of every file in the run directory, in one place; nothing here reads or writes a file, and only
`rank_processes` and `hangs` look which files exist. A node is one machine of an attempt, known by its index; its agent
is the launcher's process there, and its zygote a process that imports torch once and forks the ranks. A generation is
one set of ranks that train together. A FIFO is a named pipe, over which a rank and its agent exchange messages.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, overload

from launcher.ids import RunId, parse_run_id

STORE = ".code"  # of frozen code, shared by all runs of a folder
SWEEPS = ".sweeps"  # of sweeps, beside the runs that are their trials
GRAPHS = ".graphs"  # of files with several jobs, beside the runs of these
BATCH_PREFIX = ".batch-"  # and a submit token: the name of a folder of runs in one job
_LOG_FOLDER = re.compile(r"a([0-9]{4,18})\.(?:g([0-9]{4,18})|setup)")
_LOG_FILE = re.compile(r"(?:rank|node)-([0-9]{2,18})\.log")


class Located(Protocol):
    """An object with a folder, in which `NamedFile` gives paths."""

    @property
    def path(self) -> Path:
        """Return the object's folder."""


class NamedFile:
    """A descriptor for a file or folder with a fixed name: on an object with a folder, it gives the path of `name` in
    that folder; on the class, it gives itself.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, folder: None, _: object = None) -> "NamedFile": ...

    @overload
    def __get__(self, folder: Located, _: object = None) -> Path: ...

    def __get__(self, folder: Located | None, _: object = None) -> "Path | NamedFile":
        return self if folder is None else folder.path / self.name


def attempt_name(number: int) -> str:
    """Return the name of the folder of attempt `number`, such as 0001."""
    return f"{number:04d}"


@dataclass(frozen=True, slots=True)
class AttemptDir:
    """The folder attempts/0001/: one allocation of the run."""

    path: Path
    number: int

    intent = NamedFile("token.json")  # why and by which process the attempt was opened, and its token
    plan = NamedFile("plan.json")  # only if it differs from the previous attempt's, as after `resume --set` or `--on`
    handle = NamedFile("handle.json")  # how to ask the cluster about the attempt
    started = NamedFile("started")  # created once, with O_EXCL, by the process that runs the attempt
    endpoint = NamedFile("coordinator.json")  # where agents reach the coordinator
    exits = NamedFile("exits.jsonl")  # how each rank ended
    end = NamedFile("exit.json")  # how the attempt ended
    role_end = NamedFile("role-exit.json")  # how the run's own role ended, if other roles go on
    stop = NamedFile("stop.json")  # a request to end the attempt
    due = NamedFile("due")  # in a pool, in a run of several programs: exists once the ranks of its own role may start
    drain = NamedFile("drain.json")  # requests to move ranks off nodes
    drain_lock = NamedFile(".drain-lock")  # held while drain.json is changed
    released = NamedFile("released")  # exists once a user has released a held attempt
    seen = NamedFile("seen.json")  # the cluster's last answer
    site = NamedFile("site.json")  # the name of the cluster that the attempt was submitted to
    job_lock = NamedFile(".job-lock")  # held while a process may be submitting the attempt
    others_log = NamedFile("others.log")  # output of the program that starts agents on other machines
    supervisor_log = NamedFile("keeper.log")
    messenger_log = NamedFile("messenger.log")  # of the process that sends notifications
    coordinator_log = NamedFile("coordinator.log")  # of a coordinator that is not part of an agent
    supervisors = NamedFile("keepers.json")  # how the supervisors of a pool's hosts reach each other
    host_index = NamedFile("seat.json")  # on a host of a pool: its number in the pool, and its GPUs
    fetched = NamedFile("fetched")  # exists once everything that its ranks wrote on other machines has been copied here
    voter = NamedFile("voter.json")  # on a host of a pool: its newest vote, and later attempts that it accepted
    opened_on = NamedFile(
        "opened-on.json"
    )  # on a host: the pool's name for the host that opened the attempt on this disk
    code = NamedFile("code")  # the code that it ran with, if a later attempt has other code; or code staged for it
    hosts = NamedFile("hosts.json")  # where the attempt's hosts are, and the run directory's path there

    def node(self, index: int) -> Path:
        """Return the folder for the files of node `index`."""
        return self.path / f"node-{index:02d}"

    def node_started(self, index: int) -> Path:
        """Return the file that the supervisor of node `index` of an SSH pool creates to claim, once, the start of the
        attempt there; the node whose supervisor leads the attempt has none.
        """
        return self.node(index) / "started"

    def agent(self, index: int) -> Path:
        """Return the file with the record of the agent of node `index`."""
        return self.node(index) / "agent.json"

    def node_exits(self, index: int) -> Path:
        """Return the file in which the agent of node `index` records ranks that finished, in case the coordinator dies
        before recording them.
        """
        return self.node(index) / "exits.jsonl"

    def agent_log(self, index: int) -> Path:
        """Return the log of the agent of node `index`."""
        return self.node(index) / "agent.log"

    def node_supervisor_log(self, index: int) -> Path:
        """Return the log of the supervisor of node `index`. Only in a pool of SSH hosts has each node one of its
        own.
        """
        return self.node(index) / "keeper.log"

    def zygote_log(self, index: int) -> Path:
        """Return the log of the zygote of node `index`."""
        return self.node(index) / "zygote.log"

    def health_log(self, index: int, device: str) -> Path:
        """Return the log of the health check of a device of node `index`; `device` is `cpu`, or `cuda:0` and so on."""
        return self.node(index) / f"health-{device.replace(':', '-')}.log"

    def reserve_log(self, index: int) -> Path:
        """Return the log of the processes in reserve of node `index`: processes that have started the user's program
        and wait to become ranks. A rank writes to its own log.
        """
        return self.node(index) / "reserve.log"

    def reserve(self, index: int, number: int) -> Path:
        """Return the FIFO on which the process in reserve (started to replace a lost rank at once) with this number
        reports to the agent of node `index`.
        """
        return self.node(index) / f"reserve-{number:03d}"

    def progress(self, index: int, local_rank: int) -> Path:
        """Return the FIFO on which a rank of node `index` reports to its agent."""
        return self.node(index) / f"progress-{local_rank:03d}"

    def rank_process(self, index: int, local_rank: int) -> Path:
        """Return the path of the record of a rank's process on node `index`: its rank, identity (host, boot, pid, start
        time), environment and log. Commands that inspect a rank, such as `launch exec`, read it.
        """
        return self.node(index) / f"rank-{local_rank:03d}.json"

    def rank_processes(self, index: int) -> list[Path]:
        """Return the existing files that identify the processes of all ranks that run or ran on node `index`; each is
        the `rank_process` of one rank.
        """
        return sorted(self.node(index).glob("rank-*.json"))

    def hang(self, number: int) -> Path:
        """Return the path of the report on hang `number` of this attempt. The report says what every rank was doing,
        and which of them the others waited for.
        """
        return self.path / f"hang-{number:03d}" / "report.json"

    def hangs(self) -> list[Path]:
        """Return the paths of the reports on all hangs of this attempt that exist, oldest first."""
        return sorted(self.path.glob("hang-*/report.json"))

    def error_file(self, index: int, local_rank: int) -> Path:
        """Return the file in which torch's `@record` writes the exception that ends a rank of node `index`."""
        return self.node(index) / f"error-{local_rank:03d}.json"


def debug_socket(progress: Path) -> Path:
    """Return the socket at which a rank's breakpoint() waits for a debugger; it is beside `progress`, the FIFO on which
    the rank reports.
    """
    return progress.with_suffix(".pdb")


@dataclass(frozen=True, slots=True)
class BatchDir:
    """The folder <runs root>/.batch-<submit_token>/ of several runs that were submitted to a cluster as one job."""

    path: Path

    runs = NamedFile("runs.json")  # the runs' folders, in order of their index in the job
    site = NamedFile("site.json")  # the name of the cluster, as its scheduler gives it
    lock = NamedFile(".job-lock")


@dataclass(frozen=True, slots=True)
class RunDir:
    """The folder of one run."""

    path: Path

    spec = NamedFile("spec.yaml")
    plan = NamedFile("plan.json")
    secrets = NamedFile("secrets.json")  # values of the spec's secrets, for the ranks' environment
    notify = NamedFile("notify.json")  # the recipients of notifications; their addresses are secrets
    notify_lock = NamedFile(".notify-lock")  # held by the one process that sends to them
    code = NamedFile("code")  # the project's code as it was at submit
    fence = NamedFile("FENCE")  # the number of the newest attempt; older ones may not write
    fence_lock = NamedFile(".fence-lock")  # held only while the fence is read and raised
    attempts = NamedFile("attempts")
    avoided = NamedFile("avoided.json")  # hosts that were lost and are excluded for a while
    asked_back = NamedFile(".asked-back")  # touched when lost hosts are asked to take part again
    gone = NamedFile("gone.json")  # hosts that a user has given up
    events = NamedFile("events.jsonl")  # everything that happened
    state = NamedFile("state.json")  # the newest state
    logs = NamedFile("logs")
    metrics = NamedFile("metrics")
    outputs = NamedFile("fetched-outputs")  # copies of files that ranks wrote beside their code
    origin = NamedFile("origin.json")  # the git commit of its code
    roles = NamedFile("roles")  # run directories of the roles other than the main one
    labels = NamedFile("labels.json")  # its name, tags and note, given by the user
    labels_lock = NamedFile(".labels-lock")

    @property
    def id(self) -> RunId:
        """Return the run's id, the folder's name."""
        return parse_run_id(self.path.name)

    @property
    def whole(self) -> "RunDir":
        """Return the run to which this one belongs if it is a role of a run of several programs, or the run itself."""
        whole = RunDir(self.path.parent.parent)
        return whole if self.path.parent == whole.roles and whole.plan.exists() else self

    def attempt(self, number: int) -> AttemptDir:
        """Return the folder of the attempt with this number."""
        return AttemptDir(self.attempts / attempt_name(number), number)

    def generation_logs(self, attempt: int, generation: int) -> Path:
        """Return the folder of the logs of a generation's ranks."""
        return self.logs / f"a{attempt:04d}.g{generation:04d}"

    def rank_log(self, attempt: int, generation: int, rank: int) -> Path:
        """Return the log of a rank in one generation of an attempt."""
        return self.generation_logs(attempt, generation) / f"rank-{rank:05d}.log"

    def reported(self, attempt: int, node: int) -> Path:
        """Return the file with the metrics that the ranks of a node report."""
        return self.metrics / f"reported.n{node:03d}.a{attempt:04d}.jsonl"

    def system(self, attempt: int, node: int) -> Path:
        """Return the file with samples of the load of a node's machine and ranks, as metrics."""
        return self.metrics / f"system.n{node:03d}.a{attempt:04d}.jsonl"

    def environment(self, attempt: int, node: int) -> Path:
        """Return the file that describes the environment of a node's ranks.

        It is in the folder of the metrics because both are fetched in the same way.
        """
        return self.metrics / f"environment.n{node:03d}.a{attempt:04d}.jsonl"

    def setup_log(self, attempt: int, node: int) -> Path:
        """Return the log of the user's setup script (`run.setup`) on a node."""
        return self.logs / f"a{attempt:04d}.setup" / f"node-{node:02d}.log"


def parse_log_folder(name: str) -> tuple[int, int] | None:
    """Return (attempt, generation) from the name of a folder in logs/, or None for any other name; generation 0 is the
    setup's folder.
    """
    found = _LOG_FOLDER.fullmatch(name)
    return (int(found[1]), int(found[2] or 0)) if found else None


def parse_log_file(name: str) -> int | None:
    """Return the number in a log's file name: the rank of `rank-03.log`, or the node of `node-00.log`, a log of the
    setup. Return None if the name is not a log's.
    """
    found = _LOG_FILE.fullmatch(name)
    return int(found[1]) if found else None


def times_of(log: Path) -> Path:
    """Return the file beside a rank's log with the times at which the log grew, for the merged view (lines `unix_ms
    offset`).
    """
    return log.with_suffix(".times")
