"""Find the options that a script declares with argparse in its text, without running it."""

import ast
import difflib
from collections.abc import Sequence

_OPEN = {"parse_known_args", "parse_known_intermixed_args", "add_subparsers"}  # what takes options that no text shows


def added_arguments(tree: ast.Module) -> list[ast.Call]:
    """Return each call of a method `add_argument` in the syntax tree, in the order of the text."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    added = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"]
    return sorted(added, key=lambda call: (call.lineno, call.col_offset))


def misspelt(text: bytes, args: Sequence[str]) -> dict[str, str]:
    """Return {option in `args` that the script does not declare: the option that it resembles}.

    An option that resembles none is left out, because another file may declare it. The result is empty for a script
    that cannot be parsed, or that accepts unknown options.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    if any(isinstance(node, ast.Attribute) and node.attr in _OPEN for node in ast.walk(tree)):
        return {}
    names = [
        arg.value
        for call in added_arguments(tree)
        for arg in call.args
        if isinstance(arg, ast.Constant) and isinstance(arg.value, str) and arg.value.startswith("--")
    ]
    known = [*names, *(f"--no-{name[2:]}" for name in names)]
    given = dict.fromkeys(word.partition("=")[0] for word in args if word.startswith("--") and len(word) > 2)
    found = {one: difflib.get_close_matches(one, names, n=1, cutoff=0.75) for one in given if not _has(known, one)}
    return {one: near[0] for one, near in found.items() if near}


def _has(known: Sequence[str], option: str) -> bool:
    """Return whether the option is a known one or the beginning of one, which argparse accepts as its abbreviation. A
    beginning of several known ones counts too, although argparse refuses it as ambiguous.
    """
    return any(name.startswith(option) for name in known)
