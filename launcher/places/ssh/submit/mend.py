"""Attempts whose submitter was killed before their hosts were told to go are handed over, once."""

from collections.abc import Sequence

from launcher.errors import LaunchError, Unreachable
from launcher.places.ssh import pool
from launcher.places.ssh.run_hosts import handed_to
from launcher.places.ssh.submit import unfinished
from launcher.places.ssh.submit.handover import PoolHandover
from launcher.places.ssh.submit.look import Asked, each
from launcher.places.ssh.submit.report import ask_reports, knowing
from launcher.remote.parallel import failures
from launcher.run.attempts import read_plan
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.locks import locked


def mend(wanted: Sequence[Asked]) -> dict[str, LaunchError]:
    """Hand over those whose submitter is gone; gives, by the attempt's folder, why it could not be done."""
    return failures(each(wanted, _mend))


def _mend(run: RunDir, attempt: AttemptDir) -> None:
    """Do what its submitter could not, unless its hosts were told to go after all. Raises LaunchError where that cannot
    be done now; where hosts do not answer nobody knows, and nothing is done."""
    if unfinished.in_hand(attempt):
        return
    with locked(attempt.job_lock) as alone:
        if alone is None or not unfinished.is_unfinished(attempt):
            return
        said = ask_reports(run, handed_to(run, attempt))
        if any(one.has_begun(attempt) for one in knowing(said)):
            unfinished.began(attempt)
        elif not failures(said):
            _hand_over(run, attempt)


def _hand_over(run: RunDir, attempt: AttemptDir) -> None:
    ssh = read_plan(run, attempt.number).spec.ssh
    found, troubles = pool.surveyed(ssh)
    if troubles and not found:
        raise Unreachable(*(line for one in troubles.values() for line in one.lines))
    PoolHandover(run.path, found, agent=ssh.agent).carry_out(attempt.number)
