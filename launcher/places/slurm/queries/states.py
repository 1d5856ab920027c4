"""Map Slurm's names of job states to the launcher's phases and ends. Pure functions; an unlisted state is unknown."""

import re

import msgspec

from launcher.places.batch.batch import Phase
from launcher.states import Cause, State


class JobState(msgspec.Struct, frozen=True):
    """The state of a job: Slurm's name for it, its phase, and who cancelled the job (None if Slurm does not show
    that).
    """

    word: str
    phase: Phase
    by: str | None = None  # the user who cancelled it, mostly as a user id


_BASES = {
    "PENDING": Phase.QUEUED,
    "RUNNING": Phase.RUNNING,
    "SUSPENDED": Phase.RUNNING,
    "COMPLETED": Phase.ENDED,
    "CANCELLED": Phase.ENDED,
    "FAILED": Phase.ENDED,
    "TIMEOUT": Phase.ENDED,
    "NODE_FAIL": Phase.ENDED,
    "PREEMPTED": Phase.ENDED,
    "BOOT_FAIL": Phase.ENDED,
    "DEADLINE": Phase.ENDED,
    "OUT_OF_MEMORY": Phase.ENDED,
}
# A flag is shown in place of the base state, or beside it in a list: there the first of these decides.
_FLAGS = {
    "REVOKED": Phase.UNKNOWN,  # another cluster of the federation has the job; only that one knows
    "COMPLETING": Phase.ENDING,
    "STAGE_OUT": Phase.ENDING,
    "SPECIAL_EXIT": Phase.QUEUED,
    "REQUEUE_HOLD": Phase.QUEUED,
    "RESV_DEL_HOLD": Phase.QUEUED,
    "REQUEUE_FED": Phase.QUEUED,
    "REQUEUED": Phase.QUEUED,
    "EXPEDITING": Phase.QUEUED,  # since 25.11: put back after a lost node, before all other jobs
    "POWER_UP_NODE": Phase.QUEUED,  # has nodes, which boot: nothing is started before they are up
    "CONFIGURING": Phase.QUEUED,
    "STOPPED": Phase.RUNNING,
    "RESIZING": Phase.RUNNING,
    "SIGNALING": Phase.RUNNING,
}
# These only give a reason or a manner; without a base state beside them the job's state stays open.
_NOTES = ("LAUNCH_FAILED", "RECONFIG_FAIL", "UPDATE_DB")
_COMPACT = {
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "CF": "CONFIGURING", "CG": "COMPLETING",
    "DL": "DEADLINE", "F": "FAILED", "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PD": "PENDING", "PR": "PREEMPTED",
    "R": "RUNNING", "RD": "RESV_DEL_HOLD", "RF": "REQUEUE_FED", "RH": "REQUEUE_HOLD", "RQ": "REQUEUED",
    "RS": "RESIZING", "RV": "REVOKED", "S": "SUSPENDED", "SE": "SPECIAL_EXIT", "SI": "SIGNALING",
    "SO": "STAGE_OUT", "ST": "STOPPED", "TO": "TIMEOUT",
}  # fmt: skip
WORDS = (*_BASES, *_FLAGS, *_NOTES)
_BY = re.compile(r"(.+?)\s+by\s+(\S+)", re.IGNORECASE)
_LONGEST_UNKNOWN = 60
_LONGEST = 500  # all words that there are, in a list, would be about as long


def read_state(text: str) -> JobState:
    """Return the state for a name such as `RUNNING`, `CANCELLED by 1000`, a cut `CANCELLED+`, a compact form such as
    `R`, or a list of names: the base state and flags of one job, of which a flag such as COMPLETING decides.

    The phase is unknown if any name is, or if several base states are listed without a flag.
    """
    text = text.strip()[:_LONGEST]
    said = by[1] if (by := _BY.fullmatch(text)) else text
    parts = [part for part in re.split(r"[\[\],|\s\"']+", said) if part]
    words = [_word(part) for part in parts]
    if not words or None in words:
        shown = "".join(char for char in " ".join(parts) if char.isprintable())
        return JobState(shown[:_LONGEST_UNKNOWN], Phase.UNKNOWN)
    word, phase = _deciding({word for word in words if word is not None})
    return JobState(word, phase, by[2] if by and word == "CANCELLED" else None)


def _word(part: str) -> str | None:
    """Return the full name of a state, or None if it is unknown or cut so short that it could be several."""
    upper = part.upper()
    if upper in _COMPACT:
        return _COMPACT[upper]
    stem = upper.removesuffix("+")
    if stem in WORDS:
        return stem
    longer = [word for word in WORDS if word.startswith(stem)]
    return longer[0] if upper.endswith("+") and len(longer) == 1 else None


def _deciding(words: set[str]) -> tuple[str, Phase]:
    """Return (the deciding name among the names in a job's state, the phase that follows from it).

    A flag such as COMPLETING or REQUEUED decides over the base state, such as RUNNING. Without a flag, and with no base
    state or several, the phase is unknown, and the names are returned with commas between them.
    """
    for flag, phase in _FLAGS.items():
        if flag in words:
            return flag, phase
    bases = [base for base in _BASES if base in words]
    notes = [note for note in _NOTES if note in words]
    if len(bases) != 1:
        return ",".join(bases + notes), Phase.UNKNOWN
    telling = [note for note in notes if bases == ["FAILED"] and note in ("LAUNCH_FAILED", "RECONFIG_FAIL")]
    return (telling or bases)[0], _BASES[bases[0]]


def end_of(state: str) -> tuple[State, Cause | None]:
    """Return (state, cause) of a run whose job ended in this Slurm state and left no end record. The cause is None if
    the state does not show one.
    """
    match state:
        case "CANCELLED":
            return State.CANCELLED, Cause.CANCELLED
        case "TIMEOUT" | "DEADLINE":
            return State.FAILED, Cause.TIME_LIMIT
        case "NODE_FAIL" | "BOOT_FAIL" | "LAUNCH_FAILED" | "RECONFIG_FAIL":
            return State.FAILED, Cause.NODE_LOST
        case "PREEMPTED":
            return State.FAILED, Cause.PREEMPTED
        case "OUT_OF_MEMORY":
            return State.FAILED, Cause.OUT_OF_MEMORY
        case "COMPLETED" | "FAILED":
            # Of our own process alone: the absence of its record is never success. Nor is it a failure of the
            # training: a full disk at the very end leaves no record and an exit code, too.
            return State.LOST, None
        case _:
            return State.UNKNOWN, None
