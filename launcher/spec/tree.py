"""The tree of a spec's YAML. Values stay text, because their meaning depends on the option; each node has its
position.
"""

from collections.abc import Iterator

from msgspec import Struct


class Mark(Struct, frozen=True):
    """A position in the file: line and column, counted from 1; line 0 is the command line."""

    line: int
    column: int


FROM_COMMAND_LINE = Mark(0, 0)


class Scalar(Struct, frozen=True):
    """A single value of a spec, as text; `plain` if it was written without quotes."""

    text: str
    plain: bool  # written without quotes
    mark: Mark

    @property
    def is_null(self) -> bool:
        """Whether nothing is written, or a YAML null."""
        return self.plain and self.text in ("", "~", "null", "Null", "NULL")


class Sequence(Struct, frozen=True):
    """A list of a spec."""

    items: "list[Node]"
    mark: Mark  # where it begins


class Entry(Struct, frozen=True):
    """A key of a mapping and its value."""

    key: Scalar
    value: "Node"


class Mapping(Struct, frozen=True):
    """A mapping of a spec, by key; keys are unique, because the reader reports and drops a second entry."""

    entries: dict[str, Entry]
    mark: Mark  # where it begins

    def find(self, *keys: str) -> Entry | None:
        """Return the entry at a path of keys, or None if there is no such entry."""
        node: Node = self
        entry = None
        for key in keys:
            entry = node.entries.get(key) if isinstance(node, Mapping) else None
            if entry is None:
                return None
            node = entry.value
        return entry

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())


class Unusable(Struct, frozen=True):
    """A node whose problem was reported when the YAML was read, so that it is not reported a second time when its value
    is read.
    """

    mark: Mark


Node = Scalar | Sequence | Mapping | Unusable
