"""Classify how ranks ended: the cause of each failure, and the rank that failed first. Pure functions."""

import os
import re
import signal
from collections.abc import Callable, Sequence
from operator import attrgetter

from launcher.errors import Exit
from launcher.health.evidence import signal_name
from launcher.run.patience import DISK_ERRORS
from launcher.run.records import Raised, RankExit
from launcher.states import Cause, ErrorKind

_MEMORY = re.compile(
    r"\bMemoryError\b|\bOutOfMemoryError\b|CUDA out of memory|HIP out of memory|DefaultCPUAllocator: can't allocate",
)
# What torch.distributed raises of its own, and how C++ reports it before an abort.
_OF_TORCH_DISTRIBUTED = re.compile(
    r"(?:torch\.\S*|c10::|c10d::)Dist(?:Backend|Network|Store|Queue\w*)?Error|gloo::(?:Io|Timeout)Exception",
)
# What torch's C++ raises comes as a RuntimeError: these are the words of NCCL and gloo in it for a peer that is gone.
_OF_A_BACKEND = re.compile(
    r"\bGloo connectFullMesh\b|\bNCCL (?:[Ee]rror|watchdog|communicator)\b|\bnccl[A-Z]\w+Error\b"
    r"|Application timeout caused pair closure",
)
# A place in the sources of gloo, of a process group or of the store proves nothing by itself: tensors that do not fit
# each other, or no memory, have one too. With these words after it, it is about a connection.
_IN_A_BACKEND = re.compile(
    r"\b(?:gloo/[\w/.-]+\.(?:cc|h)|(?:ProcessGroup\w+|TCPStore\w*)\.[ch]pp)\b.*"
    r"(?:[Cc]onnect|\b(?:closed|reset|refused|unreachable)\b|[Tt]ime[d -]*out|[Bb]roken pipe|\b[Rr]emote\b)",
)
# These are words that others have too.
_OF_ANY_SOCKET = re.compile(
    r"Connection (?:closed|reset) by (?:remote )?peer|\bpeer closed\b|[Bb]roken pipe|Connection (?:refused|timed out)"
    r"|Socket Timeout|client socket has (?:timed out|failed)"
    r"|Timed out (?:after|waiting)\b.*\b(?:clients?|recv|send|operation|ranks?)\b",
)
_SOCKET_ERRORS = frozenset((
    "ConnectionError", "ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError", "BrokenPipeError",
    "TimeoutError", "socket.timeout", "EOFError",
))  # fmt: skip
# What another start may not meet again, by the last part of the type's name. Named one by one: most errors of the file
# system (a missing file, a permission) are as permanent as any other.
PASSING = frozenset((
    "ConnectionError", "ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError", "BrokenPipeError",
    "ConnectError", "ProxyError", "RemoteDisconnected", "IncompleteRead", "ProtocolError", "SSLError", "URLError",
    "gaierror", "herror", "timeout", "Timeout", "TimeoutError", "ConnectTimeout", "ReadTimeout", "ConnectTimeoutError",
    "ReadTimeoutError", "PoolTimeout", "OSError", "IOError", "BlockingIOError", "InterruptedError",
))  # fmt: skip
_MODULE = frozenset({"ModuleNotFoundError", "ImportError"})
_CLUSTERS = (10, 12, 15)  # SIGUSR1, SIGUSR2, SIGTERM: what batch systems send to all processes of a job
_USAGE_CODE = 2  # of argparse, click, getopt's users and most shells
# What Python raises; what torch's C++ does, and the trainer where no save succeeds, have only the system's words.
_OF_A_DISK = re.compile(
    rf"^OSError: \[Errno (?:{'|'.join(map(str, sorted(DISK_ERRORS)))})\]"
    rf"|^(?:RuntimeError|(?:[\w.]+\.)?SaveFailed): .*\b(?:{'|'.join(map(os.strerror, sorted(DISK_ERRORS)))})\b",
    re.IGNORECASE,
)
_MANNER: Callable[[RankExit], object] = attrgetter("code", "signal", "error", "where", "raised", "oom", "hung")
_TYPE = re.compile(r"[A-Za-z_][\w.]*(?:::\w+)*(?=: |$)")


