"""Return the text of the script `first`, preceded by all scripts that it imports."""

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
    """Return the content of a file of the page, one of `PAGE_FILES`; scripts and styles are bundled at the first
    call.
    """
    if name == SCRIPT:
        return _script("app.js").encode()
    if name == STYLES:
        return b"\n".join((PAGE / one).read_bytes() for one in _SHEETS)
    return (PAGE / name).read_bytes()


def _script(first: str) -> str:
    """Return one script made of `first` and everything that it imports, in a scope of its own."""
    return "\n".join([(PAGE / _OF_OTHERS).read_text(), '(() => {\n"use strict";', module(first), "})();\n"])


def module(first: str) -> str:
    """Return the text of a script, preceded by all scripts that it imports."""
    texts: dict[str, str] = {}
    _take(PAGE / first, texts)
    return "\n".join(texts.values())


def _take(path: Path, texts: dict[str, str]) -> None:
    """Add a script's text to `texts` under its name, after all scripts that it imports; a script is added once."""
    name = path.resolve().relative_to(PAGE.resolve()).as_posix()
    if name in texts:
        return
    text = path.read_text()
    for imported in _IMPORT.findall(text):
        _take(path.parent / imported, texts)
    texts[name] = f"// {name}\n{_EXPORT.sub('', _IMPORT.sub('', text))}"
