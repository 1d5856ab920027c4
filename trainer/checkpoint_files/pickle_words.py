"""The few words of pickle that tensors and what DCP notes of them need: only ever written here, never read."""

import struct
from collections.abc import Iterable, Mapping

PROTOCOL, STOP, NO = b"\x80\x02", b".", b"\x89"


def name_of(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def row(*parts: bytes) -> bytes:
    """A tuple."""
    return b"(" + b"".join(parts) + b"t"


def sequence(parts: Iterable[bytes]) -> bytes:
    """A list."""
    return b"](" + b"".join(parts) + b"e"


def table(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A dict."""
    return b"}(" + b"".join(key + value for key, value in items) + b"u"


def called(what: bytes, *arguments: bytes) -> bytes:
    return what + row(*arguments) + b"R"


def made(kind: bytes, state: bytes) -> bytes:
    """An object that is not called into being: its state is put into it."""
    return kind + b")\x81" + state + b"b"


def record(kind: bytes, fields: Mapping[str, bytes]) -> bytes:
    """One whose state are its fields."""
    return made(kind, table((text(name), value) for name, value in fields.items()))


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    if value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def numbers(values: Iterable[int]) -> bytes:
    return row(*map(number, values))