def failed(end: RankExit) -> bool:
    """Return True if the rank failed: it had not reported that it was done, and it was killed by a signal or its exit
    code is not 0.
    """
    return not end.done and end.code != 0


def finished(end: RankExit) -> bool:
    """Return True if the rank did all its work; a rank that exits with 0 because it was asked to stop did not."""
    return end.done or (end.code == 0 and not end.stopping)


def fenced(end: RankExit) -> bool:
    """Return True if the rank stopped because a newer attempt owns the checkpoints, which is no failure and leads to no
    restart.
    """
    return end.fenced and not end.done


def classify(end: RankExit) -> Cause:
    """Return the cause of one rank's failure, from its exit code or signal, the exceptions that it raised, and whether
    the kernel killed it for memory or the coordinator for a hang.

    Exit code 75 counts as a preemption only if the rank was asked to stop, as a program may use that code for anything.
    """
    text = end.error or ""
    if end.hung:
        return Cause.HANG
    if end.not_started:
        return Cause.DISK if _OF_A_DISK.search(end.not_started) else Cause.LAUNCHER_FAULT
    if end.code == Exit.RESUME_ME and (end.stopping or end.asked):
        return Cause.PREEMPTED
    if end.oom or (end.signal is None and _MEMORY.search(text)):
        return Cause.OUT_OF_MEMORY
    raised = end.raised or (Raised(text),)
    if end.signal in (None, signal.SIGABRT) and any(_OF_A_DISK.search(one.line) for one in raised):
        return Cause.DISK
    # An abort that speaks of a peer is a watchdog's or a C++ exception's; any other signal came from elsewhere.
    if end.signal in (None, signal.SIGABRT) and any(map(_is_of_a_peer, raised)):
        return Cause.COMMUNICATION
    if end.signal is not None or end.code is None:
        return Cause.KILLED
    return Cause.USER_ERROR


def foretells_stop(end: RankExit) -> bool:
    """Return whether the rank's end hints that the batch system is stopping the job: it ended by SIGTERM, SIGUSR1 or
    SIGUSR2, or by the exit code of one, or its exit code asks for the run to be resumed. The agents may receive that
    signal only after the rank.
    """
    return end.signal in _CLUSTERS or (end.code or 0) - 128 in _CLUSTERS or end.code == Exit.RESUME_ME


def is_by_itself(end: RankExit) -> bool:
    """Return whether the rank failed by itself, and not because its connection to another rank did (COMMUNICATION)."""
    return failed(end) and classify(end) is not Cause.COMMUNICATION


def error_kind(end: RankExit) -> ErrorKind:
    """Return the kind of a user error, by which the recovery policy decides whether a restart could help.

    It is judged by the exception's type: PASSING, such as a time-out, a missing MODULE, or any other EXCEPTION. Without
    an exception it is judged by how the rank exited: USAGE, as for wrong arguments, or OTHER.
    """
    names = {_type_name(one.line) for one in end.raised or (Raised(end.error or ""),)} - {""}
    if names & PASSING:
        return ErrorKind.PASSING
    if names & _MODULE:
        return ErrorKind.MODULE
    if names:
        return ErrorKind.EXCEPTION
    return ErrorKind.USAGE if end.left or end.code == _USAGE_CODE else ErrorKind.OTHER


def _type_name(line: str) -> str:
    """Return the bare name of the exception type that begins the line, such as `ReadTimeout` of
    `requests.exceptions.ReadTimeout: ...`, or "" if the line begins with none.
    """
    found = _TYPE.match(line)
    return re.split(r"\.|::", found[0])[-1] if found else ""


