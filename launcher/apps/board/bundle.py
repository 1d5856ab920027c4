"""Return the text of a script preceded by all scripts that it imports.

This works because no two scripts declare the same name or import each other.
"""

import re
from functools import cache
from pathlib import Path

PAGE = Path(__file__).with_name("page")
SCRIPT, STYLES = "board.js", "board.css"  # their names, as the page asks for them
PAGE_FILES = ("index.html", STYLES, SCRIPT, "icon.svg")
_OF_OTHERS = "vendor/uplot/uPlot.iife.min.js"
_SHEETS = ("vendor/uplot/uPlot.min.css", "base.css", "views.css")
_IMPORT = re.compile(r'^import \{[^}]*\} from "([^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


@cache
def page_file(name: str) -> bytes:
    """Return one of `PAGE_FILES`.

    Each is built on its own, because a browser that reads the first does not need the others yet.
    """
    if name == SCRIPT:
        return _script("app.js").encode()
    if name == STYLES:
        return b"\n".join((PAGE / one).read_bytes() for one in _SHEETS)
    return (PAGE / name).read_bytes()


def _script(first: str) -> str:
    """Return one script made of `first` and everything that it imports."""
    return "\n".join([(PAGE / _OF_OTHERS).read_text(), '(() => {\n"use strict";', module(first), "})();\n"])


def module(first: str) -> str:
    """Return the text of a script preceded by all that it imports. This works because no two scripts declare the same
    name or import each other.
    """
    texts: dict[str, str] = {}
    _take(PAGE / first, texts)
    return "\n".join(texts.values())


def _take(path: Path, texts: dict[str, str]) -> None:
    """Add a script to `texts`, and before it all scripts that it imports."""
    name = path.resolve().relative_to(PAGE.resolve()).as_posix()
    if name in texts:
        return
    text = path.read_text()
    for imported in _IMPORT.findall(text):
        _take(path.parent / imported, texts)
    texts[name] = f"// {name}\n{_EXPORT.sub('', _IMPORT.sub('', text))}"
