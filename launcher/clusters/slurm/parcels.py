"""What is handed to Slurm as one job: one attempt, or several runs' first attempts as an array. Exactly once.

intent (fsync) ─ lock ─ which cluster (fsync) ─ sbatch, which holds the lock too ─ job id (fsync) ─ unlock
Whoever finds an intent without a job id, and the lock free, knows that no sbatch is under way: Slurm has a job with
this ticket in its comment, or it has none.
"""

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.clusters.slurm.queries.jobs import read_jobs, read_submitted, squeue_jobs
from launcher.clusters.slurm.reach import ask
from launcher.clusters.slurm.script import Ticket, batch_command, options, render
from launcher.clusters.slurm.which_cluster import ThisCluster
from launcher.errors import LaunchError, NotStarted
from launcher.plan.model import Plan
from launcher.rundir.attempts import read_intent, read_plan
from launcher.rundir.avoided import avoided
from launcher.rundir.durable import create_record, read_record, write_bytes
from launcher.rundir.layout import AttemptDir, BatchDir, RunDir
from launcher.rundir.records import Handle

_SUBMIT_S = 60.0
_LOCK = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Parcel:
    """One job to be: its ticket, what its script is told, and whose attempts it carries."""

    ticket: Ticket
    where: Path  # the run's folder, or the array's
    script: Path
    lock: Path
    site: Path
    members: tuple[tuple[RunDir, AttemptDir], ...]  # of an array: by index


def parcel_of(run: RunDir, attempt: AttemptDir) -> Parcel:
    """The parcel that this attempt is, or is part of."""
    intent = read_intent(attempt)
    if not intent.batch:
        return Parcel(
            Ticket(intent.ticket), run.path, attempt.job_script, attempt.job_lock, attempt.site, ((run, attempt),)
        )
    batch = BatchDir(Path(intent.batch))
    runs = [RunDir(Path(path)) for path in read_record(batch.runs, list[str]) or []]
    members = tuple((one, one.attempt(1)) for one in runs)
    return Parcel(Ticket(intent.ticket, len(members)), batch.path, batch.script, batch.lock, batch.site, members)


def run_of_element(where: Path, index: str | None) -> RunDir | None:
    """The run of this element of an array, or the run itself; None where it was never made."""
    batch = BatchDir(where)
    if index is None or not batch.runs.exists():
        return RunDir(where)
    run = RunDir(Path((read_record(batch.runs, list[str]) or [])[int(index)]))
    return run if run.plan.exists() else None


def hand_over(parcel: Parcel, *, again: bool = False) -> bool:
    """Have one job for this parcel. `again`: somebody may have submitted it before, so squeue is asked first.

    False where somebody is at it right now. Raises NotStarted where Slurm refuses, Unreachable where nobody can tell.
    """
    with _locked(parcel.lock) as lock:
        if lock is None:
            return False
        missing = [(index, attempt) for index, (run, attempt) in enumerate(parcel.members) if _is_open(run, attempt)]
        if not missing:
            return True
        ThisCluster().note(parcel.site)
        job = (_known_id(parcel) if again else None) or _submit(parcel, lock)
        for index, attempt in missing:
            name = job if parcel.ticket.array is None else f"{job}_{index}"
            with contextlib.suppress(FileExistsError):  # the job has started already, and says so itself
                create_record(attempt.handle, Handle("slurm", job_id=name, ticket=parcel.ticket.text))
    return True


def script_of(plan: Plan, ticket: Ticket, where: Path, avoid: Sequence[str]) -> str:
    """The text that sbatch gets. `where`: what the batch process is told, and where its own words go."""
    return render(options(plan, ticket, _output(ticket, str(where)), avoid), batch_command(sys.executable, str(where)))


def _output(ticket: Ticket, folder: str) -> str:
    """Where the batch process's words go before it has a log of its own."""
    if any(sign in folder for sign in "\\\n\r"):
        return os.devnull  # neither sbatch nor the patterns of its file names have a way to write these
    name = "slurm-%j.out" if ticket.array is None else "slurm-%A_%a.out"
    return f"{folder.replace('%', '%%')}/{name}"  # in a folder's own name a % is no pattern


def _is_open(run: RunDir, attempt: AttemptDir) -> bool:
    return run.plan.exists() and not attempt.handle.exists() and not attempt.end.exists()


def _known_id(parcel: Parcel) -> str | None:
    """What squeue says now: an answer from before we had the lock may be older than the job."""
    known = read_jobs(ask(squeue_jobs()).out)
    job = next((job for job in known if parcel.ticket.comment in job.comment.split()), None)
    if job is None:
        return None
    return job.id if job.array is None else job.array[0]


def _submit(parcel: Parcel, lock: int) -> str:
    run, attempt = next((run, attempt) for run, attempt in parcel.members if run.plan.exists())
    plan = read_plan(run, attempt.number)
    script = script_of(plan, parcel.ticket, parcel.where, [blame.host for blame in avoided(run)])
    write_bytes(parcel.script, script.encode())
    environ = {name: value for name, value in os.environ.items() if name not in plan.secrets}
    answer = ask(["sbatch", "--parsable", str(parcel.script)], limit_s=_SUBMIT_S, environ=environ, pass_fds=[lock])
    if answer.code != 0:
        raise NotStarted(*_refusal(answer.err))
    submitted = read_submitted(answer.out)
    if submitted is None:
        raise LaunchError(f"sbatch --parsable: expected the number of a job, got {answer.out.strip()[:200]!r}")
    return submitted


def _refusal(text: str) -> list[str]:
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in text.strip().splitlines()]
    return [f"Slurm refuses the job: {lines[-1] if lines else 'it does not say why'}", *lines[:-1]]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    """Hold the lock; None where somebody else does. A child that inherits it holds it as long as it lives."""
    fd = os.open(path, _LOCK, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield fd
    finally:
        os.close(fd)
