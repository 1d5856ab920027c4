"""Attempts whose submitter was killed before their hosts were told to go: found out, and handed over once."""

from launcher.clusters.keeping.attempt_end import cancelled, write_end
from launcher.clusters.ssh import pool
from launcher.clusters.ssh.submit.handover import Handover, alone
from launcher.errors import Unreachable
from launcher.rundir.attempts import read_intent, read_plan
from launcher.rundir.durable import write_record
from launcher.rundir.identity import alive
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import Handle


def is_unfinished(attempt: AttemptDir) -> bool:
    """Nobody has written down that it was handed over."""
    return not attempt.handle.exists()


def in_hand(attempt: AttemptDir) -> bool:
    """Its submitter lives and is at it, or about to be: one that could not do it has let go of the lock."""
    if alive(read_intent(attempt).created_by) is False:
        return False
    if not attempt.job_lock.exists():
        return True
    with alone(attempt) as free:
        return not free


def began(attempt: AttemptDir) -> None:
    """Its hosts were told after all."""
    write_record(attempt.handle, Handle("ssh", ticket=read_intent(attempt).ticket))


def hand_over(run: RunDir, attempt: AttemptDir) -> None:
    """Do what its submitter could not, alone with it. Raises LaunchError where that cannot be done now."""
    ssh = read_plan(run, attempt.number).spec.ssh
    found, troubles = pool.surveyed(ssh)
    if troubles and not found:
        raise Unreachable(*(line for one in troubles.values() for line in one.lines))
    Handover(run.path, found, agent=ssh.agent).carry_out(attempt.number)


def withdraw(run: RunDir, attempt: AttemptDir) -> None:
    """It is not to be handed over any more."""
    end = cancelled("cancelled before it began")
    write_end(run, attempt, end, read_plan(run, attempt.number))
    began(attempt)
