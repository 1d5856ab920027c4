"""Why a job waits, in words for people: from Grid Engine's state letters and its scheduler's messages. Pure."""

import re
from collections.abc import Sequence

_FEW_SLOTS = re.compile(r'cannot run in PE "(?P<pe>.*)" because it only offers (?P<slots>-?[0-9]+) slots')
_RESOURCE = re.compile(r"\(-l (?P<asked>[^)]*)\) cannot run .*because it offers only [a-z]{2}:(?P<what>[^=]+)=.*")
_FIXED = {
    "Job is in hold state": "it is held, by its owner or an administrator: qrls lets it go",
    "job dropped because of job dependencies": "another job that it depends on has not ended",
    "execution time not reached": "it asked not to start before a later time",
    "There are no messages available": "",
    "Job is in error state": "",
}
# What a message is about, by a piece of it.
_ABOUT = (
    ("is alarmed", "the hosts that it may use are too loaded"),
    ("is disabled", "queues that it may use are disabled"),
    ("is full", "queues that it may use are full"),
    ("unknown state", "hosts that it may use do not answer"),
    ("not in pe list", "the queue that it asks for does not have its parallel environment"),
    ("exceeds limit", "a limit for you or your project is reached"),
    ("until clean up of", "hosts that it has had are kept from it until they have tidied up"),
)


def plain(state: str, errors: Sequence[str], messages: Sequence[str]) -> str:
    """Why a job in this state waits. `errors`: why it could not start; `messages`: what the scheduler notes of it."""
    if "E" in state:
        why = f": {errors[-1]}" if errors else ""
        return f"it could not be started{why}; once that is mended, qmod -cj lets it try again"
    told = dict.fromkeys(one for one in map(_told, messages) if one)
    if not told and "h" in state:
        return _FIXED["Job is in hold state"]
    return "; ".join(told) or f"Grid Engine gives no reason yet{' to start it again' if 'R' in state else ''}"


def _told(message: str) -> str:
    if message in _FIXED:
        return _FIXED[message]
    if found := _FEW_SLOTS.fullmatch(message):
        free = "no host free" if int(found["slots"]) <= 0 else f"only {found['slots']} slots free"
        return f"the parallel environment {found['pe']} has {free} for it"
    if found := _RESOURCE.fullmatch(message):
        return f"hosts have too little {found['what']} free (it asks for {found['asked']})"
    return next((words for piece, words in _ABOUT if piece in message), f"Grid Engine says: {message}")
