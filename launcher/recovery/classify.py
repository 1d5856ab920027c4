"""From how a rank ended to the class of its failure. Pure."""

import re
import signal
from collections.abc import Sequence

from launcher.errors import Exit
from launcher.rundir.records import RankExit
from launcher.words import Cause

_MEMORY = re.compile(r"MemoryError|OutOfMemoryError|CUDA out of memory|DefaultCPUAllocator: can't allocate memory")
_PEER = re.compile(
    r"DistBackendError|DistNetworkError|DistStoreError|DistError|ncclRemoteError|NCCL error|"
    r"Connection (?:closed|reset|refused|timed out)|ConnectionResetError|ConnectionRefusedError|BrokenPipeError|"
    r"Broken pipe|gloo/|Gloo|Socket Timeout|ProcessGroup|TCPStore|Timed out (?:after|waiting)|peer closed",
)


def classify(end: RankExit) -> Cause:
    """The class of one rank's failure."""
    text = end.error or ""
    if end.hung:
        return Cause.HANG
    if end.oom or _MEMORY.search(text):
        return Cause.OUT_OF_MEMORY
    if end.code == Exit.RESUME_ME:
        return Cause.PREEMPTED
    if _PEER.search(text):
        return Cause.COMMUNICATION
    if end.signal is not None or end.code is None:
        return Cause.KILLED
    return Cause.USER_ERROR


def culprit(ends: Sequence[RankExit]) -> RankExit:
    """Who failed first by itself; a rank that failed only because another did is not to blame."""
    own = [end for end in ends if not end.stopping and classify(end) is not Cause.COMMUNICATION]
    return (own or ends)[0]


def describe(end: RankExit, cause: Cause) -> str:
    """One line for people."""
    who = f"rank {end.rank} on node {end.node}"
    if end.error and cause is not Cause.HANG:
        return f"{who}: {end.error}" + (f" ({end.where})" if end.where else "")
    if cause is Cause.HANG:
        return f"{who} hung: no progress and no output"
    if end.signal is not None:
        memory = ", the kernel ran out of memory" if cause is Cause.OUT_OF_MEMORY else ""
        return f"{who} was killed by {_signal_name(end.signal)}{memory}"
    return f"{who} ended with exit code {end.code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
