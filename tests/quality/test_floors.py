"""Imports go down the floors: the contracts in pyproject.toml hold, and they bite."""

import ast
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("launcher", "trainer")


def test_the_contracts_hold(tool):
    code, said = tool("lint-imports", "--no-cache")
    assert code == 0, said


BREACHES = [  # a line at the end of a file, the contract that it breaks, and what is said under the contract's name
    (
        "launcher/states.py", "import launcher.cli.main",
        "imports go down the floors", "launcher.states -> launcher.cli.main",
    ),
    ("launcher/newcomer.py", "", "imports go down the floors", "- launcher.newcomer"),
    (
        "launcher/run/layout.py", "import launcher.run.attempts",
        "no circles inside a floor", ".layout -> .attempts",
    ),
    (
        "launcher/apps/remote_api.py", "import launcher.apps.graph",
        "imports of the apps go down their floors", "launcher.apps.remote_api -> launcher.apps.graph",
    ),
    (
        "launcher/node/node.py", "import torch",
        "neither the launcher nor the files of checkpoints need torch", "launcher.node.node -> torch",
    ),
    (
        "launcher/node/node.py", "import launcher.node.zygote",
        "nothing imports the zygote", "launcher.node.node -> launcher.node.zygote",
    ),
    (
        "launcher/node/node.py", "import trainer.wire",
        "the launcher knows of the trainer what its files are", "launcher.node.node -> trainer.wire",
    ),
    ("launcher/status/facts.py", "import yaml", "YAML is read in launcher.spec alone", "launcher.status.facts -> yaml"),
    (
        "launcher/places/ssh/pool.py", "import paramiko",
        "paramiko is known in one place", "launcher.places.ssh.pool -> paramiko",
    ),
    ("launcher/api.py", "import optuna", "optuna is known in one place", "launcher.api -> optuna"),
    ("trainer/wire.py", "import launcher.errors", "the trainer stands apart", "trainer.wire -> launcher.errors"),
    (
        "trainer/wire.py", "import trainer.checkpoint.tree",
        "the trainer's imports go down its floors", "trainer.wire -> trainer.checkpoint.tree",
    ),
    ("trainer/newcomer.py", "", "the trainer's imports go down its floors", "- trainer.newcomer"),
    (
        "trainer/checkpoint_files/layout.py", "import trainer.checkpoint_files.commit",
        "no circles inside a floor", ".layout -> .commit",
    ),
    (
        "trainer/checkpoint_files/layout.py", "import trainer.world",
        "the trainer's imports go down its floors", "trainer.checkpoint_files.layout -> trainer.world",
    ),
    (
        "trainer/checkpoint_files/durable.py", "import numpy",
        "neither the launcher nor the files of checkpoints need torch", "trainer.checkpoint_files.durable -> numpy",
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def report_of(tool, tmp_path_factory):
    """Return what each contract reports for a copy that breaks all of them at once."""
    copy = tmp_path_factory.mktemp("breached")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    for module, line, _, _ in BREACHES:
        with (copy / module).open("a") as file:
            file.write(f"\n{line}\n")
    code, said = tool("lint-imports", "--no-cache", cwd=copy)
    assert code == 1, said
    parts = re.split(r"^(.+)\n-+\n", said, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize(("module", "line", "contract", "breach"), BREACHES)
def test_the_contracts_bite(report_of, module, line, contract, breach):
    assert breach in report_of[contract]


def test_every_contract_bites():
    """None is looked at here that nothing is known to break."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert {contract["name"] for contract in contracts} == {contract for _, _, contract, _ in BREACHES}


def test_the_zygote_needs_the_standard_library_alone():
    tree = ast.parse((ROOT / "launcher" / "node" / "zygote.py").read_text())
    assert imported(tree) <= sys.stdlib_module_names


def test_a_late_import_gives_its_reason():
    # The front of a package, which imports what it names when it is called, says so once at its top.
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    texts = {path: path.read_text() for path in paths if path.name != "__init__.py"}
    silent = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, text in texts.items()
        for node in late_imports(ast.parse(text))
        if "#" not in text.splitlines()[node.lineno - 1]
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
