"""Put the files of the page together. A script is served as one text, preceded by all scripts that it imports; scripts
are named by their path below the folder of the page, `page/`.
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
    """Return the content of a file of the page, one of `PAGE_FILES`; scripts and styles are bundled at the first
    call.
    """
    if name == SCRIPT:
        return _script("app.js").encode()
    if name == STYLES:
        return b"\n".join((PAGE / one).read_bytes() for one in _SHEETS)
    return (PAGE / name).read_bytes()


def _script(first: str) -> str:
    """Return the page's script, which runs in a scope of its own: the library that draws curves, then the script
    `first` (a path below `page/`) with all that it imports.
    """
    return "\n".join([(PAGE / _OF_OTHERS).read_text(), '(() => {\n"use strict";', module(first), "})();\n"])


def module(first: str) -> str:
    """Return the text of the script `first` (a path below `page/`), preceded by all scripts that it imports.

    The scripts then share one scope, so no two may declare the same name, and no script may import itself, directly or
    through others.
    """
    texts: dict[str, str] = {}
    _add_script(PAGE / first, texts)
    return "\n".join(texts.values())


def _add_script(path: Path, texts: dict[str, str]) -> None:
    """Add the text of the script at `path` to `texts`, by its path below `page/`, after all scripts that it imports; do
    nothing if it is there already.
    """
    name = path.resolve().relative_to(PAGE.resolve()).as_posix()
    if name in texts:
        return
    text = path.read_text()
    for imported in _IMPORT.findall(text):
        _add_script(path.parent / imported, texts)
    texts[name] = f"// {name}\n{_EXPORT.sub('', _IMPORT.sub('', text))}"
