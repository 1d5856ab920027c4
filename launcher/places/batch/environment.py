"""Run a job's command with the environment that its user had at submit, read from a file, plus what the scheduler sets
in the job. This is for schedulers that show a job's environment to all users.

    python -m launcher.programs environment [--warn-after SECONDS] COMMAND ...      in the batch script
    python -m launcher.programs environment --packed TEXT      by qrsh, which quotes badly

Without this, passwords in the environment would be visible to other users.
"""

import json
import math
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from launcher.node.environment import cleaned
from launcher.run.durable import write_bytes

WITH_IT = (sys.executable, "-P", "-m", "launcher.programs", "environment")
FILE = "JOB_LAUNCH_ENVIRONMENT"  # the variable that names it
HOST = "JOB_LAUNCH_HOST"  # on other hosts than the first, what the scheduler calls this one
# A scheduler gives these variables values of its own that do not depend on the job.
_PLAIN = frozenset({"PATH", "SHELL", "LANG", "TERM", "SHLVL", "PWD", "_"})

# What a submitter in a job has of that one: not every job gets values of its own that would replace these.
_ANOTHER_JOBS = frozenset({"PE", "PE_HOSTFILE", "JOB_ID", "NHOSTS", "NSLOTS", "QUEUE", FILE, HOST})
_ANOTHER_JOBS_PREFIXES = (
    "SGE_TASK_", "SGE_HGR_", "SGE_SHGR_", "SGE_JOB_",
    "PBS_O_", "PBS_JOB", "PBS_ARRAY_", "PBS_NODE", "PBS_TASKNUM", "PBS_MOMPORT", "PBS_QUEUE", "PBS_ENVIRONMENT",
    "LSB_JOB", "LSB_HOSTS", "LSB_MCPU_HOSTS", "LSB_DJOB_", "LSB_EXEC", "LSB_QUEUE", "LSB_BATCH_JID", "LSB_TASK",
    "LSB_OUTPUTFILE", "LSB_ERRORFILE", "LSB_SUB_", "LSB_EXIT_", "LSB_AFFINITY_", "LS_JOBPID", "LS_SUBCWD", "LS_EXEC",
)  # fmt: skip


def beside(script: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Write the variables in `environ`, without those of a job in which this process runs, to a file beside the script.
    Return the environment for the submitting command: `environ` with one more variable, which names the file.
    """
    file = script.with_suffix(".environment")
    save(file, environ)
    return {**environ, FILE: str(file)}


def environment_prefix(warn_after_s: float | None) -> tuple[str, ...]:
    """Return the words to put before the job's command, by which it runs with the environment saved at submit. With
    `warn_after_s`, the command also gets SIGALRM so many seconds after it starts, as a warning that its time ends.
    """
    return WITH_IT if warn_after_s is None else (*WITH_IT, "--warn-after", str(max(1, math.ceil(warn_after_s))))


def save(file: Path, environ: Mapping[str, str]) -> None:
    """Write the environment to a file that only the user can read, without variables that belong to a job in which this
    process runs.
    """
    kept = {name: value for name, value in cleaned(environ).items() if not _belongs_to_a_job(name)}
    write_bytes(file, json.dumps(kept).encode())


def _belongs_to_a_job(name: str) -> bool:
    """Return whether the variable, such as JOB_ID or one that begins with `PBS_JOB`, describes a job in which this
    process runs, so that a job which it submits must not inherit it.
    """
    return name in _ANOTHER_JOBS or name.startswith(_ANOTHER_JOBS_PREFIXES)


def packed(file: str, host: str, command: Sequence[str]) -> tuple[str, ...]:
    """Return a command for the host `host` that runs `command` there with the environment saved in `file`. The three
    arguments are encoded in it as one hexadecimal word, which no shell splits or changes.
    """
    return (*WITH_IT, "--packed", json.dumps([file, host, *command]).encode().hex())


def main(argv: Sequence[str]) -> NoReturn:
    """Replace this process by the command in `argv`, with the environment saved in the file that the variable
    JOB_LAUNCH_ENVIRONMENT names. This process's own variables, which the scheduler set, replace saved ones, except
    general ones such as PATH.

    After `--warn-after SECONDS` the command gets SIGALRM when this time is over. After `--packed`, `argv` has one
    hexadecimal word with that file's name, the host's name and the command.
    """
    command = [*argv]
    if command[0] == "--packed":
        os.environ[FILE], os.environ[HOST], *command = json.loads(bytes.fromhex(command[1]))
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)  # the batch process gets them too, and decides
    if command[0] == "--warn-after":
        signal.alarm(int(command[1]))  # which the command gets
        command = command[2:]
    saved = json.loads(Path(os.environ[FILE]).read_bytes())
    of_the_job = {name: value for name, value in os.environ.items() if name not in _PLAIN}
    os.execvpe(command[0], command, {**saved, **of_the_job})  # noqa: S606 - it is what it is for
