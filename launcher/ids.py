"""Names and secrets: run ids, from which alone paths are made; the secret tokens of attempts; and submit tokens."""

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
    """Return whether the text has the form of a run id: up to 128 lower-case letters, digits, `_` and `-`, of which the
    first is a letter or digit; `last` is none.
    """
    return re.match(_RUN_ID, text) is not None


def parse_run_id(text: str) -> RunId:
    """Return the text as a run id; raise BadInput if it has another form."""
    if not is_run_id(text):
        raise BadInput(f"expected the id of a run, got {text[:100]!r}")
    return RunId(text)


def new_run_id(name: str, taken: Callable[[RunId], bool]) -> RunId:
    """Return an unused id made from a job's name, such as `resnet-ddp-7k3f`.

    `taken` returns whether an id is in use; the random part grows if many are.
    """
    draws = 0
    while taken(run_id := parse_run_id(f"{name}-{_draw(_SHORT + draws // _TRIES_PER_LENGTH)}")):
        draws += 1
    return run_id


def new_token() -> str:
    """Return a new secret: 256 random bits as 64 hex digits."""
    return os.urandom(32).hex()


def attempt_token(secret: str, number: int) -> str:
    """Return the secret token of attempt `number` of a run in an SSH pool, whose hosts open an attempt together.

    Each host derives it from the run's secret, which all have, so that the token is never sent.
    """
    import hmac  # late: a few ms that a first attempt does not need

    return hmac.new(bytes.fromhex(secret), f"attempt {number}".encode(), "sha256").hexdigest()


def role_secret(token: str, name: str) -> str:
    """Return the secret from which the tokens of the attempts of role `name` are derived; `token` is that of the run's
    attempt.
    """
    import hmac  # late: as above

    return hmac.new(bytes.fromhex(token), f"role {name}".encode(), "sha256").hexdigest()


def new_submit_token() -> str:
    """Return a submit token: the unique name, not a secret, by which a batch job is found before it has an id."""
    return os.urandom(8).hex()


def _draw(length: int) -> str:
    """Return a text of `length` random lowercase letters and digits."""
    # The few letters that come a little more often make no id less unique; `secrets` would cost 5 ms of import.
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in os.urandom(length))
