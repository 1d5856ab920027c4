"""Find which modules a script imports that are neither in the standard library nor the user's own code, by reading the
text of files; nothing is run.

Preloading needs the modules that may be imported; the check for missing modules needs those that certainly are.
"""

import ast
import posixpath
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from typing import NamedTuple

UNKNOWN = "*"
_MOST_FILES, _MOST_BYTES = 500, 2_000_000  # half a second of parsing
_OF_SYS = frozenset(("path", "path_hooks", "meta_path", "modules"))  # what decides there of where modules come from
_BRING_MODULES = frozenset(("ensurepip", "pip", "pkg_resources", "site", "uv", "zipimport"))
_INSTALLS = re.compile(r"\b(?:pip3?|uv|conda|mamba|easy_install)\b")
_TELLING = (ast.Import, ast.ImportFrom, ast.Attribute, ast.Constant, ast.Name)


class SureImport(NamedTuple):
    """A module that is imported whenever the program runs, with the file and line of the import statement."""

    path: str
    line: int
    module: str


def third_party_imports(read: Callable[[str], bytes | None], entry: str, own_folders: Iterable[str] = ()) -> set[str]:
    """Return the dotted names that the program's entry file, and the user's own modules that it imports, may import
    from elsewhere: for `import a.b` both `a` and `a.b`. For `from a import b`, `a.b` is returned even if `b` is no
    module.

    `read` returns the content of a file, or None if there is none. `own_folders` are the folders of the code that are
    on PYTHONPATH. Return {"*"} if a file is not valid Python, or if the files are too large or too many to read at
    once.
    """
    text_of = cache(read)
    own: set[str] = set()
    named: set[str] = set()
    waiting, seen, bytes_left = [entry], {entry}, _MOST_BYTES
    bases = _bases(entry, own_folders)
    while waiting:
        path = waiting.pop()
        text = text_of(path)
        bytes_left -= len(text or b"")
        known = _read(text) if text is not None and bytes_left >= 0 and len(seen) <= _MOST_FILES else None
        if known is None:
            return {UNKNOWN}
        for module, level in known.modules:
            files = [file for file in _files(module, level, path, bases) if text_of(file) is not None]
            if level == 0:
                (own if files else named).add(module)
            waiting += [file for file in files if file not in seen]
            seen.update(files)
    theirs = sys.stdlib_module_names | {_top(module) for module in own}
    return {module for module in named if _top(module) not in theirs}


def sure_imports(read: Callable[[str], bytes | None], entry: str, own_folders: Iterable[str] = ()) -> list[SureImport]:
    """Return the imports at the top level of the entry, and of the modules of its own that it imports at the top level.

    Imports in a `try`, an `if` or a function are left out. `read` returns a file's content, or None if there is none;
    `own_folders` are the folders of the code that are on PYTHONPATH. Return none at all if a file could change where
    modules come from, for instance by `sys.path`.
    """
    bases = _bases(entry, own_folders)
    found = list[SureImport]()
    waiting, seen = [entry], {entry}
    while waiting and len(seen) <= _MOST_FILES:
        path = waiting.pop(0)
        known = _read(read(path) or b"")
        if known is None or known.decides:
            return []
        for module, level, line in known.sure:
            files = [file for part in _with_packages(module) for file in _files(part, level, path, bases)]
            there = [file for file in files if read(file) is not None]
            if level == 0 and not there:
                found.append(SureImport(path, line, module))
            waiting += [file for file in there if file not in seen]
            seen.update(there)
    return found


def syntax_error(text: bytes, path: str) -> str:
    """Return where and why the text is not valid Python for this interpreter, with `path` as its name, or "" if it is
    valid.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text, path)
    except SyntaxError as error:
        return f"{path}:{error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError):
        return ""  # whatever it is, the ranks will report it
    return ""


def _bases(entry: str, own_folders: Iterable[str]) -> list[str]:
    """Return the folders of the code that may be on sys.path when the file `entry` runs: all that contain it, innermost
    first, and then `own_folders`, which are on PYTHONPATH.
    """
    return list(dict.fromkeys([*_parents(entry), *("" if folder == "." else folder for folder in own_folders)]))


def _top(module: str) -> str:
    """Return the part of a module's name before the first dot."""
    return module.partition(".")[0]


class _FileImports(NamedTuple):
    """The imports of one file: `modules` that it may import, as (name, leading dots), and those that are `sure`, as
    (name, leading dots, line).

    `decides` is True if the file may change where modules come from.
    """

    modules: frozenset[tuple[str, int]]  # (dotted name, leading dots) of each module that may be imported
    sure: tuple[tuple[str, int, int], ...]  # (dotted name, leading dots, line) of each import that is always executed
    decides: bool  # after it has run, modules may come from elsewhere or be installed


@lru_cache(_MOST_FILES)
def _read(text: bytes) -> _FileImports | None:
    """Return the imports of a file, or None if its text is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's code: an invalid escape is not ours to report
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    nodes = [node for node in ast.walk(tree) if isinstance(node, _TELLING)]
    modules = frozenset((part, level) for name, level in _named(nodes) for part in _with_packages(name))
    sure = [(name, level, node.lineno) for node in tree.body for name, level in _imported(node)]
    return _FileImports(modules, tuple(sure), any(map(_decides_of_imports, nodes)))


def _imported(statement: ast.stmt) -> list[tuple[str, int]]:
    """Return the modules that a statement imports, each with the number of its leading dots (0 for an absolute
    import).
    """
    if isinstance(statement, ast.Import):
        return [(alias.name, 0) for alias in statement.names]
    return [(statement.module or "", statement.level)] if isinstance(statement, ast.ImportFrom) else []


def _decides_of_imports(node: ast.AST) -> bool:
    """Return whether the syntax node may change where modules come from, as a use of `sys.path` does."""
    match node:
        case ast.Attribute(value=ast.Name(id="sys"), attr=name):
            return name in _OF_SYS
        case ast.Import(names=names):
            return any(_top(one.name) in _BRING_MODULES or (one.name == "sys" and one.asname) for one in names)
        case ast.ImportFrom(module="sys", names=names):
            return any(one.name in {*_OF_SYS, "*"} for one in names)
        case ast.ImportFrom(module=str(module), level=0):
            return _top(module) in _BRING_MODULES
        case ast.Constant(value=str(text)):
            return _INSTALLS.search(text) is not None
        case ast.Name(id=name):
            return name in ("exec", "__import__")
        case _:
            return False


def _named(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yield the modules that the syntax nodes import, and names imported from them that may be modules, each with the
    number of its leading dots.
    """
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield module, node.level
            # What is taken from a package may be a module of it.
            yield from ((f"{module}.{alias.name}".strip("."), node.level) for alias in node.names)


def _with_packages(name: str) -> Iterable[str]:
    """Return the name and its parent packages, because importing a.b.c runs a and a.b as well."""
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _files(module: str, level: int, importer: str, bases: list[str]) -> Iterator[str]:
    """Yield the paths in the user's code that `module`, imported with `level` leading dots by the file `importer`, may
    refer to; `bases` are the folders on sys.path.
    """
    if level:
        bases = _parents(importer)[level - 1 : level]
    for base in bases:
        stem = posixpath.join(base, *module.split("."))
        yield f"{stem}.py"
        yield posixpath.join(stem, "__init__.py")


def _parents(path: str) -> list[str]:
    """Return the folders that contain a file, innermost first; any of them may be on the program's path."""
    folder = posixpath.dirname(path)
    return [folder, *(_parents(folder) if folder else [])]
