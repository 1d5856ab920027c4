"""What Slurm's clients are asked, and reading what they answer. Pure: command lines and text, no process.

Fields are kept apart by control characters, which every Slurm since 20.11 passes through; the JSON of newer ones
changes with each release. Times are Unix times: `SLURM_TIME_FORMAT=%s` makes the clients write them (see `reach.ask`).
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from launcher.clusters.slurm.states import JobState, read_state
from launcher.errors import Unreachable

FIELD, ROW = "\x1f", "\x1e"
_JOB_FIELDS = (
    "JobArrayID", "JobID", "State", "RestartCnt", "StartTime", "EndTime", "NodeList", "BatchHost", "Reason", "Comment",
)  # fmt: skip
_ACCOUNT_FIELDS = ("JobID", "JobIDRaw", "State", "ExitCode", "Submit", "Start", "End", "NodeList")
_NODE_FORMAT = ("%N", "%P", "%T", "%c", "%m", "%G", "%E")
_PARTITION_FORMAT = ("%P", "%a", "%l", "%L", "%F")
_JOB_ID = re.compile(r"(?P<job>[0-9]{1,10})(?:_(?P<index>[0-9]{1,10}))?(?:\+[0-9]{1,10})?")
_NOTHING = frozenset({"", "n/a", "(null)", "none", "unknown", "none assigned", "not_set"})
_NO_ESTIMATE = 4_102_444_800.0  # 2100: of a job that nothing can start, Slurm says that it starts in a thousand years
_LONG_AGO = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Job:
    """One job, or one element of an array. squeue lists those that wait or run, and for MinJobAge those that ended."""

    id: str  # `7`, or `5_3` in an array: what the clients take
    raw_id: str  # what the job itself has as SLURM_JOB_ID; elements that wait share the array's
    array: tuple[str, int] | None
    state: JobState
    starts_at: float | None  # Slurm's estimate while it waits
    ends_at: float | None  # by its time limit while it runs
    hosts: str
    batch_host: str = ""
    reason: str = ""
    comment: str = ""
    restarts: int | None = None
    exit_code: int | None = None  # from the accounting alone, as the next two
    signal: int | None = None
    submitted_at: float | None = None  # of a requeued job: when it was requeued


@dataclass(frozen=True, slots=True)
class Node:
    """A node, and from sinfo one of its partitions; what is not known is empty or 0."""

    name: str
    state: tuple[str, ...]
    cpus: int
    memory_mb: int
    gres: str
    gpus: int
    reason: str
    partition: str = ""
    default: bool = False  # whether that is the default partition
    address: str = ""
    booted_at: float | None = None

    @property
    def is_down(self) -> bool:
        """Where Slurm has given it up. A node that is drained, or has not been heard of yet, need not be."""
        return not _DOWN.isdisjoint(self.state)

    @property
    def takes_jobs(self) -> bool:
        """Where nothing that is said of it keeps jobs off it; a word that is not known does."""
        return bool(self.state) and _UP.issuperset(self.state)


_DOWN = frozenset({"DOWN", "NOT_RESPONDING", "FAIL", "ERROR"})
_UP = frozenset({
    "IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED", "CLOUD", "DYNAMIC_NORM", "POWERED_DOWN", "POWERING_UP",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition's limits, and how many nodes it has; a limit that is infinite is `math.inf`."""

    name: str
    default: bool
    availability: str  # up, down, drain, inact
    max_time_s: float | None
    default_time_s: float | None
    idle_nodes: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Config:
    """What `scontrol show config` says of what we ask; None where it says nothing."""

    version: str | None
    cluster: str | None
    requeue: bool | None
    max_array_size: int | None
    slurmd_timeout_s: float | None
    kill_wait_s: float | None
    min_job_age_s: float | None
    preempt_mode: str | None
    accounting: bool | None


# Jobs


def squeue_jobs(user: str | None = None, job_ids: Sequence[str] = ()) -> list[str]:
    """The jobs with these ids, or all of a user, by default of the caller; those of hidden partitions too.

    With one id that it has forgotten squeue exits 1 and says "Invalid job id"; with several it leaves it out.
    """
    asked = ",".join(f"{name}:{FIELD}" for name in _JOB_FIELDS[:-1]) + f",{_JOB_FIELDS[-1]}:{ROW}"
    argv = ["squeue", "--noheader", "--all", "--array", "--states=all", f"--Format={asked}"]
    if job_ids:
        argv.append(f"--jobs={','.join(map(_job_id, job_ids))}")
    if user is not None:
        argv.append(f"--user={user}")
    elif not job_ids:
        argv.append("--me")
    return argv


