"""Problems of a spec: a class for one, a collector so that all are reported at once, and their text for the user."""

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
    """A problem of a spec: where (`mark` and `key`; an int in the key is an index in a list), why, and a hint. `word`
    is an unknown word and `options` the known ones, among which a near miss is looked for.
    """

    mark: Mark
    reason: str
    hint: str = ""
    key: tuple[str | int, ...] = ()  # an int is an index in a list
    # An unknown word and what may stand there. Near misses are sought only for the problems that are shown.
    word: str | None = None
    options: tuple[str, ...] = ()


class Wrong(Exception):
    """Raised with its problems if a value cannot be read; without any if the value's problem has been reported
    before.
    """

    def __init__(self, *problems: Problem) -> None:
        super().__init__(problems)
        self.problems = problems


def wrong(node: Node, reason: str, hint: str = "") -> Wrong:
    """Return a Wrong, for the caller to raise, with one problem: at the position of `node`, with a reason and a hint
    ("": none).
    """
    return Wrong(Problem(node.mark, reason, hint))


class Gather:
    """A collector of the problems of several values, so that all can be reported at once."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._failed = False

    def add(self, problem: Problem) -> None:
        """Add a problem to the collected ones."""
        self._failed = True
        self.problems.append(problem)

    def take(self, name: str | int, parse: Callable[[N], T], node: N) -> T | None:
        """Return `parse(node)`.

        If that raises Wrong, collect its problems with `name` before their keys, and return None.
        """
        try:
            return parse(node)
        except Wrong as error:
            self.blame(error, name)
            return None

    def blame(self, error: Wrong, *names: str | int) -> None:
        """Collect the problems of `error`; before the key of each come `names`, the keys that lead to the value."""
        self._failed = True
        self.problems += [replace(problem, key=(*names, *problem.key)) for problem in error.problems]

    def close(self) -> None:
        """Raise Wrong with all collected problems; do nothing if there are none."""
        if self._failed:
            raise Wrong(*self.problems)


def lines_of(problems: Iterable[Problem], file: str, elsewhere: Callable[[str], str]) -> list[str]:
    """Return the first 50 problems as lines of text, and a line that counts the rest. In these lines the spec file is
    called `file`.

    The problems are in the file's order, those of the command line last, each hint on a line of its own. `elsewhere`
    takes an unknown word and returns a hint to the other section in which it is an option, or "".
    """
    ordered = sorted(problems, key=lambda problem: (problem.mark.line == 0, problem.mark.line, problem.mark.column))
    lines: list[str] = []
    for problem in ordered[:_MOST_SHOWN]:
        lines.append(f"{_where(problem, file)}: {problem.reason}")
        hint = problem.hint or _near_miss(problem, elsewhere)
        lines += [f"hint: {hint}"] if hint else []
    more = len(ordered) - _MOST_SHOWN
    return [*lines, f"and {more} more"] if more > 0 else lines


def _where(problem: Problem, file: str) -> str:
    """Return the position of a problem as text: `file` (the name of the file), line, column and key; `--set KEY` for
    one of the command line.
    """
    key = "".join(f"[{name}]" if isinstance(name, int) else f".{shown_key(name)}" for name in problem.key)
    if problem.mark == FROM_COMMAND_LINE:
        return f"--set {key.lstrip('.') or 'spec'}"
    return f"{file}:{problem.mark.line}:{problem.mark.column}: {key.lstrip('.') or 'spec'}"


def _near_miss(problem: Problem, elsewhere: Callable[[str], str]) -> str:
    """Return a hint for an unknown word: the known word most like it, else what `elsewhere` returns for the word, else
    a list of the known words.

    Return "" if the problem is not about a word, or the word is very long.
    """
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
    """Return a piece of the user's text for a message: quoted, on one line, and shortened."""
    short = text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."
    return "'" + printable(short) + "'"


def shown_key(name: str) -> str:
    """Return a key of the spec as messages show it: as it is if it has 1 to 64 characters, all of them letters, digits
    or `_.-`; else quoted, on one line and shortened.
    """
    return name if re.fullmatch(_PLAIN_KEY, name) else shown(name)


def printable(text: str) -> str:
    """Return the text with control characters escaped, so that it is safe to print on a terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def got(node: Node) -> str:
    """Return what a node is, to be put after "got" in a message: a list, a mapping, its quoted text, or "nothing"."""
    if isinstance(node, Scalar):
        return "nothing" if node.is_null else shown(node.text)
    return "a list" if isinstance(node, Sequence) else "a mapping"
