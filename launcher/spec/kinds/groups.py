"""Kinds of values that contain others: lists, mappings with free keys, one of several shapes, command lines. A kind
reads one form of value from a node of the YAML tree, describes it in messages, and gives its JSON Schema. A Mapping,
Sequence or Scalar is such a node.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Struct

from launcher.spec.kinds.leaf import Json, Kind, Leaf, Unfit
from launcher.spec.kinds.text import Text
from launcher.spec.problems import Gather, Problem, Wrong, got, shown, wrong
from launcher.spec.tree import Mapping, Node, Scalar, Sequence, Unusable

WORD = Text(lines=True, empty=True)
_OPTION = r"[^\s=]+"
_MESH = "mesh"
_BARE_WORDS = re.compile(r"[\w./=+-][\w./=+ -]{,60}", re.ASCII)  # that need no quotes in a list


class ListOf(Struct, frozen=True):
    """A list of values of the kind `item`, read as a tuple. With `single`, one item may be written without a list; with
    `may_be_blank`, nothing written is an empty list; and `name_of`, if given, returns a value's name, which no two
    items may share.
    """

    item: Kind
    single: bool = False  # one item may be written without a list
    minimum: int = 0  # how many items it must have
    may_be_blank: bool = False  # nothing written is an empty list
    name_of: Callable[[Any], object] | None = None  # no two items may have the same name

    def words(self) -> str:
        """Return the noun for messages that say what is expected, such as `an integer`."""
        return f"{self.item.words()}, or a list" if self.single else f"a list, each {self.item.words()}"

    def parse(self, node: Node) -> tuple[Any, ...]:
        """Return the value that the node stands for; raise Wrong with every problem in it."""
        if isinstance(node, Unusable):
            raise Wrong
        if isinstance(node, Sequence):
            return self._items(node)
        if self.may_be_blank and isinstance(node, Scalar) and node.is_null:
            return ()
        if self.single:
            return (self.item.parse(node),)
        hint = ""
        if isinstance(node, Scalar) and node.text.isidentifier() and not node.is_null:
            hint = f"write [{node.text}]"
        raise wrong(node, f"expected {self.words()}, got {got(node)}", hint)

    def _items(self, node: Sequence) -> tuple[Any, ...]:
        """Return the values of a list's items; raise Wrong with every problem."""
        if len(node.items) < self.minimum:
            raise wrong(node, f"expected {self.words()}, got an empty list")
        gather = Gather()
        values: list[Any] = []
        names: set[object] = set()
        for index, item in enumerate(node.items):
            value = gather.take(index, self.item.parse, item)
            values.append(value)
            if value is not None and self.name_of is not None:
                name = self.name_of(value)
                if name in names:
                    reason = f"{shown(str(name))} is in the list already"
                    gather.add(Problem(item.mark, reason, "take one of them out", (index,)))
                names.add(name)
        gather.close()
        return tuple(values)

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        item = self.item.schema()
        kinds = ["array", "null"] if self.may_be_blank else "array"
        array = {"type": kinds, "items": item, **({"minItems": self.minimum} if self.minimum else {})}
        return {"anyOf": [item, array]} if self.single else array


class TableOf(Struct, frozen=True):
    """A mapping with keys that the user chooses, read as a dict; an entry whose value is read as None is left out."""

    key: Leaf
    value: Kind

    def words(self) -> str:
        """Return the noun for messages that say what is expected, such as `an integer`."""
        return f"a mapping from {self.key.words()} to {self.value.words()}"

    def parse(self, node: Node) -> dict[str, Any]:
        """Return the node's entries as a dict, each key read by the kind `key` and each value by the kind `value`; {}
        if the node is null. Raise Wrong with every problem in it.
        """
        if isinstance(node, Scalar) and node.is_null:
            return {}
        if isinstance(node, Unusable):
            raise Wrong
        if not isinstance(node, Mapping):
            raise wrong(node, f"expected {self.words()}, got {got(node)}", "write `NAME: value`, one on each line")
        gather = Gather()
        values = {}
        for entry in node:
            name = gather.take(entry.key.text, self.key.parse, entry.key)
            value = gather.take(entry.key.text, self.value.parse, entry.value)
            if name is not None and value is not None:
                values[name] = value
        gather.close()
        return values

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        return {
            "type": ["object", "null"],
            "propertyNames": self.key.schema(),
            "additionalProperties": self.value.schema(),
        }


