"""Continue, or end, a local run whose supervisor and agents were all killed (a lost run), when the next command reads
its status.

the run is lost ─┬─ all ranks had finished, by their exits on disk ─► its end is written: succeeded
                 ├─ it was asked to end ────────────────────────────► its end is written: cancelled
                 ├─ nobody had taken the attempt up ────────────────► a supervisor for this attempt
                 └─ else: a failure, and what the policy says ──────► a supervisor for the next one, or an end
"""

import contextlib
from collections.abc import Iterator

from launcher.copies.memory_tier import close_tier
from launcher.errors import BadInput, Refused
from launcher.places.local.shared_zygote import supervisor_of
from launcher.plan.model import Plan
from launcher.run.attempts import new_attempt, read_intent, read_plan
from launcher.run.durable import read_record, readable
from launcher.run.identity import boot_id, host
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.locks import locked
from launcher.run.ownership import is_ours_alone
from launcher.run.records import AttemptEnd, Handle, ProcessId
from launcher.states import LOCAL, Cause, State
from launcher.status.derive import derive
from launcher.status.facts import read_facts
from launcher.supervisor.attempt_end import write_failure, write_known_end


def carry_on(run: RunDir, attempt: AttemptDir) -> None:
    """Write the end of a lost attempt if the records show it, else start a supervisor that continues the run.

    Do nothing if the machine was rebooted since: a user decides then. Raise LaunchError or OSError if a record that is
    needed cannot be read or written.
    """
    with _lost(run, attempt) as plan:
        if plan is None:
            return
        if not attempt.started.exists():
            supervisor_of(run.path).start(attempt.number)
            return
        text = "the supervisor and the agents were killed"
        end = write_known_end(run, attempt, plan) or write_failure(run, attempt, plan, Cause.NODE_LOST, text)
        if end.state is not State.QUEUED:
            close_tier(run.path, attempt.number)
            return
        try:
            following, _ = new_attempt(run, plan.cluster, "requeue", end.cause, after=attempt.number)
        except Refused:
            return  # a person has resumed it meanwhile
        supervisor_of(run.path).start(following.number)


def finish(run: RunDir, attempt: AttemptDir) -> None:
    """Write the end of a lost attempt whose ranks had all finished, or that was asked to end; else do nothing.

    Raise LaunchError or OSError if a record that is needed cannot be read or written.
    """
    with _lost(run, attempt) as plan:
        if plan is not None and write_known_end(run, attempt, plan) is not None:
            close_tier(run.path, attempt.number)


@contextlib.contextmanager
def _lost(run: RunDir, attempt: AttemptDir) -> Iterator[Plan | None]:
    """Yield the plan of a lost attempt, while a lock keeps other processes from continuing it.

    Yield None if this process must not continue it: it is not lost, it did not run here since boot, another process has
    the lock, or the attempt is only a part of a run that another process leads: a role beside the main one, or a host's
    part on another kind of cluster. Raise BadInput if other users own or can write the run's folder.
    """
    if not _ran_here(attempt):
        yield None
        return
    with locked(attempt.job_lock) as alone:
        if alone is None or not _is_lost(run, attempt):
            yield None  # another process was quicker
            return
        if not is_ours_alone(run.path.resolve()):
            raise BadInput(f"{run.path}: other users own it or can write to it: the code in it may be theirs")
        read_record(attempt.end, AttemptEnd)  # if it is damaged, the run has ended in an unknown way
        plan = read_plan(run, attempt.number)
        ours = plan.cluster_kind == LOCAL and not plan.is_beside_main  # else: a part of a run that others lead
        yield plan if ours else None


def _ran_here(attempt: AttemptDir) -> bool:
    """Return whether the attempt's supervisor, or its submitter if no supervisor had started, ran on this machine since
    its last boot.
    """
    handle = readable(attempt.handle, Handle)
    supervisor = handle.supervisor if handle is not None else readable(attempt.started, ProcessId)
    process = supervisor or read_intent(attempt).created_by
    return (process.host, process.boot_id) == (host(), boot_id())


def _is_lost(run: RunDir, attempt: AttemptDir) -> bool:
    """Return whether the attempt is the run's newest and the run's state is lost: no end record, and no process."""
    facts = read_facts(run.path)
    return facts.attempt == attempt.number and derive(facts).state is State.LOST
