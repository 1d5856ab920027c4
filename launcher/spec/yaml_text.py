"""Decode and check a file before the YAML reader gets it: UTF-8, no BOM, no control characters, limited length."""

import re
import stat
from itertools import islice
from pathlib import Path

from launcher.errors import BadInput
from launcher.spec.problems import Problem, Wrong, printable
from launcher.spec.tree import Mark

MAX_BYTES = 256 * 1024
_MOST_CHARACTERS = 1000  # more are not counted: the file is something else
# NEL and the Unicode line ends are line breaks to YAML 1.1 alone: lines would be counted otherwise than in an editor.
# The rest are invisible; some turn the order of what follows.
_INVISIBLE = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff"
_RAW = re.compile(f"[{_INVISIBLE}]")
_IN_LINES = _RAW
_IN_LINE = re.compile(f"[{_INVISIBLE}\t\n]")


def control_character(text: str, *, lines: bool) -> str | None:
    """Return the name of the first control character in a value, or None if it has none.

    With `lines`, line breaks and tabs are allowed.
    """
    found = (_IN_LINES if lines else _IN_LINE).search(text)
    return None if found is None else _character_name(found.group())


def read_text(path: Path, file: str) -> str:
    """Return the file's text.

    Raise BadInput if it cannot be read, and Wrong if it is not UTF-8 or longer than 256 KiB; `file` is its name in
    messages.
    """
    try:
        # Looked at first: opening a pipe would wait for its writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadInput(f"{file}: not a file")
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a file name"
        raise BadInput(f"{file}: {reason[:1].lower()}{reason[1:]}") from error
    if len(data) > MAX_BYTES:
        raise Wrong(Problem(Mark(1, 1), "longer than 256 KiB", key=("yaml",)))
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Wrong(_not_utf8(data, error.start)) from None


def check_text(text: str) -> list[Problem]:
    """Return a problem for each of the first 1000 control characters in the text. Return a single problem if it begins
    with a byte order mark, or is longer than 256 KiB.
    """
    if text.startswith("\ufeff"):
        hint = "save it as UTF-8 without a byte order mark"
        return [Problem(Mark(1, 1), "begins with a byte order mark", hint, ("yaml",))]
    if len(text) > MAX_BYTES:
        return [Problem(Mark(1, 1), "longer than 256 KiB", key=("yaml",))]
    found = (
        Problem(Mark(number, found.start() + 1), f"control character {_character_name(found.group())}", key=("yaml",))
        for number, line in enumerate(text.split("\n"), 1)
        for found in _RAW.finditer(line)
    )
    return list(islice(found, _MOST_CHARACTERS))


def _not_utf8(data: bytes, start: int) -> Problem:
    """Return the problem that the byte at `start` is not UTF-8."""
    line_start = data.rfind(b"\n", 0, start) + 1
    mark = Mark(data.count(b"\n", 0, start) + 1, len(data[line_start:start].decode()) + 1)
    return Problem(mark, f"not UTF-8: byte 0x{data[start]:02x}", "save it as UTF-8", ("yaml",))


def _character_name(char: str) -> str:
    """Return the name of a control character, or its escape sequence."""
    return {"\t": "tab", "\n": "line break", "\r": "carriage return"}.get(char, printable(char))