def read_jobs(text: str) -> list[Job]:
    """The rows of `squeue_jobs`. Raises Unreachable where one is damaged: a job that is left out would seem gone."""
    rows, damaged = _rows(text, len(_JOB_FIELDS))
    if damaged:
        raise Unreachable(f"the answer of squeue is damaged: {damaged[0][:200]!r}")
    return [_job(row) for row in rows]


def _job(row: Sequence[str]) -> Job:
    name, raw_id, state, restarts, starts_at, ends_at, hosts, batch_host, reason, comment = row
    job_id, array = _identity(name)
    return Job(
        id=job_id,
        raw_id=raw_id,
        array=array,
        state=read_state(state),
        starts_at=read_time(starts_at),
        ends_at=read_time(ends_at),
        hosts=_known(hosts),
        batch_host=_known(batch_host),
        reason=reason.strip(),
        comment="" if comment == "(null)" else comment,
        restarts=_number(restarts),
    )


def sacct_jobs(job_ids: Sequence[str], since: float | None = None) -> list[str]:
    """The newest start of each of these jobs. An id that was used before `since` (Unix time) is another job's."""
    return [
        "sacct", "--noheader", "--allocations", "--parsable2", f"--delimiter={FIELD}",
        f"--format={','.join(_ACCOUNT_FIELDS)}", f"--starttime=uts{int(since or _LONG_AGO)}",
        f"--jobs={','.join(map(_job_id, job_ids))}",
    ]  # fmt: skip


def read_sacct(code: int, out: str, err: str = "") -> list[Job] | None:
    """The rows of `sacct_jobs`, one for each job, with its newest start; None where this cluster keeps no accounts."""
    if code != 0 or "accounting storage is disabled" in (out + err).lower():
        return None
    newest: dict[str, Job] = {}
    for line in out.split("\n"):
        fields = line.split(FIELD)
        if len(fields) == len(_ACCOUNT_FIELDS) and _JOB_ID.fullmatch(fields[0]):
            job = _accounted(fields)
            before = newest.get(job.id)
            if before is None or (job.submitted_at or 0.0) >= (before.submitted_at or 0.0):
                newest[job.id] = job
    return list(newest.values())


def _accounted(fields: Sequence[str]) -> Job:
    name, raw_id, state, exit_code, submitted_at, starts_at, ended_at, hosts = fields
    job_id, array = _identity(name)
    code, _, signal = exit_code.partition(":")
    return Job(
        id=job_id,
        raw_id=raw_id,
        array=array,
        state=read_state(state),
        starts_at=read_time(starts_at),
        ends_at=read_time(ended_at),
        hosts=_known(hosts),
        exit_code=_number(code),
        signal=_number(signal),
        submitted_at=read_time(submitted_at),
    )


def requeue(job_id: str) -> list[str]:
    """End the job's processes and queue it again, to start at the soonest after `cred_expire`, which is two minutes."""
    return ["scontrol", "requeue", _job_id(job_id)]


def update(job_id: str, **fields: str) -> list[str]:
    """Change fields of a job, by the names that `scontrol show job` gives them."""
    return ["scontrol", "update", f"JobId={_job_id(job_id)}", *(f"{name}={value}" for name, value in fields.items())]


def cancel(job_id: str, signal: str | None = None, batch: bool = False) -> list[str]:
    """End a job. With a signal: send it instead, to the job's steps, or to its batch script alone."""
    # Without --state, a signal for a job that waits keeps scancel busy for 95 s before it fails.
    how = [] if signal is None else [f"--signal={signal}", "--state=RUNNING"]
    return ["scancel", *how, *(["--batch"] if batch else []), _job_id(job_id)]


def read_submitted(text: str) -> str | None:
    """The id that `sbatch --parsable` writes, among a site's banners; None where there is none, or more than one."""
    found = {line[1] for line in re.finditer(r"^[ \t]*([0-9]{1,10})(?:;[\w.-]+)?[ \t\r]*$", text, re.MULTILINE)}
    return found.pop() if len(found) == 1 else None


_SBATCH_SAYS = re.compile(r"^(?:sbatch: )?(?:fatal: |error: |allocation failure: )?")


def read_test_only(text: str) -> tuple[float | None, str]:
    """What `sbatch --test-only` writes to stderr: when the job could start and where, or None and why not."""
    estimate = re.search(r"Job \S+ to start at (\S+) using (.+)", text)
    if estimate is not None:
        starts_at = read_time(estimate[1])
        return (None, "no start is in sight") if starts_at is None else (starts_at, estimate[2].strip())
    said = [_SBATCH_SAYS.sub("", line.strip()) for line in text.splitlines()]
    return None, "; ".join(dict.fromkeys(line for line in said if line)) or "sbatch gives no reason"


