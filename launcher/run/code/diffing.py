"""Compare two trees of code: file by file, and line by line for text."""

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from launcher.run.code.hashes import READ, content_hashes
from launcher.run.code.listing import CodeFile, CodeList

MOST_BYTES = 1 << 20  # of a file that is compared line by line
_MOST_IN_ALL = 16 << 20
_NO_NEWLINE = "\\ no newline at the end of the file"
Content = tuple[str | None, str | None, bool]


class FileChange(msgspec.Struct, frozen=True):
    """A file that is new, gone or changed: the number of lines added and removed, and the unified diff without its
    header.

    `note` says why there is no diff, or what changed besides the text.
    """

    path: str
    kind: Literal["changed", "new", "gone"]
    added: int = 0  # number of lines
    removed: int = 0
    diff: tuple[str, ...] = ()  # unified, without the header of two lines
    note: str = ""  # why there is no diff, or what changed besides the text

    def __str__(self) -> str:
        counts = f" +{self.added} -{self.removed}" if self.diff else ""
        return f"{self.path}: {self.kind}{counts}" + (f", {self.note}" if self.note else "")


def changes(before: CodeList, now: CodeList) -> list[FileChange]:
    """Return each file that differs between the lists `before` and `now`, sorted by name."""
    old, new = _contents(before), _contents(now)
    left, found = _MOST_IN_ALL, list[FileChange]()
    for path in sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path)):
        pair = _text(before.root / path, old.get(path), left), _text(now.root / path, new.get(path), left)
        left -= sum(len(text) for text in pair if text is not None)
        found.append(_change(path, old.get(path), new.get(path), pair))
    return found


def shown(found: Sequence[FileChange], most: int | None = None) -> list[str]:
    """Return the changes as one unified diff. With `most`, it is cut to that many lines, and a last line counts those
    left out.
    """
    lines = [line for change in found for line in _lines(change)]
    if most is None or len(lines) <= most:
        return lines
    return [*lines[:most], f"... and {len(lines) - most} lines more"]


def _lines(change: FileChange) -> list[str]:
    """Return the change as lines of a unified diff."""
    if not change.diff:
        return [str(change)]
    old = "/dev/null" if change.kind == "new" else f"a/{change.path}"
    new = "/dev/null" if change.kind == "gone" else f"b/{change.path}"
    return [*([str(change)] if change.note else []), f"--- {old}", f"+++ {new}", *change.diff]


def _contents(code: CodeList) -> dict[str, Content]:
    """Return for each file, by its path, the three properties by which files are compared: link target, digest,
    executable bit.
    """
    hashes = content_hashes(code, "compared")
    return {file.path: _content(file, hashes.get(file.path)) for file in code.files}


def _content(file: CodeFile, digest: str | None) -> Content:
    """Return the three properties in which two equal files agree: link target, `digest` (None for a link), executable
    bit.
    """
    return file.link, digest, file.executable


def _text(path: Path, content: Content | None, most: int) -> str | None:
    """Return the file's text, "" if `content` is None because there is no file, or None if it is not text or is longer
    than `most` bytes.
    """
    if content is None:
        return ""
    link, _, _ = content
    if link is not None:
        return os.fsencode(link).decode(errors="replace")
    most = max(0, min(most, MOST_BYTES))
    try:
        with open(path, "rb", opener=lambda name, _: os.open(name, READ)) as file:
            data = file.read(most + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if len(data) > most or "\0" in text else text


def _change(path: str, old: Content | None, new: Content | None, pair: tuple[str | None, str | None]) -> FileChange:
    """Return the change of the file `path` from `old` to `new`, where None means no file. `pair` has the texts before
    and after, None for a file that is not text.
    """
    name = os.fsencode(path).decode(errors="replace")
    kind: Literal["changed", "new", "gone"] = "new" if old is None else "gone" if new is None else "changed"
    note = _other_than_text(old, new)
    before, now = pair
    if before is None or now is None:
        return FileChange(name, kind, note=note or "no text, or too long to be compared by line")
    diff = tuple(_unified(before, now))
    added = sum(line.startswith("+") for line in diff)
    return FileChange(name, kind, added, sum(line.startswith("-") for line in diff), diff, note)


def _other_than_text(old: Content | None, new: Content | None) -> str:
    """Return, as text, a change from `old` to `new` that a diff does not show, such as one of the executable bit, or ""
    if there is none. None stands for no file.
    """
    if old is None or new is None:
        return ""
    if (old[0] is None) != (new[0] is None):
        return "a link now" if new[0] is not None else "no link any more"
    if old[2] != new[2]:
        return "executable now" if new[2] else "not executable any more"
    return ""


def _unified(before: str, now: str) -> list[str]:
    """Return the unified diff of two texts."""
    old, new = before.split("\n"), now.split("\n")
    for text, lines in ((before, old), (now, new)):
        if text.endswith("\n") or not text:
            lines.pop()
        else:
            lines.append(_NO_NEWLINE)
    found = list(difflib.unified_diff(old, new, lineterm=""))[2:]
    return [line[1:] if line[1:] == _NO_NEWLINE else line for line in found]
