"""Translate PyYAML's errors, from libyaml's parser in C and from the one in Python."""

import yaml

from launcher.spec.problems import Problem, printable, shown
from launcher.spec.tree import Mark

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


def problem_of(error: Exception, text: str) -> Problem:
    """Return where and why the text is not valid YAML."""
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
    char = text.split("\n")[place.line][place.column : place.column + 1]
    if char == "\t":
        return Problem(_mark(place), "a tab in the indentation", "indent with spaces", ("yaml",))
    return Problem(_mark(place), f"text cannot begin with {shown(char)}", "put it in quotes", ("yaml",))


def _mark(mark: yaml.Mark) -> Mark:
    return Mark(mark.line + 1, mark.column + 1)
