"""The JSON that the board's server sends to a page; a number that is not finite is sent as text."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

Number = float | str  # "nan", "inf" or "-inf" where JSON has no number for it
_encoder = msgspec.json.Encoder()


class NoAnswer(msgspec.Struct, frozen=True):
    """The JSON that is sent in place of an answer: the error, and a hint."""

    error: str
    hint: str = ""


def encode(answer: Any) -> bytes:
    """Return the answer as JSON."""
    return _encoder.encode(answer)


def number(value: float) -> Number:
    """Return the number, or its text if it is not finite, which JSON cannot hold."""
    return value if math.isfinite(value) else repr(float(value))


def numbers(values: Iterable[float]) -> list[Number]:
    """Return the numbers, with text for each that is not finite."""
    return [value if math.isfinite(value) else repr(value) for value in values]


def named_numbers(values: Mapping[str, float]) -> dict[str, Number]:
    """Return the numbers by name, with text for each that is not finite."""
    return {name: number(value) for name, value in values.items()}
