"""How many nodes: a number, or a range like 2..4."""

import re
from dataclasses import dataclass

from launcher.spec.kinds.leaf import Json, Leaf, Unfit
from launcher.spec.model import NodeRange
from launcher.spec.tree import Scalar

_MOST = 100_000
_COUNT = "[1-9][0-9]{0,5}"


@dataclass(frozen=True, slots=True)
class Nodes(Leaf):
    def words(self) -> str:
        return "an integer or a range like 2..4"

    def convert(self, scalar: Scalar) -> NodeRange:
        text = scalar.text
        if re.fullmatch(_COUNT, text):
            if not scalar.plain:
                raise Unfit("take the quotes away")
            return _range(int(text), int(text))
        ends = re.fullmatch(rf"({_COUNT})\.\.({_COUNT})", text)
        if ends is None:
            raise Unfit(_cure(text))
        return _range(int(ends[1]), int(ends[2]))

    def schema(self) -> Json:
        text = {"type": "string", "pattern": rf"^{_COUNT}\.\.{_COUNT}$"}
        return {"anyOf": [{"type": "integer", "minimum": 1, "maximum": _MOST}, text]}

    def show(self, value: NodeRange) -> int | str:
        return value.min if value.min == value.max else str(value)


def _range(low: int, high: int) -> NodeRange:
    if low > high:
        raise Unfit(f"write {high}..{low}", f"expected a range that goes up, got {low}..{high}")
    if high > _MOST:
        raise Unfit(reason=f"expected at most {_MOST} nodes, got {high}")
    return NodeRange(low, high)


def _cure(text: str) -> str:
    ends = re.fullmatch(r"0*([1-9][0-9]{0,5})\s*(?:-|:|to|\.{1,3}|,)\s*0*([1-9][0-9]{0,5})", text)
    if ends:
        return f"write {ends[1]}..{ends[2]}"
    count = re.fullmatch("0+([1-9][0-9]{0,5})", text)
    return f"write {count[1]}" if count else ""
