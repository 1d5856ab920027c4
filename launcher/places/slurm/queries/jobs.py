"""The command lines of squeue, sacct, scontrol and sbatch about jobs, and the parsing of their output. Functions that
put a job's id into a command, other than `show_job`, raise ValueError if the id has another form than Slurm's.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from launcher.errors import Unreachable
from launcher.places.batch.batch import Fate, submit_tokens_in
from launcher.places.slurm.queries.states import JobState, read_state
from launcher.places.slurm.queries.values import (
    FIELD,
    JOB_ID,
    ROW,
    read_fields,
    read_number,
    read_rows,
    read_time,
    read_word,
)

_UNSET = ("", "None", "N/A", "(null)", "Unknown")

_JOB_FIELDS = (
    "JobArrayID", "JobID", "State", "RestartCnt", "StartTime", "EndTime", "NodeList", "BatchHost", "Reason", "Comment",
)  # fmt: skip
_ACCOUNT_FIELDS = ("JobID", "JobIDRaw", "State", "ExitCode", "Submit", "Start", "End", "NodeList")
_LONG_AGO = 1_000_000_000
_MOST_JOBS = 200_000  # of one user, with elements that wait
# Elements of an array that wait share a row: `5_[1,3-5,10-30:4%2]`, where the last number is how many may run at once.
_RANGE = r"[0-9]{1,7}(?:-[0-9]{1,7}(?::[1-9][0-9]{0,6})?)?"
_ELEMENTS = re.compile(rf"([0-9]{{1,10}})_\[({_RANGE}(?:,{_RANGE})*)(?:%[0-9]{{1,10}})?\]")
_JOBS_OF_A_ROW = re.compile(f"{JOB_ID.pattern}|{_ELEMENTS.pattern}")


class SlurmJob(msgspec.Struct, frozen=True):
    """A job, or one element of an array, as squeue or sacct shows it.

    `id` is the form that commands accept (`5_3` in an array), `raw_id` the job's own SLURM_JOB_ID, `array` (the array's
    id, the index). `starts_at` is an estimate, `ends_at` follows from the time limit. Exit code, signal and
    `submitted_at` (after a requeue, its time) come from sacct only.
    """

    id: str  # `7`, or `5_3` in an array, as commands accept it
    raw_id: str  # the job's own SLURM_JOB_ID; pending elements share the array's
    array: tuple[str, int] | None
    state: JobState
    starts_at: float | None  # Unix time, as all times here; Slurm's estimate while it waits
    ends_at: float | None  # by its time limit while it runs
    hosts: str  # a list such as `node[00-03]`
    batch_host: str = ""  # the one that runs the batch script
    reason: str = ""  # why it waits, in Slurm's words
    comment: str = ""
    restarts: int | None = None  # how often it was requeued
    exit_code: int | None = None  # this and the next two only from the accounting
    signal: int | None = None
    submitted_at: float | None = None  # of a requeued job: the time of the requeue

    @property
    def submit_tokens(self) -> frozenset[str]:
        """Return the launcher's submit tokens that are in the job's comment."""
        return submit_tokens_in(self.comment)


def squeue_jobs(job_ids: Sequence[str] = (), name: str = "") -> list[str]:
    """Return the squeue command for the jobs with these ids, or for all of this user, hidden partitions included.

    `name` limits them to jobs of that name. For a single id that Slurm has forgotten squeue exits with 1 and "Invalid
    job id"; from several it leaves out forgotten ones. The option --array is not used, because it may drop the last of
    evenly spaced elements; `read_jobs` splits them.
    """
    asked = ",".join(f"{name}:{FIELD}" for name in _JOB_FIELDS[:-1]) + f",{_JOB_FIELDS[-1]}:{ROW}"
    argv = ["squeue", "--noheader", "--all", "--array-unique", "--states=all", f"--Format={asked}"]
    argv.append(f"--jobs={','.join(map(_job_id, job_ids))}" if job_ids else "--me")
    return [*argv, *([f"--name={name}"] if name else [])]


def read_jobs(text: str) -> list[SlurmJob]:
    """Return the jobs in the output of `squeue_jobs`. Raise Unreachable if a row is damaged, because a job that is left
    out would seem to have ended.
    """
    rows, damaged = read_rows(text, len(_JOB_FIELDS), _JOBS_OF_A_ROW)
    if damaged:
        raise Unreachable(f"the answer of squeue is damaged: {damaged[0][:200]!r}")
    named = list(islice(((name, more) for names, *more in rows for name in _names(names)), _MOST_JOBS + 1))
    if len(named) > _MOST_JOBS:
        raise Unreachable(f"the answer of squeue is damaged: more than {_MOST_JOBS} jobs and elements of arrays")
    return _whole([_job(name, more) for name, more in named])


def _whole(rows: Sequence[SlurmJob]) -> list[SlurmJob]:
    """Return the jobs of all rows, one for each job: rows of one heterogeneous job (`7+0`, `7+1`) become the first,
    with the hosts of all.
    """
    found: dict[str, SlurmJob] = {}
    for row in sorted(rows, key=lambda one: int(one.id.partition("+")[2] or 0)):
        name, plus, _ = row.id.partition("+")
        before = found.get(name) if plus else None
        hosts = row.hosts if before is None else ",".join(filter(None, (before.hosts, row.hosts)))
        found[name] = msgspec.structs.replace(before or row, id=name, hosts=hosts)
    return list(found.values())


def _names(text: str) -> Iterator[str]:
    """Yield the ids of all jobs for which the id column of a row stands: pending elements of an array share a row
    (`7_[1-3]`), and any other text is one id.
    """
    found = _ELEMENTS.fullmatch(text)
    if found is None:
        return iter([text])
    return (f"{found[1]}_{index}" for piece in found[2].split(",") for index in _indices(piece))


def _indices(piece: str) -> range:
    """Return the array indices of `7`, `3-5` or `10-30:4`, both ends included."""
    bounds, _, step = piece.partition(":")
    first, _, last = bounds.partition("-")
    return range(int(first), int(last or first) + 1, int(step or 1))


def _job(name: str, row: Sequence[str]) -> SlurmJob:
    """Return the job with the id `name`, of which `row` has the fields that `squeue_jobs` asks for, in its order."""
    raw_id, state, restarts, starts_at, ends_at, hosts, batch_host, reason, comment = row
    job_id, array = _identity(name)
    return SlurmJob(
        id=job_id,
        raw_id=raw_id,
        array=array,
        state=read_state(state),
        starts_at=read_time(starts_at),
        ends_at=read_time(ends_at),
        hosts=read_word(hosts),
        batch_host=read_word(batch_host),
        reason=reason.strip(),
        comment="" if comment == "(null)" else comment,
        restarts=read_number(restarts),
    )


def sacct_jobs(job_ids: Sequence[str], since: float | None = None) -> list[str]:
    """Return the sacct command for the records of these jobs. `read_sacct` selects each job's newest start.

    Records older than `since` (Unix time) are left out, because they belong to earlier jobs with the same ids; for None
    the command asks for records of any age.
    """
    return [
        "sacct", "--noheader", "--allocations", "--parsable2", f"--delimiter={FIELD}",
        f"--format={','.join(_ACCOUNT_FIELDS)}", f"--starttime=uts{int(since or _LONG_AGO)}",
        f"--jobs={','.join(map(_job_id, job_ids))}",
    ]  # fmt: skip


def read_sacct(code: int, out: str, err: str = "") -> list[SlurmJob] | None:
    """Return the jobs in the output of `sacct_jobs`, one for each id with its newest start. Return None if this cluster
    has no accounting: the command's exit code is not 0, or its output says so.
    """
    if code != 0 or "accounting storage is disabled" in (out + err).lower():
        return None
    newest: dict[str, SlurmJob] = {}
    for line in out.split("\n"):
        fields = line.split(FIELD)
        if len(fields) == len(_ACCOUNT_FIELDS) and JOB_ID.fullmatch(fields[0]):
            job = _accounted(fields)
            before = newest.get(job.id)
            if before is None or (job.submitted_at or 0.0) >= (before.submitted_at or 0.0):
                newest[job.id] = job
    return _whole([*newest.values()])


def _accounted(fields: Sequence[str]) -> SlurmJob:
    """Return the job in one row of sacct's output, whose fields are those of `_ACCOUNT_FIELDS`."""
    name, raw_id, state, exit_code, submitted_at, starts_at, ended_at, hosts = fields
    job_id, array = _identity(name)
    code, _, signal = exit_code.partition(":")
    return SlurmJob(
        id=job_id,
        raw_id=raw_id,
        array=array,
        state=read_state(state),
        starts_at=read_time(starts_at),
        ends_at=read_time(ended_at),
        hosts=read_word(hosts),
        exit_code=read_number(code),
        signal=read_number(signal),
        submitted_at=read_time(submitted_at),
    )


