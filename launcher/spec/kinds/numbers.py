"""Kinds of numbers: plain digits, numbers of nodes, and sizes with a unit. A kind reads one form of value from a node
of the YAML tree, describes it in messages, and gives its JSON Schema.
"""

import re

from launcher.spec.kinds.leaf import Json, Leaf, Unfit
from launcher.spec.model import NodeRange
from launcher.spec.tree import Scalar

_DIGITS = "0|[1-9][0-9]{0,11}"
_MOST_NODES = 100_000
_COUNT = "[1-9][0-9]{0,5}"
_SIZE_UNITS = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_SIZE = rf"(?:0|[1-9][0-9]{{0,11}})(?:\.[0-9]{{1,9}})?(?:{'|'.join(_SIZE_UNITS)})"


class Integer(Leaf, frozen=True):
    """An integer, written in plain digits, from `minimum` to `maximum`."""

    minimum: int = 0
    maximum: int = 1_000_000_000

    def words(self) -> str:
        """Return the noun for messages that say what is expected, such as `an integer`."""
        return f"an integer of at least {self.minimum}" if self.minimum else "an integer"

    def convert(self, scalar: Scalar) -> int:
        """Return the value that the scalar stands for; raise Unfit if its text is not of this kind."""
        if not re.fullmatch(_DIGITS, scalar.text):
            raise Unfit(_in_digits(scalar.text))
        if not scalar.plain:
            raise Unfit("take the quotes away")
        value = int(scalar.text)
        if value > self.maximum:
            raise Unfit(reason=f"expected at most {self.maximum}, got {value}")
        if value < self.minimum:
            raise Unfit
        return value

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}


class Number(Leaf, frozen=True):
    """A number above zero and up to `maximum`, with or without a fraction."""

    maximum: float
    WORDS = "a number above 0"

    def convert(self, scalar: Scalar) -> float:
        """Return the value that the scalar stands for; raise Unfit if its text is not of this kind."""
        if not re.fullmatch(rf"(?:{_DIGITS})(?:\.[0-9]{{1,9}})?", scalar.text):
            raise Unfit(_in_digits(scalar.text))
        if not scalar.plain:
            raise Unfit("take the quotes away")
        value = float(scalar.text)
        if not 0 < value <= self.maximum:
            raise Unfit(reason=f"expected a number above 0 and at most {self.maximum:g}, got {scalar.text}")
        return value

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        return {"type": "number", "exclusiveMinimum": 0, "maximum": self.maximum}


class Boolean(Leaf, frozen=True):
    """A truth value, written `true` or `false`; YAML's `yes` and `on` are refused."""

    WORDS = "true or false"

    def convert(self, scalar: Scalar) -> bool:
        """Return the truth value that the scalar stands for; raise Unfit if it is neither `true` nor `false`."""
        if scalar.text in ("true", "false"):
            if scalar.plain:
                return scalar.text == "true"
            raise Unfit("take the quotes away")
        word = scalar.text.lower()
        if word in ("true", "yes", "on", "1"):
            raise Unfit("write true")
        raise Unfit("write false" if word in ("false", "no", "off", "0") else "")

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        return {"type": "boolean"}


def _in_digits(text: str) -> str:
    """Return a hint if the text is a number in a notation that is not accepted, such as 1e3 or 0x10, else ""."""
    bare = text.strip().replace("_", "").replace(",", "").lstrip("+")
    if re.fullmatch("0+[1-9][0-9]{0,11}", bare):
        return f"write {bare.lstrip('0')}: a leading zero means octal to some readers"
    whole = re.sub(r"\.0+$", "", bare)
    if re.fullmatch("[1-9][0-9]{0,11}", whole) and whole != text:
        return f"write {whole}"
    return "write it in plain digits" if text[:1].isdigit() and text[1:2] in ("x", "o", "b", "e", "E") else ""


class Nodes(Leaf, frozen=True):
    """A number of nodes: one number, or a range like 2..4."""

    WORDS = "an integer or a range like 2..4"

    def convert(self, scalar: Scalar) -> NodeRange:
        """Return the value that the scalar stands for; raise Unfit if its text is not of this kind."""
        text = scalar.text
        if re.fullmatch(_COUNT, text):
            if not scalar.plain:
                raise Unfit("take the quotes away")
            return _range(int(text), int(text))
        ends = re.fullmatch(rf"({_COUNT})\.\.({_COUNT})", text)
        if ends is None:
            raise Unfit(_range_cure(text))
        return _range(int(ends[1]), int(ends[2]))

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        text = {"type": "string", "pattern": rf"^{_COUNT}\.\.{_COUNT}$"}
        return {"anyOf": [{"type": "integer", "minimum": 1, "maximum": _MOST_NODES}, text]}

    def show(self, value: NodeRange) -> int | str:
        """Return the value as it would be written in a spec, for JSON."""
        return value.min if value.min == value.max else str(value)


def _range(low: int, high: int) -> NodeRange:
    """Return the range of nodes from `low` to `high`; raise Unfit if `low` is above `high`, or `high` above 100,000."""
    if low > high:
        raise Unfit(f"write {high}..{low}", f"expected a range that goes up, got {low}..{high}")
    if high > _MOST_NODES:
        raise Unfit(reason=f"expected at most {_MOST_NODES} nodes, got {high}")
    return NodeRange(low, high)


def _range_cure(text: str) -> str:
    """Return a hint if the text is a range in another notation than 2..4, else ""."""
    ends = re.fullmatch(r"0*([1-9][0-9]{0,5})\s*(?:-|:|to|\.{1,3}|,)\s*0*([1-9][0-9]{0,5})", text)
    if ends:
        return f"write {ends[1]}..{ends[2]}"
    count = re.fullmatch("0+([1-9][0-9]{0,5})", text)
    return f"write {count[1]}" if count else ""


class Size(Leaf, frozen=True):
    """A size in bytes, such as 100MB."""

    WORDS = "a size such as 512KB, 100MB or 2GiB"
    PATTERN = _SIZE

    def convert(self, scalar: Scalar) -> int:
        """Return the value that the scalar stands for; raise Unfit if its text is not of this kind."""
        if not re.fullmatch(_SIZE, scalar.text):
            raise Unfit(_size_cure(scalar.text))
        number = scalar.text.rstrip("KMGTiB")
        value = round(float(number) * _SIZE_UNITS[scalar.text[len(number) :]])
        if value < 1:
            raise Unfit(reason=f"expected more than nothing, got {scalar.text}")
        return value

    def show(self, value: int) -> str:
        """Return the value as it would be written in a spec, for JSON."""
        unit = next(unit for unit in reversed(list(_SIZE_UNITS)[:5]) if value % _SIZE_UNITS[unit] == 0)
        return f"{value // _SIZE_UNITS[unit]}{unit}"


def _size_cure(text: str) -> str:
    """Return a hint about how to write a size such as `100` or `100 mb`, which lacks its unit or is not written like
    `100MB`; "" if the text is no size.
    """
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)", text)
    if found is None:
        return ""
    number, unit = found[1], found[2].lower()
    if not unit:
        return f"write the unit: {number}MB or {number}GB"
    known = {name.lower(): name for name in _SIZE_UNITS}
    match = known.get(unit) or known.get(f"{unit}b")
    return f"write {number}{match}" if match else f"the units are {', '.join(_SIZE_UNITS)}"
