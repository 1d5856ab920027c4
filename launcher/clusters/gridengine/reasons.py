"""Why a job waits, in words for people: from Grid Engine's state letters and its scheduler's messages. Pure."""

import re
from collections.abc import Sequence

_HELD = "it is held, by its owner or an administrator: qrls lets it go"
_LONGEST = 2000
# What a message has in it, and what that means: the first that fits.
_MEANS = tuple((re.compile(sign), words) for sign, words in (
    (r"^Job is in hold state$", _HELD),
    (r"^job dropped because of job dependencies$", "another job that it depends on has not ended"),
    (r"^execution time not reached$", "it asked not to start before a later time"),
    (r"^There are no messages available$|^Job is in error state$", ""),
    (r'cannot run in PE "(.*)" because it only offers (?:0|-[0-9]+) slots$',
     r"the parallel environment \1 has no host free for it"),
    (r'cannot run in PE "(.*)" because it only offers ([0-9]+) slots$',
     r"the parallel environment \1 has only \2 slots free for it"),
    (r"\(-l ([^)]*)\) cannot run .*because it offers only [a-z]{2}:([^=]+)=",
     r"hosts have too little \2 free (it asks for \1)"),
    (r"is alarmed", "the hosts that it may use are too loaded"),
    (r"is disabled", "queues that it may use are disabled"),
    (r"is full", "queues that it may use are full"),
    (r"unknown state", "hosts that it may use do not answer"),
    (r"not in pe list", "the queue that it asks for does not have its parallel environment"),
    (r"exceeds limit", "a limit for you or your project is reached"),
    (r"until clean up of", "hosts that it has had are kept from it until they have tidied up"),
))  # fmt: skip


def plain(state: str, errors: Sequence[str], messages: Sequence[str]) -> str:
    """Why a job in this state waits. `errors`: why it could not start; `messages`: what the scheduler notes of it."""
    if "E" in state:
        why = f": {errors[-1]}" if errors else ""
        return f"it could not be started{why}; once that is mended, qmod -cj lets it try again"
    told = "; ".join(dict.fromkeys(filter(None, map(_told, messages)))) or (_HELD if "h" in state else "")
    return told or f"Grid Engine gives no reason yet{' to start it again' if 'R' in state else ''}"


def _told(message: str) -> str:
    message = message[:_LONGEST]  # a longer one takes some signs minutes, and nobody reads it
    found = ((sign.search(message), words) for sign, words in _MEANS)
    return next((fit.expand(words) for fit, words in found if fit), f"Grid Engine says: {message}")
