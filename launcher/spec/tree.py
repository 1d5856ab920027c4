"""The text of a spec as a small tree; values stay text, whose meaning depends on the option."""

from collections.abc import Iterator

from msgspec import Struct


class Mark(Struct, frozen=True):
    """A place in the file, counted from 1; line 0 is the command line."""

    line: int
    column: int


FROM_COMMAND_LINE = Mark(0, 0)


class Scalar(Struct, frozen=True):
    """A single value of a spec, kept as text."""

    text: str
    plain: bool  # written without quotes
    mark: Mark

    @property
    def is_null(self) -> bool:
        """Return whether nothing is written, or a YAML null."""
        return self.plain and self.text in ("", "~", "null", "Null", "NULL")


class Sequence(Struct, frozen=True):
    """A YAML list."""

    items: "list[Node]"
    mark: Mark


class Entry(Struct, frozen=True):
    """A key of a mapping with its value."""

    key: Scalar
    value: "Node"


class Mapping(Struct, frozen=True):
    """A YAML mapping; its keys are unique, as the reader drops a second entry of a key with a problem."""

    entries: dict[str, Entry]
    mark: Mark

    def find(self, *keys: str) -> Entry | None:
        """Return the entry at a path of keys, or None if there is none."""
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
    """A place in the tree whose problem was reported already, so that no reader reports it again."""

    mark: Mark


Node = Scalar | Sequence | Mapping | Unusable
