"""Names: the ids of runs, the only ones that paths are made of, and the tokens and tickets of attempts."""

import os
import re
from collections.abc import Callable
from typing import Annotated, Final, NewType

import msgspec

from launcher.errors import BadInput

LAST: Final = "last"  # what people call the newest run: no run has this id
_RUN_ID = rf"\A(?!{LAST}\Z)[a-z0-9][a-z0-9_-]{{0,127}}\Z"
_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"  # no 0 o 1 l i
_SHORT, _TRIES_PER_LENGTH = 4, 8

# Whatever a message or a record says in a field of this type was compared with the pattern when it was decoded; in any
# other text a run's id is what `parse_run_id` gives. Nothing else makes one.
RunId = NewType("RunId", Annotated[str, msgspec.Meta(pattern=_RUN_ID)])


def is_run_id(text: str) -> bool:
    return re.match(_RUN_ID, text) is not None


def parse_run_id(text: str) -> RunId:
    if not is_run_id(text):
        raise BadInput(f"expected the id of a run, got {text[:100]!r}")
    return RunId(text)


def new_run_id(name: str, taken: Callable[[RunId], bool]) -> RunId:
    """`resnet-ddp-7k3f`: short while that is free, longer where many are taken."""
    draws = 0
    while taken(run_id := parse_run_id(f"{name}-{_draw(_SHORT + draws // _TRIES_PER_LENGTH)}")):
        draws += 1
    return run_id


def new_token() -> str:
    """256 bits as 64 hex digits."""
    return os.urandom(32).hex()


def attempt_token(secret: str, number: int) -> str:
    """That of an attempt which hosts open together: each makes it of what all of them have, and none has to send it."""
    import hmac  # late: a few ms that a first attempt does not need

    return hmac.new(bytes.fromhex(secret), f"attempt {number}".encode(), "sha256").hexdigest()


def new_ticket() -> str:
    """What a batch system's job is known by before it has an id: no secret, and nobody else's."""
    return os.urandom(8).hex()


def _draw(length: int) -> str:
    # The few letters that come a little more often make no id less unique; `secrets` would cost 5 ms of import.
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in os.urandom(length))
