"""What is wrong with a spec: values that gather their key path on the way up, and how they are shown."""

import difflib
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from launcher.spec.tree import FROM_COMMAND_LINE, Mark, Node, Scalar, Sequence

_MOST_SHOWN = 50
_LONGEST_SHOWN = 48
_LONGEST_WORD = 64
_PLAIN_KEY = r"[A-Za-z0-9_.-]{1,64}"

T = TypeVar("T")
N = TypeVar("N", bound=Node)


class Problem(Struct, frozen=True):
    mark: Mark
    reason: str
    hint: str = ""
    key: tuple[str | int, ...] = ()  # an int: a place in a list, from 0
    # An unknown word and what may stand there. Near misses are sought only for the problems that are shown.
    word: str | None = None
    options: tuple[str, ...] = ()


class Wrong(Exception):
    """A value cannot be read. Without problems: they have been told already."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(problems)
        self.problems = problems


def wrong(node: Node, reason: str, hint: str = "") -> Wrong:
    return Wrong(Problem(node.mark, reason, hint))


class Gather:
    """Collects the problems of several values, so that all are told at once."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._failed = False

    def add(self, problem: Problem) -> None:
        self._failed = True
        self.problems.append(problem)

    def take(self, name: str | int, parse: Callable[[N], T], node: N) -> T | None:
        """What `parse` makes of the node; None where it cannot, with its problems under `name`."""
        try:
            return parse(node)
        except Wrong as error:
            self.blame(error, name)
            return None

    def blame(self, error: Wrong, *names: str | int) -> None:
        self._failed = True
        self.problems += [replace(problem, key=(*names, *problem.key)) for problem in error.problems]

    def close(self) -> None:
        """Raises Wrong if anything went wrong."""
        if self._failed:
            raise Wrong(*self.problems)


def lines_of(problems: Iterable[Problem], file: str, elsewhere: Callable[[str], str]) -> list[str]:
    """One line per problem in the order of the file, the command line's last; hints on lines of their own."""
    ordered = sorted(problems, key=lambda problem: (problem.mark.line == 0, problem.mark.line, problem.mark.column))
    lines: list[str] = []
    for problem in ordered[:_MOST_SHOWN]:
        lines.append(f"{_where(problem, file)}: {problem.reason}")
        hint = problem.hint or _near_miss(problem, elsewhere)
        lines += [f"hint: {hint}"] if hint else []
    more = len(ordered) - _MOST_SHOWN
    return [*lines, f"and {more} more"] if more > 0 else lines


def _where(problem: Problem, file: str) -> str:
    key = "".join(f"[{name}]" if isinstance(name, int) else f".{shown_key(name)}" for name in problem.key)
    if problem.mark == FROM_COMMAND_LINE:
        return f"--set {key.lstrip('.') or 'spec'}"
    return f"{file}:{problem.mark.line}:{problem.mark.column}: {key.lstrip('.') or 'spec'}"


def _near_miss(problem: Problem, elsewhere: Callable[[str], str]) -> str:
    if problem.word is None or len(problem.word) > _LONGEST_WORD:
        return ""
    word = problem.word.lower().replace("-", "_")
    near = difflib.get_close_matches(word, problem.options, n=1, cutoff=0.7)
    if near:
        return f"did you mean {near[0]}?"
    known = f"there is {', '.join(problem.options)}"
    if problem.mark == FROM_COMMAND_LINE and len(problem.key) == 1 and re.fullmatch(_PLAIN_KEY, problem.word):
        known = f"an argument of the script is run.args.{problem.word}; {known}"
    return elsewhere(word) or known


def shown(text: str) -> str:
    """A piece of the user's text, quoted, on one line and short."""
    short = text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."
    return "'" + printable(short) + "'"


def shown_key(name: str) -> str:
    return name if re.fullmatch(_PLAIN_KEY, name) else shown(name)


def printable(text: str) -> str:
    """Without control characters, and encodable: safe to print on a terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def got(node: Node) -> str:
    """What stands there, in words."""
    if isinstance(node, Scalar):
        return "nothing" if node.is_null else shown(node.text)
    return "a list" if isinstance(node, Sequence) else "a mapping"
