"""Read the options that a script declares with argparse from its text, and write parts of a spec as a user would."""

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import BadInput, said_by_the_system
from launcher.status.text import plain
from launcher.submission.script_arguments import added_arguments

_MOST_BYTES = 16 << 20
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,199}", re.ASCII)  # what stands in a spec as it is
_FLAGS = {"store_true": "false", "store_false": "false", "count": "false"}
_PLAIN = re.compile(r"[A-Za-z0-9_./+-][A-Za-z0-9_./+=@%-]*")
_NOT_TEXT = frozenset(("null", "~", "true", "false", "yes", "no", "on", "off", "-", "---", "..."))


def scalar(text: str) -> str:
    """Return the text as a YAML value that is read back as exactly this text, quoted if it has to be."""
    plain = _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT
    return text if plain else json.dumps(text, ensure_ascii=False)


def flow(texts: Sequence[str]) -> str:
    """Return the texts as a YAML list on one line."""
    return f"[{', '.join(map(scalar, texts))}]"


def job_name(file: str) -> str:
    """Return a valid job name made from the name of a file, module or program."""
    stem = file.rstrip("/").rpartition("/")[2].removesuffix(".py")
    return re.sub(r"[^a-z0-9_]+", "-", stem.lower()).strip("-_")[:63] or "job"


@dataclass(frozen=True, slots=True)
class ScriptOption:
    """An option that a script declares. `name` has no dashes; `value` is its default as a spec writes it, or None if
    there is none or only running the script would tell.
    """

    name: str  # of `--name` without dashes; of a positional argument its name
    positional: bool  # it has no `--`
    value: str | None  # the default as a spec writes it; None: there is none, or only running the script would show it
    required: bool
    help: str  # its help text


def script_options(file: Path) -> list[ScriptOption]:
    """Return the script's options in the order of its text; raise BadInput for a file that cannot be read or is not
    Python.
    """
    try:
        tree = ast.parse(_text_of(file))
    except OSError as error:
        raise BadInput(said_by_the_system(error)) from None
    except (SyntaxError, ValueError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        raise BadInput(f"{file}:{line or 1}:1: {error.args[0] if error.args else 'no Python'}") from None
    except (RecursionError, MemoryError):  # of the parser, which has it for both
        raise BadInput(f"{file}: too deeply nested to be read") from None
    found = (_option(call) for call in added_arguments(tree))
    return [one for one in found if one is not None]


def _text_of(file: Path) -> bytes:
    """Return the content of a regular file.

    Raise BadInput for any other kind of file, as reading a pipe could wait forever, and for a file above the limit
    `_MOST_BYTES`.
    """
    if not file.is_file() and file.exists():
        raise BadInput(f"{file}: not a file")
    with file.open("rb") as script:
        text = script.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise BadInput(f"{file}: more than {_MOST_BYTES >> 20} MiB")
    return text


def _option(call: ast.Call) -> ScriptOption | None:
    """Return the option or positional argument that a call of `add_argument` declares. Return None if a spec cannot set
    it: an option that has only short names, such as `-v`, or that prints help or a version, or a name that is too long
    for a key or has other characters than ASCII letters, digits, `_`, `.` and `-`.
    """
    names = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    long = [name for name in names if name.startswith("--")]
    if not names or (names[0].startswith("-") and not long):
        return None
    given = {word.arg: word.value for word in call.keywords if word.arg is not None}
    action, text = _constant(given.get("action")), _constant(given.get("help"))
    if action in ("help", "version") or not _NAME.fullmatch((long or names)[0].removeprefix("--")):
        return None
    positional, wanted = not long, _constant(given.get("required")) is True
    value = _FLAGS.get(action) if isinstance(action, str) else None
    if value is None:
        value = _written(given.get("default"))
    name = names[0] if positional else long[0].removeprefix("--")
    return ScriptOption(name, positional, value, wanted, plain(text) if isinstance(text, str) else "")


def _constant(node: ast.expr | None) -> object:
    """Return the value of a constant in the syntax tree, or None for any other expression or none at all."""
    return node.value if isinstance(node, ast.Constant) else None


def _written(node: ast.expr | None) -> str | None:
    """Return the default value in `node` as it would be written in a spec. Return None if there is none, or if it is
    not written as a literal that is a truth value, a number, a text or a list of these.
    """
    if node is None:
        return None
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    match value:
        case bool():
            return json.dumps(value)
        case int() | float():
            return ast.unparse(node)
        case str():
            return scalar(value)
        case list() | tuple() if all(isinstance(one, str | int | float) for one in value):
            return f"[{', '.join(scalar(str(one)) for one in value)}]"
        case _:
            return None
