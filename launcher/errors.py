"""Every error that a user can cause, and every exit code that `launch` gives.

LaunchError
├── BadInput        2   the spec or the command line is wrong; carries one line per problem
│   └── NotStarted  2   the cluster refuses the job; nothing was started
├── NoSuchRun       3   no run has this name, or several have it
├── Refused         4   the run's state does not allow what was asked; or the cluster refuses some of several runs
├── Damaged         6   a record of the run is damaged (run/durable.py)
├── NothingToDo     0   the requested state exists already; nothing was started
├── Unreachable     5   the cluster does not answer; nothing is known to have failed
└── Fenced          22  a newer attempt of this run exists; this one must not write
"""

import os
from enum import IntEnum

Runs = tuple[tuple[str, str], ...]  # ids and folders


class Exit(IntEnum):
    """The exit codes of `launch`, explained in `MEANING`. Codes from 10 to 24 say how a run ended; 75 is for a rank
    that was asked to stop and has saved, and 130 and 141 are for a command that was interrupted.
    """

    OK = 0
    INTERNAL = 1
    BAD_INPUT = 2
    NO_SUCH_RUN = 3
    REFUSED = 4
    UNREACHABLE = 5
    DAMAGED = 6
    DIFFERS = 7
    USER_ERROR = 10
    OUT_OF_MEMORY = 11
    KILLED = 12
    HANG = 13
    COMMUNICATION = 14
    NODE_LOST = 15
    PREEMPTED = 16
    TIME_LIMIT = 17
    LAUNCHER_FAULT = 18
    NO_PROGRESS = 19
    CANCELLED = 20
    LOST = 21
    FENCED = 22
    DISK = 23
    NO_CHECKPOINT = 24
    RESUME_ME = 75
    INTERRUPTED = 130
    PIPE_CLOSED = 141  # as a shell shows a process that SIGPIPE ended


# When each is given; `launch help exit-codes` is made of it.
MEANING = {
    Exit.OK: "the command worked; the run succeeded",
    Exit.INTERNAL: "a fault of launch: one line, and with `LAUNCH_DEBUG=1` the traceback too",
    Exit.BAD_INPUT: "the spec or the command line is wrong; nothing was started",
    Exit.NO_SUCH_RUN: "no run has this name, or several have it",
    Exit.REFUSED: "the command is not possible now: the run's state does not allow it, `wait --timeout` has expired, "
    "the doctor found a problem, a key was not trusted, a disk, a folder or a limit of this machine prevents it, or "
    "`prove` could kill or compare nothing",
    Exit.UNREACHABLE: "the cluster does not answer; no failure is known",
    Exit.DAMAGED: "a record is damaged, or with `checkpoints --verify` a checkpoint",
    Exit.DIFFERS: "for `launch prove`: a killed training differs from the undisturbed one",
    Exit.USER_ERROR: "an exception in your code, or an exit code of your code",
    Exit.OUT_OF_MEMORY: "the memory of the machine or of a GPU was full",
    Exit.KILLED: "a signal ended ranks more often than `recovery` allows",
    Exit.HANG: "ranks neither reported nor printed for `recovery.hang_after`",
    Exit.COMMUNICATION: "ranks lost the connection to each other",
    Exit.NODE_LOST: "a node was lost or unfit, and too few are left",
    Exit.PREEMPTED: "the cluster took its nodes back",
    Exit.TIME_LIMIT: "the time limit `resources.time` was reached",
    Exit.LAUNCHER_FAULT: "a fault of launch; please report it",
    Exit.NO_PROGRESS: "several restarts without a newer checkpoint",
    Exit.CANCELLED: "a person cancelled the run",
    Exit.LOST: "the run ended without a record of its end",
    Exit.FENCED: "a newer start of the same run writes its checkpoints",
    Exit.DISK: "a disk was full or failed",
    Exit.NO_CHECKPOINT: "no complete checkpoint is left on the hosts that are reachable",
    Exit.RESUME_ME: "a rank has saved and is to be resumed, because launch or the cluster asked it to stop, or because "
    "it reported `asked_to_stop` (`launch help own-job`); otherwise 75 is a `user_error`",
    Exit.INTERRUPTED: "Ctrl-C; the run itself continues",
    Exit.PIPE_CLOSED: "the reader of stdout has closed it",
}


class LaunchError(Exception):
    """An error whose `lines` tell the user what went wrong, where, and what to do; lower case, no final stop.
    `exit_code` is that of `launch`, and `runs` are (id, folder) of runs that a failed submit has created nevertheless.
    """

    exit_code: Exit = Exit.INTERNAL
    runs: Runs = ()  # (id, folder) of runs that a failed submit has created nevertheless

    def __init__(self, *lines: str) -> None:
        super().__init__(*lines)
        self.lines = lines

    def __str__(self) -> str:
        return "\n".join(self.lines)


class BadInput(LaunchError):
    """Raised if the spec or the command line is wrong; has one line per problem."""

    exit_code = Exit.BAD_INPUT


class NotStarted(BadInput):
    """Raised if a cluster refuses a job, or its hosts cannot take it; nothing of the job was started."""


class NoSuchRun(LaunchError):
    """Raised if no run has the given name, or if several have it."""

    exit_code = Exit.NO_SUCH_RUN


class Refused(LaunchError):
    """Raised if the run's state does not allow what was asked."""

    exit_code = Exit.REFUSED


class NotSupported(Refused):
    """Raised if the kind of cluster does not support an operation."""


class RunFailed(LaunchError):
    """Raised if a run that called a function has nothing to return: the run failed, or what the function returned or
    raised is missing, damaged or cannot be rebuilt here. If the run failed, `exit_code` is that of the run.
    """


class NothingToDo(LaunchError):
    """Raised if the requested state exists already, so that nothing is left to do."""

    exit_code = Exit.OK


class Unreachable(LaunchError):
    """Raised if a cluster or host does not answer, or gives no answer that can be used. The run itself may be fine, so
    the same command may succeed later.
    """

    exit_code = Exit.UNREACHABLE


class Fenced(LaunchError):
    """Raised if a newer attempt of the run exists, so that this one must not write."""

    exit_code = Exit.FENCED


def with_runs(error: LaunchError | OSError, runs: Runs, hint: str) -> LaunchError:
    """Return the error of a submission that failed half-way, with `hint` and with the `runs` (id, folder) that exist
    all the same.

    Its text and exit code are those of `error`, but a BadInput, which would say that nothing was started, becomes
    Refused.
    """
    lines = error.lines if isinstance(error, LaunchError) else (said_by_the_system(error),)
    kind = Refused if isinstance(error, BadInput) else Unreachable if isinstance(error, Unreachable) else LaunchError
    told = kind(*lines, f"hint: {hint}")
    if isinstance(error, LaunchError) and error.exit_code != Exit.BAD_INPUT:
        told.exit_code = error.exit_code
    told.runs = runs
    return told


def some_exist(error: LaunchError | OSError, before: Runs, wanted: int) -> LaunchError:
    """Return the error of a submit of `wanted` runs, of which those in `before` had been started when `error` was
    raised; it lists every run that exists.
    """
    runs = (*before, *(error.runs if isinstance(error, LaunchError) else ()))
    return with_runs(error, runs, f"{len(runs)} of {wanted} runs exist all the same: do not submit them again")


def said_by_the_system(error: OSError) -> str:
    """Return an OSError's reason in lower case with its file, such as `/data/runs: no space left on device`."""
    reason = error.strerror or str(error)
    words = f"{reason[:1].lower()}{reason[1:]}"
    return words if error.filename is None else f"{os.fsdecode(error.filename)}: {words}"
