"""Sizes in bytes: the unit is written, never guessed."""

import re
from dataclasses import dataclass

from launcher.spec.kinds.leaf import Json, Leaf, Unfit
from launcher.spec.tree import Scalar

_SIZE_UNITS = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_SIZE = rf"(?:0|[1-9][0-9]{{0,11}})(?:\.[0-9]{{1,9}})?(?:{'|'.join(_SIZE_UNITS)})"


@dataclass(frozen=True, slots=True)
class Size(Leaf):
    """Bytes."""

    def words(self) -> str:
        return "a size such as 512KB, 100MB or 2GiB"

    def convert(self, scalar: Scalar) -> int:
        if not re.fullmatch(_SIZE, scalar.text):
            raise Unfit(_size_cure(scalar.text))
        number = scalar.text.rstrip("KMGTiB")
        value = round(float(number) * _SIZE_UNITS[scalar.text[len(number) :]])
        if value < 1:
            raise Unfit(reason=f"expected more than nothing, got {scalar.text}")
        return value

    def schema(self) -> Json:
        return {"type": "string", "pattern": f"^{_SIZE}$"}

    def show(self, value: int) -> str:
        unit = next(unit for unit in reversed(list(_SIZE_UNITS)[:5]) if value % _SIZE_UNITS[unit] == 0)
        return f"{value // _SIZE_UNITS[unit]}{unit}"


def _size_cure(text: str) -> str:
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)", text)
    if found is None:
        return ""
    number, unit = found[1], found[2].lower()
    if not unit:
        return f"write the unit: {number}MB or {number}GB"
    known = {name.lower(): name for name in _SIZE_UNITS}
    match = known.get(unit) or known.get(f"{unit}b")
    return f"write {number}{match}" if match else f"the units are {', '.join(_SIZE_UNITS)}"
