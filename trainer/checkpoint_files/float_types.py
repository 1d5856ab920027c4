"""Floating-point numbers from one type to another, rounded as torch rounds them: to the nearest, ties to even."""

import array
import re
import struct
from collections.abc import Iterator
from functools import cache

FLOATS = ("float64", "float32", "float16", "bfloat16")
_MOST_LANES = 1 << 16  # as many numbers as one big integer holds: what it is calculated with stays in the cache


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
            return b"".join(map(_to_bfloat16, _blocks(data)))
        case "float16":
            return b"".join(map(_to_half, _blocks(data)))
        case "float64":
            return array.array("d", array.array("f", data)).tobytes()
        case _:
            raise ValueError(f"expected one of {', '.join(FLOATS)}, got {target}")


def _blocks(data: bytes) -> Iterator[bytes]:
    step = 4 * _MOST_LANES
    return (data[at : at + step] for at in range(0, len(data), step))


def _to_half(data: bytes) -> bytes:
    """As for bfloat16, but the exponents have fewer bits: what is too large becomes infinite, what is too small
    nothing, and what is just large enough for a number without a leading one is left to `struct`, one by one."""
    count = len(data) // 4
    bits, top = int.from_bytes(data, "little"), _lanes(count, 0x80000000)
    signs = bits & top
    sizes = bits ^ signs

    def at_least(least: int) -> int:
        return (sizes + _lanes(count, 0x80000000 - least)) & top

    normal, infinite = at_least(0x38800000), at_least(0x477FF000)  # from 2^-14 to where rounding leads past 65504
    plain = normal ^ infinite
    rounded = (sizes + ((sizes >> 13) & _lanes(count, 1)) + _lanes(count, 0xFFF)) & (plain - (plain >> 31))
    halves = ((rounded >> 13) & _lanes(count, 0x3FFFF)) - (plain >> 31) * 0x1C000 | signs >> 16
    if infinite:
        halves |= (infinite >> 31) * 0x7C00 | (at_least(0x7F800001) >> 31) * 0x200
    found = halves.to_bytes(4 * count, "little")
    out = bytearray(2 * count)
    out[0::2], out[1::2] = found[0::4], found[1::4]
    small = at_least(0x33000000) ^ normal
    if small:
        _put_small_halves(out, data, small.to_bytes(4 * count, "little")[3::4])
    return bytes(out)


def _put_small_halves(out: bytearray, data: bytes, small: bytes) -> None:
    """`small`: a byte for each number, not zero where it is one of them."""
    places = [found.start() for found in re.finditer(rb"[^\0]", small)]
    numbers, halves = memoryview(data).cast("f"), memoryview(out).cast("H")
    packed = struct.pack(f"={len(places)}e", *[numbers[place] for place in places])
    for place, half in zip(places, memoryview(packed).cast("H"), strict=True):
        halves[place] = half


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
