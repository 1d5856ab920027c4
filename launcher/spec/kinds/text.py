"""Kinds of text and paths: kept exactly as written, so that `010`, `yes` and `12:30:45` do not change. A kind reads one
form of value from a node of the YAML tree, describes it in messages, and gives its JSON Schema.
"""

import re
from collections.abc import Callable, Container

from launcher.spec.kinds.leaf import Json, Leaf, Unfit
from launcher.spec.tree import Scalar
from launcher.spec.yaml_text import control_character

# Linux takes no single argument or variable of more than 128 KiB.
_LONGEST = 120_000
_LONGEST_LINE = 4096
# What an editor takes for a number or a truth value is text here.
_TEXT_TYPES = ["string", "number", "boolean"]

_LONGEST_PATH = 1024
_LONGEST_NAME = 255

# The run directory's own names: no option may point into them.
RUN_DIR_NAMES = frozenset(
    (
        "spec.yaml", "plan.json", "secrets.json", "code", "FENCE", "attempts", "events.jsonl", "state.json", "logs",
        "metrics", "fetched-outputs", "avoided.json", "gone.json", "origin.json", "labels.json", "notify.json",
        "roles",
    )
)  # fmt: skip


class Text(Leaf, frozen=True):
    """A text. `what` describes it in messages, `pattern` limits its form, `lines` allows line breaks, `empty` allows no
    text, and `cure` returns a hint for a text that does not fit.
    """

    what: str = "text"
    pattern: str = ""  # of the whole text; Python and JSON Schema read it alike
    lines: bool = False  # may have line breaks and tabs
    empty: bool = False  # may have no character
    cure: Callable[[str], str] | None = None  # returns a hint for a text that does not fit

    def words(self) -> str:
        """Return the noun for messages that say what is expected, such as `an integer`."""
        return self.what

    def convert(self, scalar: Scalar) -> str:
        """Return the value that the scalar stands for; raise Unfit if its text is not of this kind."""
        text = _text_of(scalar, lines=self.lines)
        if not text and not self.empty:
            raise Unfit(reason=f"expected {self.what}, got empty text")
        if self.pattern and not re.fullmatch(self.pattern, text):
            raise Unfit(self.cure(text) if self.cure else "")
        return text

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        if self.pattern:
            return {"type": _TEXT_TYPES, "pattern": f"^(?:{self.pattern})$"}
        return {"type": _TEXT_TYPES} if self.empty else {"type": _TEXT_TYPES, "minLength": 1}


class Choice(Leaf, frozen=True):
    """A value that is one of the words in `options`."""

    options: tuple[str, ...]

    def words(self) -> str:
        """Return the noun for messages that say what is expected, such as `an integer`."""
        return f"one of {', '.join(self.options)}"

    def convert(self, scalar: Scalar) -> str:
        """Return the value that the scalar stands for; raise Unfit if its text is not of this kind."""
        if scalar.text not in self.options:
            upper = scalar.text.upper()
            raise Unfit(f"write {upper}" if upper in self.options else "")
        return scalar.text

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        return {"enum": list(self.options)}


def _text_of(scalar: Scalar, *, lines: bool) -> str:
    """Return the scalar as text; raise Unfit if it is null, has control characters or more than 4096 bytes.

    With `lines`, newlines and tabs are allowed, and 120,000 bytes.
    """
    text = scalar.text
    if scalar.is_null:
        raise Unfit(f"quote it if you mean text: '{text}'")
    name = control_character(text, lines=lines)
    if name is not None:
        raise Unfit(reason=f"control character {name} in a value" if lines else f"{name} in a value of one line")
    longest = _LONGEST if lines else _LONGEST_LINE
    if len(text.encode()) > longest:
        raise Unfit(reason=f"longer than {longest} bytes")
    return text


def word(what: str, pattern: str = r"[^\s-]\S*") -> Text:
    """Return the kind of a text that matches the regular expression `pattern`. By default it has no white space and
    does not begin with a dash, so that no command takes it for an option. `what` describes it in messages.
    """
    return Text(what, pattern)


def any_path(what: str) -> Text:
    """Return the kind of a path on some machine, absolute or relative; `what` describes it in messages."""
    return Text(what, r"[^-].*")


class StoreAddress(Leaf, frozen=True):
    """An address for fsspec, such as s3://bucket/prefix. Credentials in it are refused, because many people can read a
    spec.
    """

    WORDS = "an address such as s3://bucket/prefix"
    PATTERN = r"[a-z][a-z0-9+.-]*://[^\s@?#]+"

    def convert(self, scalar: Scalar) -> str:
        """Return the address without slashes at its end; raise Unfit for text that is no address, or has a user, a
        password or options.
        """
        text = _text_of(scalar, lines=False)
        if re.search(r"://[^/]*@|[?#]", text):
            raise Unfit(
                "credentials come from the environment, or from `secrets:`",
                "expected an address without user, password or options",
            )
        if not re.fullmatch(self.PATTERN, text):
            raise Unfit("write file:///folder for a folder" if text.startswith("/") else "")
        return text.rstrip("/")


class InnerPath(Leaf, frozen=True):
    """A relative path that cannot lead out of the folder from which it starts; `inside` names that folder. `refused`
    has names that the path's first part must not have, such as those of the launcher's own folders; if it is set,
    neither a hidden first part nor the folder `inside` itself is accepted. None allows all.
    """

    what: str  # describes it in messages
    inside: str  # the folder from which it starts, as messages call it
    # Names that the first part of the path must not have. If set, neither `.` nor a part that begins with a dot is
    # first.
    refused: Container[str] | None = None

    def words(self) -> str:
        """Return the noun for messages that say what is expected, such as `an integer`."""
        return self.what

    def convert(self, scalar: Scalar) -> str:
        """Return the value that the scalar stands for; raise Unfit if its text is not of this kind."""
        text = _text_of(scalar, lines=False)
        self._stay_inside(text)
        self._check_parts(text)
        return text

    def _stay_inside(self, text: str) -> None:
        """Raise Unfit for a path that is absolute or contains `..`."""
        if text.startswith(("/", "~")):
            raise Unfit(f"write it relative to {self.inside}")
        if ".." in text.split("/"):
            raise Unfit(reason=f"{self.what} cannot lead out of {self.inside} by ..")

    def _check_parts(self, text: str) -> None:
        """Raise Unfit for a path that is empty, too long or begins with a dash. If `refused` is set, also raise it for
        the folder itself (`.`), and for a path whose first part is in `refused` or begins with a dot.
        """
        parts = [part for part in text.split("/") if part not in ("", ".")]
        if not text or text.startswith("-"):
            raise Unfit
        if len(text.encode()) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_NAME for part in parts):
            raise Unfit(reason="longer than a file system takes")
        if self.refused is not None and (not parts or parts[0] in self.refused or parts[0].startswith(".")):
            raise Unfit(reason=f"expected {self.what} of its own, got the launcher's {parts[0] if parts else '.'}")

    def schema(self) -> Json:
        """Return the JSON Schema of all values of this kind."""
        return {"type": _TEXT_TYPES, "pattern": r"^(?![-/~])(?!(?:.*/)?\.\.(?:/|$)).+$"}