def requeue(job_id: str) -> list[str]:
    """Return the command that ends the job's processes and puts the job back into the queue. Slurm starts the job again
    after its `cred_expire`, two minutes, at the earliest.
    """
    return ["scontrol", "requeue", _job_id(job_id)]


def update(job_id: str, **fields: str) -> list[str]:
    """Return the command that changes fields of a job, named as `scontrol show job` names them."""
    return ["scontrol", "update", f"JobId={_job_id(job_id)}", *(f"{name}={value}" for name, value in fields.items())]


def release(job_id: str) -> list[str]:
    """Return the command that releases a job that is held on its user's request."""
    return ["scontrol", "release", _job_id(job_id)]


def cancel(job_id: str, signal: str | None = None, batch: bool = False) -> list[str]:
    """Return the command that ends a job, or, if `signal` is given, one that sends that signal to the job's steps, or
    with `batch` to its batch script alone.
    """
    # Without --state, a signal for a job that waits keeps scancel busy for 95 s before it fails.
    how = [] if signal is None else [f"--signal={signal}", "--state=RUNNING"]
    return ["scancel", *how, *(["--batch"] if batch else []), _job_id(job_id)]


_SBATCH_SAYS = re.compile(r"^(?:sbatch: )?(?:fatal: |error: |allocation failure: )?")


