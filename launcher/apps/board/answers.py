"""JSON as the board's server sends it to a page. A number that is NaN or infinite is sent as text, because JSON has
none.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

Number = float | str  # "nan", "inf" or "-inf" where JSON has no number for it
_encoder = msgspec.json.Encoder()


class NoAnswer(msgspec.Struct, frozen=True):
    """The JSON that is sent if a request fails: the error, and a hint what to do."""

    error: str
    hint: str = ""


def encode(answer: Any) -> bytes:
    """Return an answer, a record or a plain value, as JSON. The caller has replaced numbers that are not finite by
    their text, with `number`.
    """
    return _encoder.encode(answer)


def number(value: float) -> Number:
    """Return the number, or its text (`nan`, `inf`) if it is not finite."""
    return value if math.isfinite(value) else repr(float(value))


def numbers(values: Iterable[float]) -> list[Number]:
    """Return the numbers; one that is not finite is replaced by its text."""
    return [value if math.isfinite(value) else repr(value) for value in values]


def named_numbers(values: Mapping[str, float]) -> dict[str, Number]:
    """Return {name: number}; a number that is not finite is replaced by its text."""
    return {name: number(value) for name, value in values.items()}