# Nodes and partitions


def show_hostnames(hostlist: str) -> list[str]:
    """The names behind a list such as `node[00-03,7]`, the first host of an allocation first."""
    return ["scontrol", "show", "hostnames", _operand(hostlist)]


def read_hostnames(text: str) -> list[str]:
    """One name a line. Of a damaged list scontrol makes what it can: what cannot be a name is left out."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", line)]


def show_nodes(hosts: Sequence[str] = ()) -> list[str]:
    """The records of these nodes, or of all. It exits 1 where one is not known, and still shows the others."""
    return ["scontrol", "--oneliner", "show", "node", *([_operand(",".join(hosts))] if hosts else [])]


def read_nodes(text: str) -> dict[str, Node]:
    """Nodes by name."""
    found = (_node(line) for line in text.splitlines() if re.match(r"NodeName=\S", line))
    return {node.name: node for node in found}


_SIGNED = re.compile(r" \[[^\s\[\]]+@[^\s\[\]]+\].*")  # who gave a reason and when, and what stands behind it


def _node(line: str) -> Node:
    head, _, free = line.partition(" Reason=")  # what administrators write comes last, and may look like fields
    fields = dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", head))
    name, gres = fields["NodeName"], _known(fields.get("Gres", ""))
    return Node(
        name=name,
        state=read_node_state(fields.get("State", "")),
        cpus=_number(fields.get("CPUTot", "")) or 0,
        memory_mb=_number(fields.get("RealMemory", "")) or 0,
        gres=gres,
        gpus=gpu_count(gres),
        reason=_SIGNED.sub("", free).strip(),
        address=_known(fields.get("NodeAddr", "")) or name,
        booted_at=read_time(fields.get("BootTime", "")),
    )


def partition_nodes(partition: str | None = None) -> list[str]:
    """Every node of a partition, or of all partitions. One that does not exist has none, which sinfo calls no error."""
    return ["sinfo", "--noheader", "--Node", *_of(partition), f"--format={FIELD.join(_NODE_FORMAT)}{ROW}"]


def read_partition_nodes(text: str) -> list[Node]:
    """The rows of `partition_nodes`: a node once for each of its partitions."""
    return [
        Node(
            name=name,
            state=read_node_state(state),
            cpus=_number(cpus.rstrip("+")) or 0,
            memory_mb=_number(memory.rstrip("+")) or 0,
            gres=_known(gres),
            gpus=gpu_count(gres),
            reason=_known(reason),
            partition=partition.removesuffix("*"),
            default=partition.endswith("*"),
        )
        for name, partition, state, cpus, memory, gres, reason in _rows(text, len(_NODE_FORMAT), _ANY)[0]
    ]


def partitions(partition: str | None = None) -> list[str]:
    """The limits of a partition, or of all."""
    return ["sinfo", "--noheader", *_of(partition), f"--format={FIELD.join(_PARTITION_FORMAT)}{ROW}"]


def read_partitions(text: str) -> list[Partition]:
    """The rows of `partitions`; the default one is marked with a star."""
    found = []
    for name, availability, longest, usual, counts in _rows(text, len(_PARTITION_FORMAT), _ANY)[0]:
        numbers = [_number(part) or 0 for part in counts.split("/")]  # allocated/idle/other/total
        found.append(
            Partition(
                name=name.removesuffix("*"),
                default=name.endswith("*"),
                availability=availability,
                max_time_s=read_duration(longest),
                default_time_s=read_duration(usual),
                idle_nodes=numbers[1] if len(numbers) == 4 else 0,
                nodes=numbers[-1],
            )
        )
    return found


_NODE_MARKS = {
    "*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "%": "POWERING_DOWN", "!": "POWER_DOWN",
    "$": "MAINT", "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "-": "PLANNED",
}  # fmt: skip


def read_node_state(text: str) -> tuple[str, ...]:
    """The words of `MIXED+DRAIN` or `down*`; the marks behind a state become words too."""
    words: list[str] = []
    for part in text.upper().split("+"):
        stem = part.strip().rstrip("".join(_NODE_MARKS))
        words += [stem] if stem else []
        words += [_NODE_MARKS[mark] for mark in part.strip()[len(stem) :]]
    return tuple(dict.fromkeys(words))


def gpu_count(gres: str) -> int:
    """The GPUs of a node's gres: `gpu:a100:4(S:0-1),mps:400` has 4."""
    count = 0
    for entry in re.sub(r"\([^()]*\)", "", gres).split(","):
        kind, *more = entry.strip().split(":")
        number = _number(more[-1]) if more else None
        if kind == "gpu":
            count += 1 if number is None else number
    return count


