"""Decoders of records, each made once, and by one thread at a time.

msgspec works out what a class is like when the class is first decoded, and keeps it with the class before it is whole.
Another thread that decodes the class in that moment ends the process (SIGSEGV, in msgspec 0.20 to 0.22).
"""

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_made: dict[object, msgspec.json.Decoder[object]] = {}
_making = threading.Lock()


def decoder_of(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return the decoder of this type; after this call any thread may decode it with any of msgspec's functions."""
    found = _made.get(kind)
    if found is None:
        with _making:
            found = _made.setdefault(kind, msgspec.json.Decoder(kind))
    return found  # type: ignore[return-value] # by its key


def converted(found: Any, kind: type[T]) -> T:
    """Convert a value that was decoded without a type into one of `kind`. Raise msgspec.ValidationError if it does
    not fit.
    """
    decoder_of(kind)
    return msgspec.convert(found, kind)
