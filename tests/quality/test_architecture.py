"""Guard the architecture beside the import contracts: no code compares the name of a kind of cluster."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAUNCHER = ROOT / "launcher"
FILES = sorted(LAUNCHER.rglob("*.py"))
KINDS = ("local", "slurm", "gridengine", "pbs", "lsf", "k8s", "ssh", "login")
FOLDERS = {"k8s": "kubernetes"}  # where it has not the kind's name
# The registry of kinds and the sections of the spec are where kinds have names.
KNOW_THE_KINDS = ("states.py", "places/kinds.py", "spec/cluster_fields.py", "spec/model.py", "spec/checks.py")


def inside(path):
    return path.relative_to(LAUNCHER).as_posix()


@pytest.fixture(scope="module")
def trees():
    """Return the parsed files of the launcher, read once."""
    return {path: ast.parse(path.read_text()) for path in FILES}


def strings_of(tree):
    """Every string of a file that is no docstring."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and is_text(node.body)}
    return [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docs]


def is_text(body):
    return bool(body) and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)


def test_nobody_outside_asks_a_kind_for_its_name(trees):
    told = []
    for path, tree in trees.items():
        name = inside(path)
        if name in KNOW_THE_KINDS:
            continue
        known = {"ssh"} if name.startswith("remote/") else set()  # the program of OpenSSH
        for node in strings_of(tree):
            if (
                node.value in KINDS
                and node.value not in known
                and not name.startswith(f"places/{FOLDERS.get(node.value, node.value)}/")
            ):
                told.append(f"launcher/{name}:{node.lineno}: {node.value!r}")
    assert not told, "\n".join(["what differs between kinds is data or a method of the kind:", *told])


PLAIN = {"dict", "list", "tuple", "str", "int", "float", "bytes", "bool", "object", "Any", "Raw", "msgspec"}


def test_a_class_is_first_decoded_by_one_thread(trees):
    """Where two decode it for the first time at once msgspec ends the process: launcher.decoding says more."""
    careless = []
    of_the_trainer = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "trainer").rglob("*.py"))}
    for path, tree in {**trees, **of_the_trainer}.items():
        for function in ast.walk(tree):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found = [(call, kind) for call in ast.walk(function) for kind in kinds_decoded_by(call)]
                wrong = [f"{path}:{call.lineno}" for call, kind in found if names_in(kind) - PLAIN]
                careless += wrong if wrong and "decoder_of(" not in ast.unparse(function) else []
    assert careless == [], "give decoder_of() the class, or make a Decoder at import"


def names_in(tree):
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def kinds_decoded_by(call):
    """The types that a call of msgspec's own functions is given."""
    if not isinstance(call, ast.Call) or "msgspec" not in names_in(call.func):
        return []
    name = ast.unparse(call.func).rpartition(".")[2]
    named = [word.value for word in call.keywords if word.arg == "type"]
    return named + {"convert": call.args[1:], "Decoder": call.args, "decode": call.args[1:]}.get(name, [])
