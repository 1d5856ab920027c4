"""Read YAML text into a tree from PyYAML's events, without recursion and without guessing types; depth and size are
limited.
"""

from collections.abc import Iterator
from typing import Any

import yaml
from msgspec import Struct
from msgspec.structs import replace

from launcher.spec.problems import Problem, Wrong, printable, shown
from launcher.spec.tree import Entry, Mapping, Mark, Node, Scalar, Sequence, Unusable
from launcher.spec.yaml_text import check_text

_QUOTE_IT = "quote text that holds any of : # [ ] { } , & * ! | > ' \" % @ `"
_AT_ITS_START = ("quoted text that begins here", "a line without", "a directive")
# (fragment of PyYAML's words, ours, hint); the first that fits.
_WORDS = (
    ("unexpected end of stream", "quoted text that begins here has no end", ""),
    ("found a tab character", "a tab in the indentation", "indent with spaces"),
    ("mapping values are not allowed", "a ':' where none can be", "check the indentation; quote text that holds ': '"),
    ("sequence entries are not allowed", "a '-' where none can be", "put the list on lines of its own"),
    ("could not find expected ':'", "a line without ': '", "write `key: value`"),
    ("',' or ']'", "expected ',' or ']' in the list that began at line {start}", ""),
    ("',' or '}'", "expected ',' or '}' in the mapping that began at line {start}", ""),
    ("unknown escape", "unknown escape in double quotes", "write \\\\ for a backslash, or use single quotes"),
    ("hexdecimal", "broken escape in double quotes", "write \\\\ for a backslash, or use single quotes"),
    ("hexadecimal", "broken escape in double quotes", "write \\\\ for a backslash, or use single quotes"),
    ("Unicode character escape", "an escape that is no character", ""),
    ("expected '-' indicator", "expected '- ' like the items above", "check the indentation"),
    ("expected key", "expected a key of the mapping that began at line {start}", "check indentation and quotes"),
    ("<block end>", "expected a key of the mapping that began at line {start}", "check indentation and quotes"),
    ("node content", "expected a value", _QUOTE_IT),
    ("directive", "a directive, which a spec has no use for", _QUOTE_IT),
    ("<document start>", "text after the end of the document", ""),
    ("incompatible YAML document", "not a version of YAML 1", "leave the %YAML line out"),
)

MAX_DEPTH = 20
MAX_NODES = 10_000

_TOO_DEEP_FOR_LIBYAML = "exceeded maximum nesting depth"

LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


class _Open(Struct):
    """A list or mapping whose end has not been reached. `key` is the key whose value comes next; `spoiled` if it had a
    key that is no scalar.
    """

    node: Sequence | Mapping
    key: Scalar | Unusable | None = None
    spoiled: bool = False  # it becomes Unusable


