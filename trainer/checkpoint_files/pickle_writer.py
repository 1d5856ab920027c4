"""Write the few pickle opcodes that tensors and DCP metadata need; nothing here reads a pickle.

Every function returns the opcodes of one value as bytes.
"""

import struct
from collections.abc import Iterable, Mapping

PROTOCOL, STOP, NO = b"\x80\x02", b".", b"\x89"


def name_of(module: str, name: str) -> bytes:
    """Return the opcodes of a reference to a module's function or class."""
    return f"c{module}\n{name}\n".encode()


def row(*parts: bytes) -> bytes:
    """Return the opcodes of a tuple, whose items are given by their opcodes."""
    return b"(" + b"".join(parts) + b"t"


def sequence(parts: Iterable[bytes]) -> bytes:
    """Return the opcodes of a list, whose items are given by their opcodes."""
    return b"](" + b"".join(parts) + b"e"


def table(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the opcodes of a dict, whose keys and values are given by their opcodes."""
    return b"}(" + b"".join(key + value for key, value in items) + b"u"


def called(what: bytes, *arguments: bytes) -> bytes:
    """Return the opcodes of a call; the function `what` and its arguments are given by their opcodes."""
    return what + row(*arguments) + b"R"


def made(kind: bytes, state: bytes) -> bytes:
    """Return the opcodes of an object that is made by its class's `__new__`, without `__init__`, and gets a state.

    The class `kind` and the `state` are given by their opcodes.
    """
    return kind + b")\x81" + state + b"b"


def record(kind: bytes, fields: Mapping[str, bytes]) -> bytes:
    """Return the opcodes of an object of the class `kind` whose state is a dict of `fields`.

    The class, and each field's value by the field's name, are given by their opcodes.
    """
    return made(kind, table((text(name), value) for name, value in fields.items()))


def text(value: str) -> bytes:
    """Return the opcodes of a str."""
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    """Return the opcodes of an int."""
    if value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def numbers(values: Iterable[int]) -> bytes:
    """Return the opcodes of a tuple of ints."""
    return row(*map(number, values))
