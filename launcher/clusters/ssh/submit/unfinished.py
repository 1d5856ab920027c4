"""Attempts that nobody has written down as handed to their hosts: is somebody at it, or was their submitter killed?"""

from launcher.clusters.keeping.attempt_end import cancelled, write_end
from launcher.rundir.attempts import read_intent, read_plan
from launcher.rundir.durable import write_record
from launcher.rundir.identity import alive
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.locks import locked
from launcher.rundir.records import Handle


def is_unfinished(attempt: AttemptDir) -> bool:
    """Nobody has written down that it was handed over."""
    return not attempt.handle.exists()


def in_hand(attempt: AttemptDir) -> bool:
    """Its submitter lives and is at it, or about to be: one that could not do it has let go of the lock."""
    if alive(read_intent(attempt).created_by) is False:
        return False
    return not attempt.job_lock.exists() or is_locked(attempt)


def is_locked(attempt: AttemptDir) -> bool:
    """Somebody is handing it over, or withdrawing it."""
    if not attempt.job_lock.exists():
        return False
    with locked(attempt.job_lock) as free:
        return free is None


def began(attempt: AttemptDir) -> None:
    """Write down that its hosts were told."""
    write_record(attempt.handle, Handle("ssh", ticket=read_intent(attempt).ticket))


def withdraw(run: RunDir, attempt: AttemptDir) -> None:
    """It is not to be handed over any more."""
    write_end(run, attempt, cancelled("cancelled before it began"), read_plan(run, attempt.number))
    began(attempt)