class _Builder(Struct):
    """A builder of the tree from parser events. `at` is the position that every node gets if the text comes from no
    file; None means the node's own position. `stack` has the open lists and mappings, the innermost last, and `nodes`
    counts values.
    """

    at: Mark | None
    root: Node | None = None
    stack: list[_Open] = []
    problems: list[Problem] = []
    nodes: int = 0

    def event(self, event: yaml.Event) -> None:
        """Extend the tree by one event of the parser. Raise Wrong for a second document, for more than 10,000 values,
        and for nesting more than 20 deep.
        """
        if isinstance(event, yaml.NodeEvent):
            self._node(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._close(self.stack.pop())
        elif isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
            hint = "one file describes one job"
            raise Wrong(Problem(self._mark(event), "a second document begins here", hint, ("yaml",)))

    def _node(self, event: yaml.NodeEvent) -> None:
        """Add a scalar to the tree, or Unusable for an alias, or open a list or mapping. Raise Wrong for the value
        after 10,000, or for nesting more than 20 deep.
        """
        mark = self._mark(event)
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise Wrong(Problem(mark, f"more than {MAX_NODES} values", key=("yaml",)))
        if isinstance(event, yaml.AliasEvent):
            hint = "write the value out, or quote text that begins with *"
            self._add_problem(mark, "an alias, which a spec cannot have", hint)
            return self._add(Unusable(mark))
        self._refuse_decoration(event, mark)
        if isinstance(event, yaml.ScalarEvent):
            return self._add(Scalar(event.value, not event.style, mark))
        if len(self.stack) == MAX_DEPTH:
            raise Wrong(Problem(mark, f"nested more than {MAX_DEPTH} deep", key=("yaml",)))
        is_list = isinstance(event, yaml.SequenceStartEvent)
        self.stack.append(_Open(Sequence([], mark) if is_list else Mapping({}, mark)))
        return None

    def _refuse_decoration(self, event: yaml.NodeEvent, mark: Mark) -> None:
        """Add a problem for an anchor or a tag, which a spec cannot have."""
        if event.anchor is not None:
            self._add_problem(
                mark, "an anchor, which a spec cannot have", "leave it out, or quote text that begins with &"
            )
        if getattr(event, "tag", None) is not None:
            self._add_problem(mark, "a tag, which a spec cannot have", "leave it out, or quote text that begins with !")

    def _close(self, level: _Open) -> None:
        """Add a finished list or mapping to the tree. One with a list or mapping as a key, as in {{ this }}, is added
        as Unusable, so that it is not reported a second time; the root of the tree is added as it is.
        """
        self._add(Unusable(level.node.mark) if level.spoiled and self.stack else level.node)

    def _add(self, node: Node) -> None:
        """Add a node to the innermost open list or mapping, as an item, a key or a value."""
        if not self.stack:
            self.root = node
            return
        parent = self.stack[-1]
        if isinstance(parent.node, Sequence):
            parent.node.items.append(node)
        elif parent.key is None:
            parent.key = self._key(parent.node, node)
        else:
            if isinstance(parent.key, Scalar) and parent.key.text not in parent.node.entries:
                parent.node.entries[parent.key.text] = Entry(parent.key, node)
            parent.key = None

    def _key(self, mapping: Mapping, node: Node) -> Scalar | Unusable:
        """Return a node as a key of the mapping, or an Unusable, after adding a problem, if it is no scalar or a merge
        key. A duplicate key is returned as well, and adds a problem; the first one's value counts.
        """
        if not isinstance(node, Scalar):
            if not isinstance(node, Unusable):
                self._add_problem(node.mark, "a list or mapping as a key", "quote text that begins with { or [")
                self.stack[-1].spoiled = True
            return Unusable(node.mark)
        if node.plain and node.text == "<<":
            self._add_problem(node.mark, "a merge key, which a spec cannot have", "write the values out")
            return Unusable(node.mark)
        first = mapping.entries.get(node.text)
        if first is not None:
            key = (*self._path(), node.text)
            self.problems.append(Problem(node.mark, f"duplicate key, first at line {first.key.mark.line}", key=key))
        return node

    def _path(self) -> tuple[str | int, ...]:
        """Return the path of keys to the position at which the next node will be added."""
        names: list[str | int] = []
        for level in self.stack:
            if isinstance(level.node, Sequence):
                names.append(len(level.node.items))
            elif isinstance(level.key, Scalar):
                names.append(level.key.text)
        return tuple(names)

    def _add_problem(self, mark: Mark, reason: str, hint: str) -> None:
        """Add a problem whose key is the path to the present position."""
        self.problems.append(Problem(mark, reason, hint, self._path() or ("yaml",)))

    def _mark(self, event: yaml.Event) -> Mark:
        """Return the position that a node begun by this event gets: `at` if that is set, else the event's own."""
        start = event.start_mark
        if self.at is not None or start is None:
            return self.at or Mark(1, 1)
        return Mark(start.line + 1, start.column + 1)


class Read(Struct, frozen=True):
    """The tree of a text and its problems. `root` is None if the text is empty or no YAML."""

    root: Node | None
    problems: list[Problem]


class _TooDeep(Exception):
    """Raised for nesting so deep that libyaml itself gives up; `index` is the character at which the innermost list
    begins.
    """

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index  # where the innermost one begins


def read_tree(text: str, *, at: Mark | None = None, loader: type[Any] = LOADER) -> Read:
    """Return the tree of one YAML document, and its problems.

    With `at`, everything in it has that position, for a text that comes from no file; None means its position in the
    text. `loader` is the class of PyYAML by which the text is parsed.
    """
    text = text.replace("\r\n", "\n")
    builder = _Builder(at)
    try:
        if unreadable := check_text(text):
            raise Wrong(*unreadable)
        for event in _events(text, loader):
            builder.event(event)
    except _TooDeep as error:
        return read_tree(text[: error.index], at=at, loader=loader)  # this much it reads, so that we see how deep it is
    except Wrong as error:
        problems = [*builder.problems, *error.problems]
        return Read(None, problems if at is None else [replace(problem, mark=at) for problem in problems])
    return Read(builder.root, builder.problems)


def _events(text: str, loader: type[Any]) -> Iterator[yaml.Event]:
    """Yield PyYAML's events for the text, parsed by its class `loader`. Raise Wrong, with the position and the reason,
    for invalid YAML, and _TooDeep if it is nested too deep for libyaml.
    """
    events = yaml.parse(text, Loader=loader)
    while True:
        try:
            event = next(events, None)
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            marked = error if isinstance(error, yaml.MarkedYAMLError) else None
            if marked and marked.problem == _TOO_DEEP_FOR_LIBYAML and marked.problem_mark:
                raise _TooDeep(marked.problem_mark.index) from None
            raise Wrong(problem_of(error, text)) from None
        if event is None:
            return
        yield event


def problem_of(error: Exception, text: str) -> Problem:
    """Return the problem that says where and why the text is not valid YAML, given PyYAML's error."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        # The Python parser lets int() and chr() speak for themselves.
        return Problem(Mark(1, 1), "not valid YAML: an escape or a number out of range", key=("yaml",))
    place, start = error.problem_mark, error.context_mark or error.problem_mark
    said = error.problem or ""
    if "cannot start any token" in said:
        return _bad_start(text, place)
    if "alphabetic or numeric" in said or "tag" in f"{error.context} {said}":
        return Problem(_mark(start), "an anchor, alias or tag, which a spec cannot have", _QUOTE_IT, ("yaml",))
    if error.context == "while parsing a block collection":
        said = "expected '-' indicator"
    for fragment, words, hint in _WORDS:
        if fragment in said:
            at = start if words.startswith(_AT_ITS_START) else place
            return Problem(_mark(at), words.replace("{start}", str(start.line + 1)), hint, ("yaml",))
    return Problem(_mark(place), f"not valid YAML: {printable(said)[:200]}", key=("yaml",))


def _bad_start(text: str, place: yaml.Mark) -> Problem:
    """Return the problem of the character at `place`: a tab in the indentation, or a character with which no value can
    begin.
    """
    char = text.split("\n")[place.line][place.column : place.column + 1]
    if char == "\t":
        return Problem(_mark(place), "a tab in the indentation", "indent with spaces", ("yaml",))
    return Problem(_mark(place), f"text cannot begin with {shown(char)}", "put it in quotes", ("yaml",))


def _mark(mark: yaml.Mark) -> Mark:
    """Return the parser's position as one counted from 1."""
    return Mark(mark.line + 1, mark.column + 1)
