"""Floating-point numbers from one type to another, rounded as torch rounds them: to the nearest, ties to even."""

import array
import struct
from functools import cache

FLOATS = ("float64", "float32", "float16", "bfloat16")
_MOST_LANES = 1 << 20  # as many numbers as one big integer holds


def convert(data: bytes, source: str, target: str) -> bytes:
    """Raises ValueError for a type that is none of FLOATS."""
    if source == target:
        return data
    return _from_single(_to_single(data, source), target)


def _to_single(data: bytes, source: str) -> bytes:
    match source:
        case "float32":
            return data
        case "bfloat16":  # its upper half
            wide = bytearray(2 * len(data))
            wide[2::4], wide[3::4] = data[0::2], data[1::2]
            return bytes(wide)
        case "float16":
            count = len(data) // 2
            return struct.pack(f"<{count}f", *struct.unpack(f"<{count}e", data))
        case "float64":
            return array.array("f", array.array("d", data)).tobytes()  # too large a number becomes infinite
        case _:
            raise ValueError(f"expected one of {', '.join(FLOATS)}, got {source}")


def _from_single(data: bytes, target: str) -> bytes:
    match target:
        case "float32":
            return data
        case "bfloat16":
            step = 4 * _MOST_LANES
            return b"".join(_to_bfloat16(data[at : at + step]) for at in range(0, len(data), step))
        case "float16":
            return _to_half(array.array("f", data))
        case "float64":
            return array.array("d", array.array("f", data)).tobytes()
        case _:
            raise ValueError(f"expected one of {', '.join(FLOATS)}, got {target}")


def _to_half(numbers: "array.array[float]") -> bytes:
    try:
        return struct.pack(f"<{len(numbers)}e", *numbers)
    except OverflowError:
        return b"".join(map(_half, numbers))


def _half(number: float) -> bytes:
    try:
        return struct.pack("<e", number)
    except OverflowError:  # a finite one that is too large
        return struct.pack("<e", float("inf") if number > 0 else float("-inf"))


def _to_bfloat16(data: bytes) -> bytes:
    """All numbers at once, as lanes of one integer: half of what is cut off is added first, or a little less where the
    number that stays is even. No lane runs over into the next but one that is not a number."""
    count = len(data) // 4
    bits, exponents = int.from_bytes(data, "little"), _lanes(count, 0x7F800000)
    if ((bits & exponents) + _lanes(count, 0x00800000)) & _lanes(count, 0x80000000):  # infinite, or not a number
        return b"".join(_bfloat16(one) for one in struct.unpack(f"<{count}I", data))
    even = (bits >> 16) & _lanes(count, 1)
    rounded = (bits + even + _lanes(count, 0x7FFF)).to_bytes(4 * count, "little")
    return _upper_halves(rounded)


def _bfloat16(bits: int) -> bytes:
    if bits & 0x7FFFFFFF > 0x7F800000:  # not a number: it stays one
        return struct.pack("<H", bits >> 16 | 0x40)
    return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


def _upper_halves(data: bytes) -> bytes:
    halves = bytearray(len(data) // 2)
    halves[0::2], halves[1::2] = data[2::4], data[3::4]
    return bytes(halves)


@cache
def _lanes(count: int, value: int) -> int:
    return int.from_bytes(value.to_bytes(4, "little") * count, "little")
