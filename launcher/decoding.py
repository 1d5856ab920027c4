"""Decoders for records: each type is prepared once, under a lock, before any thread decodes it.

msgspec inspects a class when it is first decoded, and stores the result in the class before it is complete. Another
thread that decodes the class at that moment ends the process (SIGSEGV, in msgspec 0.20 to 0.22).
"""

import threading
from typing import Any, TypeVar

import msgspec

_LARGEST = (1 << 63) - 1

T = TypeVar("T")
_made: dict[object, msgspec.json.Decoder[object]] = {}
_making = threading.Lock()


def decoder_of(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return the decoder of this type.

    After this call, any thread may decode the type with any of msgspec's functions.
    """
    found = _made.get(kind)
    if found is None:
        with _making:
            found = _made.setdefault(kind, msgspec.json.Decoder(kind))
    return found  # type: ignore[return-value] # by its key


def converted(found: Any, kind: type[T]) -> T:
    """Return `found`, which was decoded to plain dicts and lists, as a `kind`; raise msgspec.ValidationError if it does
    not fit.
    """
    decoder_of(kind)
    return msgspec.convert(found, kind)


class OutOfBounds(ValueError):
    """Raised if a text, list or number in a decoded answer is larger than any that the launcher sends."""


def within_bounds(answer: T, longest_text: int, most_items: int) -> T:
    """Return `answer`; raise OutOfBounds if a text in it has more than `longest_text` characters, a list or dict more
    than `most_items` entries, or a number more than 63 bits.

    Bytes are not checked: the length of the received line limits them.
    """
    left = [msgspec.to_builtins(answer, builtin_types=(bytes,))]
    while left:
        match left.pop():
            case str() as text if len(text) > longest_text:
                raise OutOfBounds(f"a text of {len(text)} characters")
            case int() | float() as number if not abs(number) <= _LARGEST:  # NaN is not
                raise OutOfBounds("a number of more than 63 bits")
            case dict() | list() | tuple() as several:
                if len(several) > most_items:
                    raise OutOfBounds(f"{len(several)} of one thing")
                left += [*several, *several.values()] if isinstance(several, dict) else several
    return answer
