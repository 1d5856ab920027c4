"""Imports go down the floors: the contracts in pyproject.toml hold, and they bite."""

import ast
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("launcher", "trainer")


def test_the_contracts_hold(tool):
    code, said = tool("lint-imports", "--no-cache")
    assert code == 0, said


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("launcher/words.py", "import launcher.cli.main", "imports go down the floors"),
        ("launcher/rundir/layout.py", "import launcher.rundir.attempts", "no circles inside a floor"),
        ("launcher/agent/node.py", "import torch", "neither the launcher nor the files of checkpoints need torch"),
        ("launcher/agent/node.py", "import launcher.agent.zygote", "nothing imports the zygote"),
        ("launcher/agent/node.py", "import trainer.wire", "the launcher knows of the trainer what its files are"),
        ("launcher/status/facts.py", "import yaml", "YAML is read in launcher.spec alone"),
        ("launcher/clusters/ssh/pool.py", "import paramiko", "paramiko is known in one place"),
        ("launcher/newcomer.py", "", "imports go down the floors"),
        ("trainer/wire.py", "import launcher.errors", "the trainer stands apart"),
        ("trainer/wire.py", "import trainer.checkpoint.tree", "the trainer's imports go down its floors"),
        ("trainer/checkpoint_files/layout.py", "import trainer.checkpoint_files.commit", "no circles inside a floor"),
        ("trainer/checkpoint_files/layout.py", "import trainer.world", "the trainer's imports go down its floors"),
        (
            "trainer/checkpoint_files/durable.py",
            "import numpy",
            "neither the launcher nor the files of checkpoints need torch",
        ),
        ("trainer/newcomer.py", "", "the trainer's imports go down its floors"),
    ],
)
def test_the_contracts_bite(tool, tmp_path, module, line, contract):
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / module).open("a") as file:
        file.write(f"\n{line}\n")
    code, said = tool("lint-imports", "--no-cache", cwd=tmp_path)
    assert code == 1, said
    assert f"{contract} BROKEN" in said


def test_the_zygote_needs_the_standard_library_alone():
    tree = ast.parse((ROOT / "launcher" / "agent" / "zygote.py").read_text())
    assert imported(tree) <= sys.stdlib_module_names


def test_a_late_import_gives_its_reason():
    silent = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in late_imports(ast.parse(path.read_text()))
        # The front of a package, which imports what it names when it is called, says so once at its top.
        if path.name != "__init__.py" and "#" not in path.read_text().splitlines()[node.lineno - 1]
    ]
    assert not silent, "\n".join(["write `# late: why` beside an import inside a function:", *silent])


def late_imports(tree):
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inner = [node for function in functions for node in ast.walk(function)]
    return [node for node in inner if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(tree):
    """The top-level names of everything that is imported anywhere in it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names