def read_test_only(text: str) -> tuple[float | None, str]:
    """Return (the Unix time at which the job could start, the nodes on which it would) from the output of
    `sbatch --test-only`, or (None, why it could not start).
    """
    estimate = re.search(r"Job \S+ to start at (\S+) using (.+)", text)
    if estimate is not None:
        starts_at = read_time(estimate[1])
        return (None, "no start is in sight") if starts_at is None else (starts_at, estimate[2].strip())
    said = [_SBATCH_SAYS.sub("", line.strip()) for line in text.splitlines()]
    return None, "; ".join(dict.fromkeys(line for line in said if line)) or "sbatch gives no reason"


def _identity(text: str) -> tuple[str, tuple[str, int] | None]:
    """Return (`text`, (the array's id, the index)) for the id of an array's element such as `5_3`, and (`text`, None)
    for any other job's id.
    """
    found = JOB_ID.fullmatch(text)
    if found is None or found["index"] is None:
        return text, None
    return text, (found["job"], int(found["index"]))


def _job_id(text: str) -> str:
    """Return the id unchanged; raise ValueError if it does not have the form of a Slurm job's id, because a command
    could take it for something else.
    """
    if JOB_ID.fullmatch(text) is None:
        raise ValueError(f"expected the id of a Slurm job, got {text!r}")
    return text


def show_job(job: str) -> list[str]:
    """Return the command that shows everything that the controller knows about the job."""
    return ["scontrol", "--oneliner", "show", "job", job]


def is_expedited(text: str) -> bool:
    """Return whether the job has Slurm's expedited requeue (after the loss of a node it is requeued at once, as the
    first in the queue), by the output of `scontrol show job`.
    """
    return read_fields(text).get("ExpeditedRequeue") == "Yes"


def fate_of(text: str, restarts: int) -> Fate:
    """Return what Slurm does with a job whose batch process it has asked to exit: requeue it, end it and why, or let it
    run; Fate.UNKNOWN if `text`, the output of `scontrol show job`, does not show that.

    `restarts` is how often the job had been requeued when the current start began.
    """
    components = [read_fields(line) for line in text.splitlines()] or [{}]
    fields = components[0]
    counted = read_number(fields.get("Restarts", ""))
    if counted is None:
        return Fate.UNKNOWN
    if counted > restarts or fields.get("JobState") in ("PENDING", "EXPEDITING"):
        return Fate.QUEUED_AGAIN
    if fields.get("JobState") in ("RUNNING", "SUSPENDED"):
        return Fate.RUNS
    if any(one.get("PreemptTime", "") not in _UNSET for one in components):
        return Fate.PREEMPTED
    return Fate.TIMED_OUT if fields.get("Reason") == "TimeLimit" else Fate.CANCELLED
