"""What a script imports that neither the standard library nor the user's own code has. Reads text, runs nothing."""

import ast
import posixpath
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache

UNKNOWN = "*"
_MOST_FILES, _MOST_BYTES = 500, 2_000_000  # half a second of parsing


def third_party_imports(read: Callable[[str], bytes | None], entry: str, own_folders: Iterable[str] = ()) -> set[str]:
    """Dotted names, and those of the packages that they are in; some may be of what is in a module. {"*"} where a file
    cannot be read as Python, or there is too much to read. `own_folders`: of the code, on the path in any case."""
    text_of = cache(read)
    own: set[str] = set()
    named: set[str] = set()
    waiting, seen, bytes_left = [entry], {entry}, _MOST_BYTES
    bases = list(dict.fromkeys([*_parents(entry), *("" if folder == "." else folder for folder in own_folders)]))
    while waiting:
        path = waiting.pop()
        text = text_of(path)
        bytes_left -= len(text or b"")
        modules = _modules(text) if text is not None and bytes_left >= 0 and len(seen) <= _MOST_FILES else None
        if modules is None:
            return {UNKNOWN}
        for module, level in modules:
            files = [file for file in _files(module, level, path, bases) if text_of(file) is not None]
            if level == 0:
                (own if files else named).add(module)
            waiting += [file for file in files if file not in seen]
            seen.update(files)
    theirs = sys.stdlib_module_names | {_top(module) for module in own}
    return {module for module in named if _top(module) not in theirs}


def syntax_error(text: bytes, path: str) -> str:
    """Where and why this is no Python of this interpreter's version; "": it is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text, path)
    except SyntaxError as error:
        return f"{path}:{error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError):
        return ""  # whatever it is, it is for the ranks to say
    return ""


def _top(module: str) -> str:
    return module.partition(".")[0]


def _modules(text: bytes) -> set[tuple[str, int]] | None:
    """(dotted name, dots before it) of everything that the text may import; None where it is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's code: an invalid escape is not ours to report
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return {(part, level) for name, level in _named(tree) for part in _with_packages(name)}


def _named(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield module, node.level
            # What is taken from a package may be a module of it.
            yield from ((f"{module}.{alias.name}".strip("."), node.level) for alias in node.names)


def _with_packages(name: str) -> Iterable[str]:
    """Importing a.b.c runs a and a.b as well."""
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _files(module: str, level: int, importer: str, bases: list[str]) -> Iterator[str]:
    """Files of the user's code that this import may mean."""
    if level:
        bases = _parents(importer)[level - 1 : level]
    for base in bases:
        stem = posixpath.join(base, *module.split("."))
        yield f"{stem}.py"
        yield posixpath.join(stem, "__init__.py")


def _parents(path: str) -> list[str]:
    """The folders that a file lies in, the innermost first: any of them may be on its path."""
    folder = posixpath.dirname(path)
    return [folder, *(_parents(folder) if folder else [])]
