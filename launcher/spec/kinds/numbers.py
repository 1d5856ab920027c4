"""Numbers, written in plain digits."""

import re
from dataclasses import dataclass

from launcher.spec.kinds.leaf import Json, Leaf, Unfit
from launcher.spec.tree import Scalar

_DIGITS = "0|[1-9][0-9]{0,11}"


@dataclass(frozen=True, slots=True)
class Integer(Leaf):
    minimum: int = 0
    maximum: int = 1_000_000_000

    def words(self) -> str:
        return f"an integer of at least {self.minimum}" if self.minimum else "an integer"

    def convert(self, scalar: Scalar) -> int:
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
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}


@dataclass(frozen=True, slots=True)
class Number(Leaf):
    """A number above zero, with or without a fraction."""

    maximum: float

    def words(self) -> str:
        return "a number above 0"

    def convert(self, scalar: Scalar) -> float:
        if not re.fullmatch(rf"(?:{_DIGITS})(?:\.[0-9]{{1,9}})?", scalar.text):
            raise Unfit(_in_digits(scalar.text))
        if not scalar.plain:
            raise Unfit("take the quotes away")
        value = float(scalar.text)
        if not 0 < value <= self.maximum:
            raise Unfit(reason=f"expected a number above 0 and at most {self.maximum:g}, got {scalar.text}")
        return value

    def schema(self) -> Json:
        return {"type": "number", "exclusiveMinimum": 0, "maximum": self.maximum}


@dataclass(frozen=True, slots=True)
class Boolean(Leaf):
    def words(self) -> str:
        return "true or false"

    def convert(self, scalar: Scalar) -> bool:
        if scalar.text in ("true", "false"):
            if scalar.plain:
                return scalar.text == "true"
            raise Unfit("take the quotes away")
        word = scalar.text.lower()
        if word in ("true", "yes", "on", "1"):
            raise Unfit("write true")
        raise Unfit("write false" if word in ("false", "no", "off", "0") else "")

    def schema(self) -> Json:
        return {"type": "boolean"}


def _in_digits(text: str) -> str:
    """What may have been meant by a number that is written otherwise."""
    bare = text.strip().replace("_", "").replace(",", "").lstrip("+")
    if re.fullmatch("0+[1-9][0-9]{0,11}", bare):
        return f"write {bare.lstrip('0')}: a leading zero means octal to some readers"
    whole = re.sub(r"\.0+$", "", bare)
    if re.fullmatch("[1-9][0-9]{0,11}", whole) and whole != text:
        return f"write {whole}"
    return "write it in plain digits" if text[:1].isdigit() and text[1:2] in ("x", "o", "b", "e", "E") else ""
