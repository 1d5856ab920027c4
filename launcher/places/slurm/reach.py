"""Run Slurm's commands in an environment without settings of other jobs, and recognise output that means that no
controller answered.
"""

import os
from collections.abc import Mapping, Sequence

from launcher.errors import Unreachable
from launcher.node.environment import cleaned
from launcher.places.batch.client import Answer, Programs, error_lines

CALLED = "Slurm"

# On top of what a rank may not inherit: each client has defaults of its own in variables.
_CLIENT_PREFIXES = (
    "SQUEUE_", "SACCT_", "SACCTMGR_", "SCANCEL_", "SCONTROL_", "SINFO_", "SPRIO_", "SSHARE_", "SSTAT_", "SPANK_",
    "_SLURM_",
)  # fmt: skip
# Of the indices of an array that wait squeue would show the first 64 characters alone, and leave out the rest.
_FOR_ANSWERS = {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
# What a client prints if its request was not received, or may not have been.
_NO_ANSWER = (
    "munge encode failed",
    "unable to contact slurm controller",
    "socket timed out",
    "unexpected message received",  # the only output of scontrol requeue if the controller is down
    "controller not responding",
    "controller in standby mode",
    "controller is in standby mode",
    "protocol authentication error",
    "could not establish a configuration source",
    "zero bytes were transmitted or received",
    "incompatible versions of client and server",
    "problem talking to the database",
    "unable to connect to database",
    "connection refused",
    "connection reset by peer",
    "connection timed out",
    "no route to host",
    "network is unreachable",
)


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables that change what Slurm's commands do: those of a job in which this
    process runs, and those by which a user sets defaults for the commands.
    """
    return {name: value for name, value in cleaned(environ).items() if not name.startswith(_CLIENT_PREFIXES)}


def _readable_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without variables that change what Slurm's commands do (`clean_environment`), plus settings by
    which they write times and sizes in the format that is parsed here.
    """
    return clean_environment(environ) | _FOR_ANSWERS


_CONTROLLER = Programs(CALLED, "controller", _NO_ANSWER, _readable_environment)
_DATABASE = Programs(CALLED, "accounting database", _NO_ANSWER, _readable_environment)
_SUBMITTING = Programs(CALLED, "controller", _NO_ANSWER, clean_environment)  # a job inherits what sbatch gets


def ask(
    argv: Sequence[str],
    *,
    limit_s: float = 10.0,
    environ: Mapping[str, str] | None = None,
    stdin: str | None = None,
    pass_fds: Sequence[int] = (),
    in_job: bool = False,
) -> Answer:
    """Run a command of Slurm and return its output. Raise Unreachable if it is missing or takes longer than
    `limit_s`, or if no controller answered it.

    The command gets `environ` (None: this process's variables), the text `stdin`, and the descriptors `pass_fds`. With
    `in_job` this process's own job may be ending, and the command ignores the SIGTERM that is sent to all its
    processes.
    """
    program = os.path.basename(argv[0])
    is_submit = program == "sbatch" and "--test-only" not in argv
    asked = _DATABASE if program == "sacct" else _SUBMITTING if is_submit else _CONTROLLER
    answer = asked.ask(argv, limit_s=limit_s, environ=environ, stdin=stdin, pass_fds=pass_fds, in_job=in_job)
    _check(program, answer)
    return answer


def _check(program: str, answer: Answer) -> None:
    """Raise Unreachable if `program` is squeue or sacct and failed, because its missing rows do not mean that jobs have
    ended. A failure of another program raises nothing.

    An unknown job id for squeue, and a cluster without accounting for sacct, are no failures. If the controller does
    not know the user, squeue only prints an error and exits with 0, which counts as a failure.
    """
    lines = error_lines(program, answer.err)
    known = {"squeue": "invalid job id specified", "sacct": "accounting storage is disabled"}.get(program)
    stranger = [line for line in lines if program == "squeue" and "invalid user" in line.lower()]
    if stranger or (answer.code > 0 and known is not None and known not in answer.err.lower()):
        raise Unreachable(f"{program} cannot tell: {(stranger or lines[-1:] or [f'exit code {answer.code}'])[0]}")
