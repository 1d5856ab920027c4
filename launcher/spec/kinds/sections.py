"""The kind of value for a section: a mapping with known options that becomes an instance of one class of model.py. A
Mapping, Sequence or Scalar is a node of the YAML tree.
"""

import re
from collections.abc import Callable, Iterator
from collections.abc import Mapping as Values
from functools import cached_property
from typing import Any

from msgspec import NODEFAULT, Struct
from msgspec.structs import replace

from launcher.spec.kinds.leaf import Json, Kind, Leaf, WordOr
from launcher.spec.problems import Gather, Problem, Wrong, got, wrong
from launcher.spec.tree import Entry, Mapping, Node, Scalar, Sequence, Unusable

UNKNOWN = "unknown option"

# What is wrong with how options stand beside each other. Gets what is written, and the values that could be read.
Check = Callable[[Mapping, Values[str, Any]], Iterator[Problem]]


class Field(Struct, frozen=True):
    """An option of a section: its `key` in YAML, the `kind` of its value, its help text, and the attributes that it
    `sets` (by default one, called like the key). `example` shows how it is written.
    """

    key: str
    kind: Kind
    doc: str  # its help text
    sets: tuple[str, ...] = ()
    example: str = ""  # how it is written, for the reference and templates, if the kind's words are too general

    @property
    def attributes(self) -> tuple[str, ...]:
        """The names of the attributes that the option sets."""
        return self.sets or (self.key,)


class Section(Struct, frozen=True, dict=True):
    """A mapping with known options, from which an instance of `model` is made. `base` is an instance with other
    defaults; `checks` compare options with each other; a `required` section may not be empty. `misread` returns a
    problem if the whole section has another form than meant; then only that problem is reported.
    """

    model: type
    options: tuple[Field, ...]
    base: Any = None  # an instance with the defaults, if these are not those of the class
    checks: tuple[Check, ...] = ()
    required: bool = False  # may not be empty
    misread: Callable[[Mapping], Problem | None] | None = None  # returns one problem, reported alone, or None
    schema_extra: tuple[tuple[str, Any], ...] = ()  # further (key, value) of its JSON Schema

    @cached_property
    def by_key(self) -> dict[str, Field]:
        """The options by key."""
        return {field.key: field for field in self.options}

    def words(self) -> str:
        """Return the noun for messages that say what is expected, such as `an integer`."""
        return f"a mapping with {', '.join(self.by_key)}" if len(self.options) < 4 else "a mapping of options"

    @cached_property
    def _usual(self) -> Any:
        """The instance of `model` that an empty section stands for, from which the defaults of options are read. It has
        NODEFAULT for each required attribute.
        """
        if self.base is not None or not issubclass(self.model, Struct):
            return self.base
        required = len(self.model.__struct_fields__) - len(self.model.__struct_defaults__)
        return self.model(*[NODEFAULT] * required)

    def default(self, field: Field) -> Any:
        """Return the default of an option: its value, a tuple if the option sets several attributes, or NODEFAULT if it
        is required.
        """
        values = tuple(getattr(self._usual, name, None) for name in field.attributes)
        return values if len(values) > 1 else values[0]

    def parse(self, node: Node) -> Any:
        """Return the value that the node stands for; raise Wrong with every problem in it."""
        if isinstance(node, Unusable):
            raise Wrong
        if isinstance(node, Scalar) and node.is_null and not self.required:
            node = Mapping({}, node.mark)
        if not isinstance(node, Mapping):
            text = node.text if isinstance(node, Scalar) else ""
            hint = f"write {self.options[0].key}: {text} below it" if re.fullmatch(r"[\w./-]{1,60}", text) else ""
            raise wrong(node, f"expected {self.words()}, got {got(node)}", hint)
        gather = Gather()
        if self.misread is not None and (problem := self.misread(node)) is not None:
            gather.add(problem)
            gather.close()
        values: dict[str, Any] = {}
        for entry in node:
            values |= self._entry(gather, entry)
        for problem in self._missing(node):
            gather.add(problem)
        for check in self.checks:
            for problem in check(node, values):
                gather.add(problem)
        gather.close()
        return self.made(values)

    def made(self, values: dict[str, Any]) -> Any:
        """Return an instance of `model`, or a copy of `base` if that is set, with the attributes in `values`."""
        return replace(self.base, **values) if self.base is not None else self.model(**values)

    def _entry(self, gather: Gather, entry: Entry) -> dict[str, Any]:
        """Return {attribute: value} for what an entry of the mapping sets; add its problems to `gather`."""
        field = self.by_key.get(entry.key.text)
        if field is None:
            gather.add(self.unknown(entry.key))
            return {}
        try:
            value = field.kind.parse(entry.value)
        except Wrong as error:
            gather.blame(error, field.key)
            return {}
        return dict(zip(field.attributes, value if len(field.attributes) > 1 else (value,), strict=True))

    def _missing(self, node: Mapping) -> Iterator[Problem]:
        """Yield a problem for each required option that is missing."""
        for field in self.options:
            if self.default(field) is NODEFAULT and field.key not in node.entries:
                yield Problem(node.mark, "missing", f"write {field.key}: {field.example or '...'}", (field.key,))

    def unknown(self, key: Scalar) -> Problem:
        """Return the problem that the section has no option `key`; its message offers the known keys."""
        return Problem(key.mark, UNKNOWN, key=(key.text,), word=key.text, options=tuple(self.by_key))

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        missing = [field.key for field in self.options if self.default(field) is NODEFAULT]
        return {
            "type": "object" if self.required else ["object", "null"],
            "additionalProperties": False,
            **({"required": missing} if missing else {}),
            **dict(self.schema_extra),
            "properties": {
                field.key: {"description": field.doc, **field.kind.schema(), **self.shown_default(field)}
                for field in self.options
            },
        }

    def shown_default(self, field: Field) -> Json:
        """Return {"default": …} for the JSON Schema, or {} if the option has no default that a spec could contain."""
        value = self.default(field)
        unwritten = value is None and not isinstance(field.kind, WordOr)
        if unwritten or not isinstance(field.kind, Leaf | Shorthand) or value in (NODEFAULT, "", (None, None)):
            return {}
        return {"default": field.kind.show(value)}


class Shorthand(Struct, frozen=True):
    """A section that may be written as a scalar instead, which is then the value of its option `key`."""

    section: Section
    key: str

    def words(self) -> str:
        """Return the noun for messages that say what is expected, such as `an integer`."""
        return f"{self._kind.words()}, or {self.section.words()}"

    def parse(self, node: Node) -> Any:
        """Return the value that the node stands for; raise Wrong with every problem in it."""
        if isinstance(node, Sequence):
            raise wrong(node, f"expected {self.words()}, got a list")
        if isinstance(node, Scalar):
            return self.section.made({self.key: self._kind.parse(node)})
        return self.section.parse(node)

    def opened(self, node: Scalar) -> Mapping:
        """Return the section as a mapping, given the scalar with which it was abbreviated."""
        return Mapping({self.key: Entry(Scalar(self.key, True, node.mark), node)}, node.mark)

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        return {"anyOf": [self._kind.schema(), self.section.schema()]}

    def show(self, value: Any) -> Any:
        """Return the value as it would be written in a spec, for JSON."""
        return self._kind.show(getattr(value, self.key))

    @property
    def _kind(self) -> Leaf:
        """The kind of the option that the scalar sets; TypeError is raised if that cannot be written as a scalar."""
        kind = self.section.by_key[self.key].kind
        if not isinstance(kind, Leaf):
            raise TypeError(f"{self.key} cannot be written as a scalar")
        return kind
