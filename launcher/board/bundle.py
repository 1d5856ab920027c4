"""The page's modules as one script: a browser has it with one question where it would ask 28 times, each time for what
the last answer named; and from disk it loads no modules at all, as each would be of another origin."""

import re
from pathlib import Path

PAGE = Path(__file__).with_name("page")
SCRIPT = "board.js"  # its name, as the page asks for it
_IMPORT = re.compile(r'^import \{[^}]*\} from "([^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


def bundled(first: str) -> str:
    """This module behind all that it imports. That works as no two of them declare one name, nor import each other."""
    texts: dict[str, str] = {}
    _take(PAGE / first, texts)
    return "\n".join(['(() => {\n"use strict";', *texts.values(), "})();\n"])


def _take(path: Path, texts: dict[str, str]) -> None:
    name = path.resolve().relative_to(PAGE.resolve()).as_posix()
    if name in texts:
        return
    text = path.read_text()
    for imported in _IMPORT.findall(text):
        _take(path.parent / imported, texts)
    texts[name] = f"// {name}\n{_EXPORT.sub('', _IMPORT.sub('', text))}"
