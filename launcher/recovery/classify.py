"""From how ranks ended to what it was and who began it. Pure."""

import re
import signal
from collections.abc import Sequence

from launcher.errors import Exit
from launcher.rundir.records import RankExit
from launcher.words import Cause

_MEMORY = re.compile(
    r"\bMemoryError\b|\bOutOfMemoryError\b|CUDA out of memory|HIP out of memory|DefaultCPUAllocator: can't allocate",
)
_PEER = re.compile(
    r"\bDist(?:Backend|Network|Store)?Error\b|\bNCCL\b|\bnccl[A-Z]\w+|\bProcessGroup\w*|\bTCPStore\b"
    r"|gloo/|\bGloo\b|connectFullMesh|Application timeout caused pair closure"
    r"|Connection (?:closed|reset) by (?:remote )?peer|\bpeer closed\b|[Bb]roken pipe|\bBrokenPipeError\b"
    r"|\bConnection(?:Reset|Refused|Aborted)Error\b|Connection (?:refused|timed out)"
    r"|Socket Timeout|Timed out (?:after|waiting)\b.*\b(?:client|clients|recv|send|operation|rank|ranks)\b"
    r"|client socket has (?:timed out|failed)",
)


def failed(end: RankExit) -> bool:
    """False for a rank that left with 0, or had said that it was done before it fell."""
    return not end.done and end.code != 0


def finished(end: RankExit) -> bool:
    """True for a rank that did all its work; one that leaves with 0 because it was told to stop did not."""
    return end.done or (end.code == 0 and not end.stopping)


def fenced(end: RankExit) -> bool:
    """True for a rank that found a newer start in charge of the checkpoints: no failure, and no reason to restart."""
    return end.fenced and not end.done


def classify(end: RankExit) -> Cause:
    """The class of one rank's failure."""
    text = end.error or ""
    if end.hung:
        return Cause.HANG
    if end.code == Exit.RESUME_ME:
        return Cause.PREEMPTED
    if end.oom or (end.signal is None and _MEMORY.search(text)):
        return Cause.OUT_OF_MEMORY
    # An abort that speaks of a peer is a watchdog's or a C++ exception's; any other signal came from elsewhere.
    if end.signal in (None, signal.SIGABRT) and _PEER.search(text):
        return Cause.COMMUNICATION
    if end.signal is not None or end.code is None:
        return Cause.KILLED
    return Cause.USER_ERROR


def culprit(exits: Sequence[RankExit]) -> RankExit:
    """Who failed first by itself, of one or more in order of arrival.

    A rank that failed only because another did, or because it was told to stop, is not to blame.
    """
    failures = [end for end in exits if failed(end)] or list(exits)
    own = (end for end in failures if not end.stopping and classify(end) is not Cause.COMMUNICATION)
    return next(own, failures[0])


def describe(end: RankExit, cause: Cause) -> str:
    """One line for people."""
    who = f"rank {end.rank} on node {end.node}"
    if cause is Cause.HANG:
        return f"{who} hung: no progress and no output"
    place = f" ({end.where})" if end.where else ""
    if end.error and end.signal is None:
        return _one_line(f"{who}: {end.error}{place}")
    return _one_line(f"{who} {_how(end)}{_why(end, cause)}{place}")


def evidence(end: RankExit) -> str:
    """What the cause was read from."""
    parts = [f"exit code {end.code}"] if end.code is not None else []
    parts += [signal_name(end.signal)] if end.signal is not None else []
    parts += ["the kernel or CUDA reported that memory ran out"] if end.oom else []
    return ", ".join(parts or ["nobody saw its end"])


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _how(end: RankExit) -> str:
    if end.signal is not None:
        return f"was killed by {signal_name(end.signal)}"
    return "is gone and nobody saw its end" if end.code is None else f"ended with exit code {end.code}"


def _why(end: RankExit, cause: Cause) -> str:
    if cause is Cause.OUT_OF_MEMORY:
        return ": out of memory"
    return f": {end.error}" if end.error else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]