def _is_of_a_peer(raised: Raised) -> bool:
    """Return whether the exception is about the connection to another rank, not about a connection of the
    user's own.

    It is if its type is one of torch.distributed or, for a general type, if torch.distributed raised it or its message
    has the words of a communication library.
    """
    found = _TYPE.match(raised.line)
    kind = found[0] if found else ""
    if _OF_TORCH_DISTRIBUTED.fullmatch(kind):
        return True
    in_torch = raised.module.partition(".")[0] == "torch"
    if kind in _SOCKET_ERRORS:
        return in_torch and raised.module.startswith("torch.distributed")
    if kind not in ("RuntimeError", "std::runtime_error", "c10::Error", ""):
        return False
    in_cpp = kind in ("RuntimeError", "") and (in_torch or not raised.module)
    of_a_backend = _OF_A_BACKEND.search(raised.line) or _IN_A_BACKEND.search(raised.line)
    return bool(of_a_backend or (in_cpp and _OF_ANY_SOCKET.search(raised.line)))


def culprit(exits: Sequence[RankExit]) -> RankExit:
    """Return the exit, of those in `exits`, to report as the cause: that of the first rank in them that failed by
    itself, or of a lower rank that failed in the same way: with the same exit code or signal and the same exception.

    A rank that failed only because another rank did, or because it was asked to stop, is chosen only if there is no
    other. Which of several equal failures is recorded first is chance; with the lowest of their ranks the same failure
    names the same rank each time.
    """
    failures = [end for end in exits if failed(end)] or list(exits)
    own = (end for end in failures if not end.stopping and classify(end) is not Cause.COMMUNICATION)
    first = next(own, failures[0])
    return min((first, *(end for end in failures if _is_like(end, first))), key=lambda end: end.rank)


def _is_like(end: RankExit, first: RankExit) -> bool:
    """Return whether the rank of `end` failed like that of `first`, with the same exit code or signal and the same
    exception at the same place, and by itself: not only because it was told to stop.
    """
    by_itself = not end.stopping or (end.code is not None and end.error is not None)
    return by_itself and _MANNER(end) == _MANNER(first)


def describe(end: RankExit, cause: Cause) -> str:
    """Return one line that describes the failure to the user."""
    who = f"rank {end.rank} on node {end.node}"
    if cause is Cause.HANG:
        return f"{who} hung: no progress and no output"
    if end.not_started:
        return _one_line(f"{who} could not be started: {end.not_started}")
    place = f" ({end.where})" if end.where else ""
    if end.error and end.signal is None:
        return _one_line(f"{who}: {end.error}{place}")
    return _one_line(f"{who} {_how(end)}{_why(end, cause)}{place}")


def brief(end: RankExit, cause: Cause) -> str:
    """Return a short form of the failure, such as `KeyError in train.py:3, rank 1`."""
    kind = _TYPE.match(end.error or "")
    if end.not_started:
        what = "not started"
    elif cause is Cause.HANG or cause is Cause.OUT_OF_MEMORY:
        what = str(cause).replace("_", " ")
    elif end.signal is not None:
        what = signal_name(end.signal)
    else:
        what = kind[0].rpartition(".")[2] if kind else evidence(end)
    place = f" in {end.where.partition(' in ')[0]}" if end.where else ""
    return _one_line(f"{what}{place}, rank {end.rank}")


def evidence(end: RankExit) -> str:
    """Return as text what shows how the rank ended: its exit code or signal, and a report that memory ran out; or that
    its end was not observed.
    """
    parts = [f"exit code {end.code}"] if end.code is not None else []
    parts += [signal_name(end.signal)] if end.signal is not None else []
    parts += ["the kernel or CUDA reported that memory ran out"] if end.oom else []
    return ", ".join(parts or ["its end was not observed"])


def _how(end: RankExit) -> str:
    """Return how a rank ended, as the predicate of a sentence: `was killed by SIGKILL`, `ended with exit code 1`."""
    if end.signal is not None:
        return f"was killed by {signal_name(end.signal)}"
    return "is gone, and its end was not observed" if end.code is None else f"ended with exit code {end.code}"


def _why(end: RankExit, cause: Cause) -> str:
    """Return the reason for a rank's end with a colon before it, or "" if none is known."""
    if cause is Cause.OUT_OF_MEMORY:
        return ": out of memory"
    return f": {end.error}" if end.error else ""


def _one_line(text: str) -> str:
    """Return the first 500 characters of the text, with all whitespace collapsed."""
    return " ".join(text.split())[:500]
