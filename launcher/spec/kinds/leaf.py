"""The base classes of kinds of values: Kind for any value of a spec, Leaf for one that is written as a single
scalar.
"""

from typing import Any, ClassVar, Protocol

from msgspec import Struct

from launcher.spec.problems import Problem, Wrong, got, wrong
from launcher.spec.tree import Node, Scalar, Unusable

Json = dict[str, Any]


class Kind(Protocol):
    """The interface of a kind of value: how it is described in messages, how it is read, and its JSON Schema."""

    def words(self) -> str:
        """Return the noun for messages that say what is expected, such as `an integer`."""

    def parse(self, node: Node) -> Any:
        """Return the value that the node stands for; raise Wrong with every problem in it."""

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind, as far as JSON Schema can express it."""


class Unfit(Exception):
    """Raised if a text is not of a kind. `hint` may tell what to write instead; `reason` is set if the message
    "expected ..., got ..." does not suffice.
    """

    def __init__(self, hint: str = "", reason: str = "") -> None:
        super().__init__(hint, reason)
        self.hint = hint
        self.reason = reason


class Leaf(Struct, frozen=True):
    """A kind of value that is written as one scalar. `WORDS` describes it in messages, and `PATTERN` is a regular
    expression for all its texts.
    """

    WORDS: ClassVar[str] = ""
    PATTERN: ClassVar[str] = ""  # of all its texts; Python and JSON Schema read it alike

    def words(self) -> str:
        """Return the noun for messages that say what is expected, such as `an integer`."""
        return self.WORDS

    def convert(self, scalar: Scalar) -> Any:
        """Return the value that the scalar stands for; raise Unfit if its text is not of this kind."""
        raise NotImplementedError

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        return {"type": "string", "pattern": f"^{self.PATTERN}$"}

    def show(self, value: Any) -> Any:
        """Return the value as it would be written in a spec, for JSON. It is the inverse of `convert`."""
        return value

    def parse(self, node: Node) -> Any:
        """Return the value that the node stands for; raise Wrong with every problem in it."""
        if isinstance(node, Unusable):
            raise Wrong
        expected = f"expected {self.words()}, got {got(node)}"
        if not isinstance(node, Scalar):
            raise wrong(node, expected)
        try:
            return self.convert(node)
        except Unfit as error:
            raise Wrong(Problem(node.mark, error.reason or expected, error.hint)) from None


class WordOr(Leaf, frozen=True):
    """Either `word`, which is read as None (auto, off or unlimited), or a value of the kind `other`. `instead_of` are
    texts that deserve a hint to write that word, and `none` those that deserve a hint to write 0.
    """

    word: str
    other: Leaf
    instead_of: tuple[str, ...] = ()  # texts that deserve a hint to write `word`
    none: tuple[str, ...] = ()  # texts that deserve a hint to write 0

    def words(self) -> str:
        """Return the noun for messages that say what is expected, such as `an integer`."""
        return f"{self.word} or {self.other.words()}"

    def convert(self, scalar: Scalar) -> Any:
        """Return the value that the scalar stands for; raise Unfit if its text is not of this kind."""
        if scalar.text == self.word:
            return None
        try:
            return self.other.convert(scalar)
        except Unfit:
            if scalar.text.lower() in (self.word, *self.instead_of):
                raise Unfit(f"write {self.word}") from None
            if scalar.text.lower() in self.none:
                raise Unfit("write 0 for none") from None
            raise

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        return {"anyOf": [{"const": self.word}, self.other.schema()]}

    def show(self, value: Any) -> Any:
        """Return the value as it would be written in a spec, for JSON."""
        return self.word if value is None else self.other.show(value)
