"""The patterns of `code.include` and `code.exclude`: as in .gitignore, without its negations.

`*.pt` and `wandb` match at any depth. A pattern with a slash in it is relative to the project (`data/*.json`). `**`
stands for any folders. A pattern that matches a folder includes everything below it; one with a slash at its end
matches folders only.
"""

import re
from dataclasses import dataclass
from functools import cached_property

_SPECIAL = frozenset("*?[")


@dataclass(frozen=True)
class Glob:
    """A pattern of `code.include` or `code.exclude`."""

    pattern: str

    @cached_property
    def _parts(self) -> list[str]:
        """Return the pattern's parts between slashes."""
        return [part for part in self.pattern.split("/") if part not in ("", ".")]

    @property
    def _anchored(self) -> bool:
        """Return whether the pattern is relative to the project's folder, as one with a slash before its end is, rather
        than valid at any depth.
        """
        return "/" in self.pattern.removesuffix("/")

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        """Return the pattern as a regular expression for `fullmatch` with a path relative to the project, where a
        folder's path ends with a slash. It also matches every path below a folder that the pattern names.
        """
        start = "" if self._anchored else "(?:.*/)?"
        end = "/.*" if self.pattern.endswith("/") else "(?:/.*)?"
        return re.compile(f"(?s:{start}{_path_regex(self._parts)}{end})")

    def matches(self, path: str) -> bool:
        """Return whether the pattern matches the path or a folder above it; the path of a folder must end with a
        slash.
        """
        return bool(self._parts) and self._regex.fullmatch(path) is not None

    @cached_property
    def below(self) -> str:
        """Return the path of the innermost folder or file that contains every possible match, relative to the project;
        "" means the whole project.
        """
        if not self._anchored:
            return ""
        plain = 0
        while plain < len(self._parts) and not _SPECIAL & set(self._parts[plain]):
            plain += 1
        return "/".join(self._parts[:plain])

    @property
    def leads_out(self) -> bool:
        """Return whether the pattern has a part `..`, which would leave the project."""
        return ".." in self._parts


def _path_regex(parts: list[str]) -> str:
    """Return the regular expression for a pattern that was split at its slashes, to match the whole path of a file or
    folder, without a slash at its end.
    """
    regex = ""
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part != "**":
            regex += _part_regex(part) + ("" if last else "/")
        elif last:
            regex += ".+"
        elif parts[index + 1] != "**":
            regex += "(?:.*/)?"
    return regex


def _part_regex(part: str) -> str:
    """Return the regular expression for one part of a pattern between slashes; nothing in it matches a slash."""
    regex, at = "", 0
    while at < len(part):
        char, at = part[at], at + 1
        if char == "*":
            regex += "" if part[at : at + 1] == "*" else "[^/]*"
        elif char == "?":
            regex += "[^/]"
        elif char == "[" and (end := part.find("]", at + (2 if part[at : at + 1] in ("!", "^") else 1))) > 0:
            regex += _class_regex(part[at:end])
            at = end + 1
        else:
            regex += re.escape(char)
    return regex


def _class_regex(inside: str) -> str:
    """Return the regular expression for a character class; `inside` is the text between its brackets."""
    negated = inside[0] in "!^"
    members = inside[1:] if negated else inside
    escaped = re.sub(r"([\\\[\]^&~|])", r"\\\1", members)
    try:
        re.compile(f"[{escaped}]")
    except re.error:  # a range that runs backwards matches nothing
        return "(?!)"
    return f"(?!/)[{'^' if negated else ''}{escaped}]"
