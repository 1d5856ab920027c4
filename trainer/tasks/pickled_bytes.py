"""Read the pickles of CIFAR-10 without pickle and numpy: arrays of bytes and plain types, nothing else."""

import math
from typing import Any

from trainer.plain_pickle import Built, NotPlain, expect, read_plain

_RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")


class PickledArray(Built):
    """An array as it is in the file."""

    shape: tuple[int, ...] = ()
    data = b""

    def fill(self, state: Any) -> None:
        _, shape, kind, by_columns, data = state
        if not (isinstance(kind, _Type) and kind.name in ("u1", b"u1") and by_columns in (0, False)):
            raise NotPlain("an array of something else than bytes in rows")
        if not all(type(size) is int and size >= 0 for size in shape) or len(data) != math.prod(shape):
            raise NotPlain("an array that is longer or shorter than its shape says")
        self.shape, self.data = tuple(shape), bytes(data)


class _Type(Built):
    """A type of numbers, by its name; its byte order is not needed, as only bytes are read."""

    def __init__(self, name: object) -> None:
        self.name = name


def read_pickled_bytes(data: bytes) -> object:
    """Return what the file holds. Raises NotPlain for anything but numbers, text, lists, dicts and arrays of bytes."""
    return read_plain(data, _made)


def _made(name: str, arguments: tuple[Any, ...]) -> Any:
    if name in _RECONSTRUCT:
        return PickledArray()
    if name == "numpy dtype":
        return _Type(arguments[0])
    if name == "_codecs encode":  # how Python 3 writes bytes in the old protocol
        return expect(str, arguments[0]).encode("latin-1")
    raise NotPlain(f"it asks for {name[:100].replace(' ', '.')}, which is no data")