class ByShape(Struct, frozen=True):
    """A value whose kind depends on its shape in YAML: `scalar`, `sequence` (a list) or `mapping`; None refuses that
    shape. `blank` is the value if nothing is written.
    """

    scalar: Kind | None = None
    sequence: Kind | None = None
    mapping: Kind | None = None
    blank: Any = None  # the value if nothing is written

    def words(self) -> str:
        """Return the noun for messages that say what is expected, such as `an integer`."""
        return " or ".join(kind.words() for kind in self._kinds())

    def parse(self, node: Node) -> Any:
        """Return the value that the node stands for; raise Wrong with every problem in it."""
        match node:
            case Unusable():
                raise Wrong
            case Scalar():
                if node.is_null and self.blank is not None:
                    return self.blank
                kind = self.scalar
            case Sequence():
                kind = self.sequence
            case Mapping():
                kind = self.mapping
        if kind is None:
            raise wrong(node, f"expected {self.words()}, got {got(node)}", self._as_list(node))
        return kind.parse(node)

    def _as_list(self, node: Node) -> str:
        """Return a hint such as "write [a, b]" if several words are written where a list is expected, else ""."""
        text = node.text if self.sequence is not None and isinstance(node, Scalar) else ""
        return f"write [{', '.join(text.split())}]" if _BARE_WORDS.fullmatch(text) else ""

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        blank = [] if self.blank is None else [{"type": "null"}]
        return {"anyOf": [*(kind.schema() for kind in self._kinds()), *blank]}

    def _kinds(self) -> list[Kind]:
        """Return those of the kinds for a scalar, a list and a mapping that are set."""
        return [kind for kind in (self.scalar, self.sequence, self.mapping) if kind is not None]


class Flag(Leaf, frozen=True):
    """The value of an option that a spec passes on to a program such as sbatch: true is read as `bare`, the option
    without a value; false as None, which leaves the option out; other values are of the kind `text`.
    """

    text: Leaf
    bare: str = ""

    def words(self) -> str:
        """Return the noun for messages that say what is expected, such as `an integer`."""
        return f"true, false or {self.text.words()}"

    def convert(self, scalar: Scalar) -> str | None:
        """Return the value of the program's option, or None if the option is left out; raise Unfit if the text is not
        of this kind.
        """
        if not scalar.plain:
            return str(self.text.convert(scalar))
        if scalar.text in ("true", "false"):
            return self.bare if scalar.text == "true" else None
        refuse_surprise(scalar)
        return str(self.text.convert(scalar))

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        return self.text.schema()


def refuse_surprise(scalar: Scalar) -> None:
    """Raise Unfit for an unquoted word that some YAML readers take for true or false, such as `yes`, and for an empty
    value.
    """
    word = scalar.text.lower()
    if word in ("true", "yes", "on"):
        raise Unfit(f"write true, or quote it if you mean text: '{scalar.text}'")
    if word in ("false", "no", "off"):
        raise Unfit(f"write false, or quote it if you mean text: '{scalar.text}'")
    if scalar.is_null:
        raise Unfit("write true for an option without a value, or '' for empty text")