# The site


def show_config() -> list[str]:
    """The configuration of the running controller."""
    return ["scontrol", "show", "config"]


def read_config(text: str) -> Config:
    """The fields that we ask for."""
    fields: dict[str, str] = {}
    for key, value in re.findall(r"^(\w+)[ \t]*=[ \t]*(.*?)[ \t\r]*$", text, re.MULTILINE):
        fields.setdefault(key, value)
    storage = fields.get("AccountingStorageType")
    return Config(
        version=fields.get("SLURM_VERSION"),
        cluster=fields.get("ClusterName"),
        requeue={"1": True, "0": False}.get(fields.get("JobRequeue", "")),
        max_array_size=_number(fields.get("MaxArraySize", "")),
        slurmd_timeout_s=_seconds(fields.get("SlurmdTimeout", "")),
        kill_wait_s=_seconds(fields.get("KillWait", "")),
        min_job_age_s=_seconds(fields.get("MinJobAge", "")),
        preempt_mode=fields.get("PreemptMode"),
        # Newer ones have no plugin where older ones have one that keeps nothing.
        accounting=None if storage is None else storage not in ("", "(null)", "accounting_storage/none"),
    )


def read_version(text: str) -> str | None:
    """The version in what `sbatch --version` writes: `slurm-wlm 22.05.8`."""
    found = re.search(r"^slurm\S*[ \t]+([0-9]+\.[0-9]+\S*)", text, re.MULTILINE)
    return found[1] if found else None


# Values


def read_time(text: str) -> float | None:
    """Unix time of a date; None where Slurm knows none. A date in words of its own is read as local time."""
    said = text.strip()
    try:
        when = float(said) if re.fullmatch(r"[0-9]{1,15}", said) else datetime.fromisoformat(said).timestamp()
    except (ValueError, OverflowError, OSError):
        return None  # N/A, Unknown, None
    return when if 0.0 < when < _NO_ESTIMATE else None


_CLOCK = re.compile(r"(?:(?P<days>[0-9]{1,9})-)?(?P<clock>[0-9]{1,9}(?::[0-9]{1,9}){0,2})")


def read_duration(text: str) -> float | None:
    """Seconds of `1-12:00:00`, `10:00` (minutes and seconds) or `30` (minutes); infinite where there is no limit."""
    said = text.strip()
    if said.lower() in ("infinite", "unlimited"):
        return math.inf
    found = _CLOCK.fullmatch(said)
    if found is None:
        return None  # n/a
    parts = [int(part) for part in found["clock"].split(":")]
    if found["days"] is None and len(parts) < 3:
        parts.insert(0, 0)  # without days and hours they are minutes and seconds
    hours, minutes, seconds = [*parts, 0, 0][:3]
    return float((int(found["days"] or 0) * 24 + hours) * 3600 + minutes * 60 + seconds)


_ANY = re.compile(r".+")


def _rows(text: str, width: int, first: re.Pattern[str] = _JOB_ID) -> tuple[list[list[str]], list[str]]:
    """The rows of so many fields, whose first one looks like that; and those that are damaged.

    What a site prints around them is in no row, and what somebody wrote into the last field ends none.
    """
    *ended, rest = text.split(ROW)
    rows, damaged = [], [rest] if FIELD in rest else []
    for row in ended:
        fields = row.split(FIELD, width - 1)
        fields[0] = fields[0].rpartition("\n")[2].strip()
        if len(fields) == width and first.fullmatch(fields[0]):
            rows.append(fields)
        elif len(fields) > 1:
            damaged.append(row)
    return rows, damaged


def _identity(text: str) -> tuple[str, tuple[str, int] | None]:
    """A job's id; and where it is an element of an array, that array's id and its index."""
    found = _JOB_ID.fullmatch(text)
    if found is None or found["index"] is None:
        return text, None
    return text, (found["job"], int(found["index"]))


def _job_id(text: str) -> str:
    """An id that may stand in a command line."""
    if _JOB_ID.fullmatch(text) is None:
        raise ValueError(f"expected the id of a Slurm job, got {text!r}")
    return text


def _operand(text: str) -> str:
    """A word that is not taken for an option."""
    if not text or text.startswith("-"):
        raise ValueError(f"expected a list of hosts, got {text!r}")
    return text


def _of(partition: str | None) -> list[str]:
    return [] if partition is None else [f"--partition={partition}"]


def _known(text: str) -> str:
    return "" if text.strip().lower() in _NOTHING else text.strip()


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def _seconds(text: str) -> float | None:
    """Of `30 sec`."""
    found = re.fullmatch(r"([0-9]{1,9})(?: sec)?", text)
    return float(found[1]) if found else None
