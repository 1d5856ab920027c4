"""Kinds of values for `sweep.space`: from which values, or from which range of numbers, a sweep chooses an option's
value. A kind reads one form of value from a node of the YAML tree, describes it in messages, and gives its JSON Schema.
"""

import re
from typing import Any

from msgspec import Struct

from launcher.spec.kinds.groups import ListOf
from launcher.spec.kinds.leaf import Json, Leaf, Unfit
from launcher.spec.kinds.numbers import Boolean
from launcher.spec.kinds.sections import Field, Section
from launcher.spec.kinds.text import Text
from launcher.spec.model import Dimension, Word
from launcher.spec.problems import Problem, Wrong, got, wrong
from launcher.spec.tree import Mapping, Node, Scalar, Sequence, Unusable

_WHOLE = r"[-+]?[0-9]{1,15}"
_REAL = r"[-+]?(?:[0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})(?:[eE][-+]?[0-9]{1,3})?"
_KEY = r"[a-z_]+(?:\.[^\s=.]+)+"


class Real(Leaf, frozen=True):
    """A number of any sign and size, such as 1e-5; it is an int if it is written as one."""

    WORDS = "a number"

    def convert(self, scalar: Scalar) -> float:
        """Return the value that the scalar stands for; raise Unfit if its text is not of this kind."""
        if not re.fullmatch(_REAL, scalar.text):
            raise Unfit
        if not scalar.plain:
            raise Unfit("take the quotes away")
        return int(scalar.text) if re.fullmatch(_WHOLE, scalar.text) else float(scalar.text)

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        return {"type": "number"}


class PlainWord(Leaf, frozen=True):
    """A number, a truth value or a text: `3` and `true` are read as such unless they are quoted."""

    WORDS = "a value"

    def convert(self, scalar: Scalar) -> Word:
        """Return a bool for an unquoted `true` or `false`, an int or float for an unquoted number, and the text for
        anything else.
        """
        if scalar.plain and scalar.text in ("true", "false"):
            return scalar.text == "true"
        if scalar.plain and re.fullmatch(_REAL, scalar.text):
            return Real().convert(scalar)
        return _TEXT.convert(scalar)

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        return _TEXT.schema()


class WhenText(Leaf, frozen=True):
    """A condition such as `run.args.model == resnet`: the key of another option, and the value that it must have."""

    WORDS = "a condition such as run.args.model == resnet"
    PATTERN = rf"{_KEY} *== *\S.*"

    def convert(self, scalar: Scalar) -> tuple[str, Word]:
        """Return (the other option's key, its value); raise Unfit if the text is no condition."""
        if not re.fullmatch(self.PATTERN, scalar.text):
            raise Unfit
        key, _, value = scalar.text.partition("==")
        return key.strip(), PlainWord().convert(Scalar(value.strip(), True, scalar.mark))


_TEXT = Text(lines=True, empty=True)
KEY = Text("the key of an option such as run.args.lr", _KEY)
_RANGE = Section(
    Dimension,
    (
        Field("from", Real(), "The least", ("low",)),
        Field("to", Real(), "The most", ("high",)),
        Field("step", Real(), "Only every so much from the least on"),
        Field("log", Boolean(), "Each power of ten is as likely as the next"),
        Field("values", ListOf(PlainWord(), minimum=1), "One of these, instead of a range"),
        Field("when", WhenText(), "Chosen only where this holds"),
    ),
)  # fmt: skip


class Choices(Struct, frozen=True):
    """The kind of value that says from what a sweep chooses an option: a list such as `[32, 64]`, or a range `{from:
    1e-5, to: 1e-1, log: true}`. With `when` the option is chosen only if another one has a certain value.
    """

    def words(self) -> str:
        """Return the noun for messages that say what is expected, such as `an integer`."""
        return "a list of values, or a range such as {from: 1e-5, to: 1e-1, log: true}"

    def parse(self, node: Node) -> Dimension:
        """Return the value that the node stands for; raise Wrong with every problem in it."""
        match node:
            case Unusable():
                raise Wrong
            case Sequence():
                return Dimension(values=ListOf(PlainWord(), minimum=1).parse(node))
            case Mapping():
                return self._read_mapping(node)
        raise wrong(node, f"expected {self.words()}, got {got(node)}", f"write [{node.text}]")

    def _read_mapping(self, node: Mapping) -> Dimension:
        """Return the choices that a mapping describes: a range or values; raise Wrong with every problem."""
        found: Dimension = _RANGE.parse(node)
        problems = [Problem(node.mark, reason, hint) for reason, hint in _contradictions(found, set(node.entries))]
        if problems:
            raise Wrong(*problems)
        if found.values:
            return found
        ends = (found.low, found.high, found.step or 0)
        return Dimension((), *ends[:2], found.step, found.log, all(isinstance(end, int) for end in ends), found.when)

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        return {"anyOf": [ListOf(PlainWord(), minimum=1).schema(), _RANGE.schema()]}


def _contradictions(found: Dimension, written: set[str]) -> Any:
    """Yield (reason, hint) for each contradiction in what is written for one option, such as values beside a range, a
    range that ends below its beginning, or a step in a logarithmic one. `written` are the keys that the user has
    written.
    """
    ranged = written & {"from", "to", "step", "log"}
    if found.values:
        if ranged:
            yield "either values or a range, got both", ""
        return
    if not {"from", "to"} <= written:
        yield "expected from and to, or values", "write {from: 1e-5, to: 1e-1}"
    elif found.low >= found.high:
        yield f"expected a range that goes up, got {found.low:g} to {found.high:g}", ""
    elif found.log and found.low <= 0:
        yield f"a logarithmic range begins above 0, got {found.low:g}", ""
    if found.step is not None and found.step <= 0:
        yield f"expected a step above 0, got {found.step:g}", ""
    elif found.log and found.step is not None:
        yield "a logarithmic range has no step", "list the values"