class ArgsTable(Struct, frozen=True):
    """A mapping read as words of a command line: `key: value` becomes `--key value`, true the bare `--key`, false
    nothing, and a list `--key a b c`. The value of `mesh` may itself be a mapping, of the names of a device mesh's
    dimensions to their sizes, which becomes `--mesh pp=2,dp=2`.
    """

    def words(self) -> str:
        """Return the noun for messages that say what is expected, such as `an integer`."""
        return "a mapping that becomes `--key value`"

    def parse(self, node: Node) -> tuple[str, ...]:
        """Return the words of the command line; raise Wrong with every problem in the node."""
        if not isinstance(node, Mapping):
            raise Wrong
        gather = Gather()
        words: list[str] = []
        for entry in node:
            words += gather.take(entry.key.text, partial(_option, entry.key), entry.value) or []
        gather.close()
        return tuple(words)

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        value = WORD.schema()
        either = {"anyOf": [value, {"type": "array", "items": value}]}
        sizes = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}, "minProperties": 1}
        return {
            "type": "object",
            "propertyNames": {"pattern": f"^{_OPTION}$"},
            "properties": {_MESH: {"anyOf": [*either["anyOf"], sizes]}},
            "additionalProperties": either,
        }


def _option(key: Scalar, value: Node) -> list[str]:
    """Return one entry of a mapping of options as words of a command line: `lr: 0.1` becomes `--lr 0.1`, and a list
    several words after the option. Raise Wrong if the key or the value cannot be written so (see `option_words`).
    """
    return [WORD.parse(word) for word in option_words(key, value)]


def option_words(key: Scalar, value: Node) -> list[Scalar]:
    """Return the words of a command line, as scalars, for one entry of a mapping of options: `lr: 0.1` becomes
    `--lr 0.1`, `true` the option alone, `false` nothing, and a list several words after the option.

    Raise Wrong if the key is no option's name, or the value neither a scalar nor a list; only that of `mesh` may be a
    mapping, which becomes one word such as `pp=2,dp=2`.
    """
    if not re.fullmatch(_OPTION, key.text):
        raise wrong(key, "expected the name of an option, without white space and =")
    option = Scalar(key.text if key.text.startswith("-") else f"--{key.text}", False, key.mark)
    WORD.parse(option)
    match value:
        case Scalar():
            return _with_scalar(option, value)
        case Sequence():
            return [option, *_scalars(value)]
        case Mapping() if key.text == _MESH:
            return [option, _mesh(value)]
        case Mapping():
            raise wrong(value, "expected a value or a list, got a mapping", "quote it if the program reads JSON")
        case Unusable():
            raise Wrong


def _mesh(value: Mapping) -> Scalar:
    """Return a mapping of mesh dimensions as text, such as `pp=2,dp=2`; raise Wrong if a size is not a number above
    0.
    """
    gather = Gather()
    sizes = [
        f"{entry.key.text}={gather.take(entry.key.text, _whole_number, entry.value)}"
        for entry in value.entries.values()
    ]
    gather.close()
    if not sizes:
        raise wrong(value, "expected numbers of ranks by name, as pp: 2, got none")
    return Scalar(",".join(sizes), False, value.mark)


def _whole_number(value: Node) -> str:
    """Return the text of an integer above 0, the number of ranks along a dimension of a mesh; raise Wrong for any other
    value.
    """
    if isinstance(value, Scalar) and re.fullmatch(r"[1-9][0-9]{0,5}", value.text):
        return value.text
    raise wrong(value, f"expected a number of ranks, got {got(value)}")


def _with_scalar(option: Scalar, value: Scalar) -> list[Scalar]:
    """Return the words of an option with one value: `--key value`, `--key` alone for true, or none for false. Raise
    Wrong for a word such as `yes`.
    """
    if not value.plain:
        return [option, value]
    if value.text in ("true", "false"):
        return [option] if value.text == "true" else []
    try:
        refuse_surprise(value)
    except Unfit as error:
        raise wrong(value, f"expected true, false, text or a list, got {got(value)}", error.hint) from None
    return [option, value]


def _scalars(values: Sequence) -> list[Scalar]:
    """Return the items of a list; raise Wrong if one is not a scalar, and so no word of a command line."""
    gather = Gather()
    for index, item in enumerate(values.items):
        gather.take(index, WORD.parse, item)
    gather.close()
    return [item for item in values.items if isinstance(item, Scalar)]
