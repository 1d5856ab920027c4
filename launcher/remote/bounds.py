"""Bounds on an answer from another machine, which may be faulty or hostile and send a million nodes or much text."""

from typing import TypeVar

import msgspec

_LONGEST_TEXT = 64 << 10
_MOST_TOGETHER = 10_000
_LARGEST = 1 << 62

T = TypeVar("T")


class OutOfBounds(ValueError):
    """Something in it is larger than anything that we say."""


def within_bounds(answer: T) -> T:
    """Return the answer. Raise OutOfBounds if it is too large. Bytes are bounded by the line that they came in."""
    left = [msgspec.to_builtins(answer, builtin_types=(bytes,))]
    while left:
        match left.pop():
            case str() as text if len(text) > _LONGEST_TEXT:
                raise OutOfBounds(f"a text of {len(text)} characters")
            case int() as number if abs(number) > _LARGEST:
                raise OutOfBounds("a number of more than 62 bits")
            case dict() | list() | tuple() as several:
                if len(several) > _MOST_TOGETHER:
                    raise OutOfBounds(f"{len(several)} of one thing")
                left += [*several, *several.values()] if isinstance(several, dict) else several
    return answer
