"""What tests and their scripts import from launch, or put in the place of, exists by that name.

A script that runs in a process of its own, or a nightly test, would otherwise be the first to notice a renaming.
"""

import ast
import importlib

from tests.docs.blocks import ROOT

OURS = ("launcher", "trainer")


def named(module, name):
    """Return the attribute or submodule; raise AttributeError or ImportError where there is none."""
    found = importlib.import_module(module)
    return getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{module}.{name}")


def is_ours(module):
    return (module or "").partition(".")[0] in OURS


def wrong_names(source):
    """Return what a file imports from us, or assigns to an attribute of ours, that is not there."""
    wrong, imported = [], {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and is_ours(node.module):
            for alias in node.names:
                try:
                    imported[alias.asname or alias.name] = named(node.module, alias.name)
                except (AttributeError, ImportError):
                    wrong.append(f"{node.module}.{alias.name}")
    for node in ast.walk(ast.parse(source)):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            for one in target.elts if isinstance(target, ast.Tuple) else (target,):
                path, base = [], one
                while isinstance(base, ast.Attribute):
                    path.insert(0, base.attr)
                    base = base.value
                if path and isinstance(base, ast.Name) and base.id in imported:
                    holder = imported[base.id]
                    for name in path:
                        if not hasattr(holder, name):
                            wrong.append(ast.unparse(one))
                            break
                        holder = getattr(holder, name)
    return wrong


def test_all_are_there():
    files = [file for folder in ("tests", "jobs", "templates") for file in (ROOT / folder).rglob("*.py")]
    wrong = {str(file.relative_to(ROOT)): names for file in files if (names := wrong_names(file.read_text()))}
    assert not wrong


def test_a_name_that_is_gone_is_noticed():
    assert wrong_names("from launcher.errors import Gone") == ["launcher.errors.Gone"]
    assert wrong_names("from launcher import errors\nerrors.Gone = None\nerrors.Exit.GONE, a = 1, 2") == [
        "errors.Gone",
        "errors.Exit.GONE",
    ]
