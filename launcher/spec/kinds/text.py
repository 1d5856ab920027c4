"""Text: taken as it is written, so that `010`, `yes` and `12:30:45` stay what they are."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from launcher.spec.kinds.leaf import Json, Leaf, Unfit
from launcher.spec.tree import Scalar
from launcher.spec.yaml_text import control_character

# Linux takes no single argument or variable of more than 128 KiB.
_LONGEST = 120_000
_LONGEST_LINE = 4096
# What an editor takes for a number or a truth value is text here.
_TEXT_TYPES = ["string", "number", "boolean"]


@dataclass(frozen=True, slots=True)
class Text(Leaf):
    what: str = "text"
    pattern: str = ""  # of the whole text; Python and JSON Schema read it alike
    lines: bool = False  # may have line breaks and tabs
    empty: bool = False
    cure: Callable[[str], str] | None = None  # a hint for text that does not fit

    def words(self) -> str:
        return self.what

    def convert(self, scalar: Scalar) -> str:
        text = scalar.text
        if scalar.is_null:
            raise Unfit(f"quote it if you mean text: '{text}'")
        refuse_characters(text, lines=self.lines)
        if not text and not self.empty:
            raise Unfit(reason=f"expected {self.what}, got empty text")
        if self.pattern and not re.fullmatch(self.pattern, text):
            raise Unfit(self.cure(text) if self.cure else "")
        return text

    def schema(self) -> Json:
        if self.pattern:
            return {"type": _TEXT_TYPES, "pattern": f"^(?:{self.pattern})$"}
        return {"type": _TEXT_TYPES} if self.empty else {"type": _TEXT_TYPES, "minLength": 1}


@dataclass(frozen=True, slots=True)
class Choice(Leaf):
    """One of a few words."""

    options: tuple[str, ...]

    def words(self) -> str:
        return f"one of {', '.join(self.options)}"

    def convert(self, scalar: Scalar) -> str:
        if scalar.text not in self.options:
            upper = scalar.text.upper()
            raise Unfit(f"write {upper}" if upper in self.options else "")
        return scalar.text

    def schema(self) -> Json:
        return {"enum": list(self.options)}


def refuse_characters(text: str, *, lines: bool) -> None:
    """Raises Unfit where the text holds what no value may hold, or is too long for one."""
    name = control_character(text, lines=lines)
    if name is not None:
        raise Unfit(reason=f"control character {name} in a value" if lines else f"{name} in a value of one line")
    longest = _LONGEST if lines else _LONGEST_LINE
    if len(text.encode()) > longest:
        raise Unfit(reason=f"longer than {longest} bytes")


def word(what: str, pattern: str = r"[^\s-]\S*") -> Text:
    """Text without white space that cannot be taken for an option of a command."""
    return Text(what, pattern)
