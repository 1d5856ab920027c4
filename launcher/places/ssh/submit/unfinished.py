"""Attempts that nobody has written down as handed to their hosts: is somebody at it, or was their submitter killed?"""

import os

from launcher.run.attempts import read_intent, read_plan
from launcher.run.durable import write_record
from launcher.run.identity import alive
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.locks import locked
from launcher.run.records import Handle
from launcher.supervisor.attempt_end import cancelled, write_end


def is_unfinished(attempt: AttemptDir) -> bool:
    """Nobody has written down that it was handed over."""
    return not attempt.handle.exists()


def in_hand(attempt: AttemptDir) -> bool:
    """Its submitter lives and is at it, or about to be: one that could not do it has let go of it."""
    lives = alive(read_intent(attempt).created_by)
    if lives is False:
        return False
    try:
        has_let_go = attempt.job_lock.stat().st_size > 0
    except FileNotFoundError:
        return True
    # Of one on another machine nobody can tell whether it was killed before it let go: a free lock has to do.
    return is_locked(attempt) or (lives is True and not has_let_go)


def let_go(lock: int | None) -> None:
    """Its submitter is at it no more. A lock that is free says so not: its file is there before it is locked."""
    if lock is not None:
        os.ftruncate(lock, 1)  # works where a disk is full, too


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
