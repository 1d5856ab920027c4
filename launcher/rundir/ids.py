"""Ids of runs and tokens of attempts."""

import os
from collections.abc import Callable

_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"  # no 0 o 1 l i
_SHORT, _TRIES_PER_LENGTH = 4, 8


def new_run_id(name: str, taken: Callable[[str], bool]) -> str:
    """`resnet-ddp-7k3f`: short while that is free, longer where many are taken."""
    draws = 0
    while taken(run_id := f"{name}-{_draw(_SHORT + draws // _TRIES_PER_LENGTH)}"):
        draws += 1
    return run_id


def new_token() -> str:
    """256 bits as 64 hex digits."""
    return os.urandom(32).hex()


def new_ticket() -> str:
    """What a batch system's job is known by before it has an id: no secret, and nobody else's."""
    return os.urandom(8).hex()


def _draw(length: int) -> str:
    # The few letters that come a little more often make no id less unique; `secrets` would cost 5 ms of import.
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in os.urandom(length))
