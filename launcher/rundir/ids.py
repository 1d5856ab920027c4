"""Ids of runs and tokens of attempts."""

import secrets
from collections.abc import Callable

_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"  # no 0 o 1 l i
_SHORT, _TRIES_PER_LENGTH = 4, 8


def new_run_id(name: str, taken: Callable[[str], bool]) -> str:
    """`resnet-ddp-7k3f`: short while that is free, longer where many are taken."""
    draws = 0
    while True:
        length = _SHORT + draws // _TRIES_PER_LENGTH
        run_id = f"{name}-{''.join(secrets.choice(_ALPHABET) for _ in range(length))}"
        if not taken(run_id):
            return run_id
        draws += 1


def new_token() -> str:
    return secrets.token_hex(32)
