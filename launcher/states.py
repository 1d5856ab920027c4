"""The states of a run, the causes for which its ranks fail, the recovery actions, and the exit code of each cause."""

from enum import StrEnum

from launcher.errors import Exit

VERSION = "0.2.0"  # of the launcher; the package, `launch --version` and the release take it from here
LOCAL = "local"  # the kind of cluster that is this machine, and its name


class Cause(StrEnum):
    """Why ranks failed or a run ended. Each cause that ranks can fail for has its own budget and back-off in `recovery`
    of the spec; the last three end a run and have none.
    """

    USER_ERROR = "user_error"
    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"
    HANG = "hang"
    COMMUNICATION = "communication"
    NODE_LOST = "node_lost"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    LAUNCHER_FAULT = "launcher_fault"
    DISK = "disk"
    # These end a run and have no budget.
    NO_PROGRESS = "no_progress"
    NO_CHECKPOINT = "no_checkpoint"
    CANCELLED = "cancelled"


class ErrorKind(StrEnum):
    """How a user's program failed, as a sign whether another start could succeed: an exception of a kind that recurs, a
    PASSING one (connection, time-out), a missing module, wrong arguments, or another exit code.
    """

    EXCEPTION = "exception"  # of a type that recurs
    PASSING = "passing"  # of a type that may not recur: a connection, a time-out, a file system
    MODULE = "module"  # a module that it imports is missing
    USAGE = "usage"  # it exited by itself with a message or a code, as for a wrong argument
    OTHER = "other"  # an exit code without a known reason


class Action(StrEnum):
    """The recovery action after a failure: REGROUP starts a new generation in this attempt, REQUEUE ends the attempt
    and opens another, END ends the run.
    """

    REGROUP = "regroup"  # a new generation in this attempt
    REQUEUE = "requeue"  # this attempt ends, and a new one is opened
    END = "end"  # the run is over


class State(StrEnum):
    """The state of a run, as `launch status` shows it. REGROUPING: ranks are restarted after a failure; INTERRUPTED:
    too few hosts of a pool are left; LOST: its processes are gone without a recorded end; UNKNOWN: its cluster does not
    answer.
    """

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    REGROUPING = "regrouping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # too few hosts of a pool are left to continue without a user's decision
    CANCELLED = "cancelled"
    LOST = "lost"
    UNKNOWN = "unknown"

    @property
    def ended(self) -> bool:
        """Whether the state is one of an ended run: no process of it is left, and none will start by itself."""
        return self in (State.SUCCEEDED, State.FAILED, State.INTERRUPTED, State.CANCELLED, State.LOST)


def exit_of(cause: Cause) -> Exit:
    """Return the exit code of a run that ended for `cause`."""
    return Exit[cause.name]
