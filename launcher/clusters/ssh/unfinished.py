"""Attempts whose submitter was killed before their hosts were told to go: found out, and handed over once."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from launcher.clusters.last_word import cancelled, write_end
from launcher.clusters.ssh import pool
from launcher.clusters.ssh.handover import Handover
from launcher.errors import Unreachable
from launcher.rundir.attempts import read_intent, read_plan
from launcher.rundir.durable import write_record
from launcher.rundir.identity import alive
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import Handle


def is_unfinished(attempt: AttemptDir) -> bool:
    """Nobody has written down that it was handed over."""
    return not attempt.handle.exists()


def submitter_lives(attempt: AttemptDir) -> bool:
    return alive(read_intent(attempt).created_by) is not False


def began(attempt: AttemptDir) -> None:
    """Its hosts were told after all."""
    write_record(attempt.handle, Handle("ssh", ticket=read_intent(attempt).ticket))


def hand_over(run: RunDir, attempt: AttemptDir) -> None:
    """Do what its submitter could not, alone with it. Raises LaunchError where that cannot be done now."""
    ssh = read_plan(run, attempt.number).spec.ssh
    found, troubles = pool.surveyed(ssh)
    if troubles and not found:
        raise Unreachable(*(line for one in troubles.values() for line in one.lines))
    Handover(run.path, found, agent=ssh.agent).go(attempt.number)


def withdraw(run: RunDir, attempt: AttemptDir) -> None:
    """It is not to be handed over any more."""
    end = cancelled("cancelled before it began")
    write_end(run, attempt, end, read_plan(run, attempt.number))
    began(attempt)


@contextmanager
def alone(attempt: AttemptDir) -> Iterator[bool]:
    """True for one process at a time: it asks whether something is to be done, and does it."""
    lock = os.open(attempt.job_lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(lock)
