"""The shape of the house: kinds of clusters are known where they live, one word means one thing, nothing piles up."""

import ast
import re
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[2]
LAUNCHER = ROOT / "launcher"
FILES = sorted(LAUNCHER.rglob("*.py"))
KINDS = ("local", "slurm", "gridengine", "ssh", "login")
# The registry of kinds and the sections of the spec are where kinds have names.
KNOW_THE_KINDS = ("words.py", "clusters/kinds.py", "spec/cluster_fields.py", "spec/model.py", "spec/checks.py")
MOST_FILES, MOST_METHODS, MOST_FLOORS, MEDIAN_LINES = 14, 20, 8, 7
RIDDLES = re.compile(r"^the same\b|\bsee the module\b|\bas above\b", re.IGNORECASE)


def inside(path):
    return path.relative_to(LAUNCHER).as_posix()


@pytest.fixture(scope="module")
def trees():
    """Of each file of the launcher, read once."""
    return {path: ast.parse(path.read_text()) for path in FILES}


def classes(trees):
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield path, node


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
        known = {"ssh"} if name.startswith("hostlink/") else set()  # the program of OpenSSH
        for node in strings_of(tree):
            if node.value in KINDS and node.value not in known and not name.startswith(f"clusters/{node.value}/"):
                told.append(f"launcher/{name}:{node.lineno}: {node.value!r}")
    assert not told, "\n".join(["what differs between kinds is data or a method of the kind:", *told])


def test_a_class_name_means_one_thing(trees):
    places = defaultdict(list)
    for path, node in classes(trees):
        if not node.name.startswith("_"):
            places[node.name].append(f"{inside(path)}:{node.lineno}")
    twice = [f"{name}: {', '.join(where)}" for name, where in sorted(places.items()) if len(where) > 1]
    assert not twice, "\n".join(twice)


def test_no_class_has_too_many_methods(trees):
    counts = {
        f"{inside(path)}:{node.name}": sum(
            isinstance(item, ast.FunctionDef) and not item.decorator_list and not item.name.startswith("_")
            for item in node.body
        )
        for path, node in classes(trees)
    }
    assert not {name: count for name, count in counts.items() if count > MOST_METHODS}


def test_functions_are_short(trees):
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    lengths = [
        one.end_lineno - one.lineno + 1
        for tree in trees.values()
        for one in ast.walk(tree)
        if isinstance(one, functions)
    ]
    assert median(lengths) <= MEDIAN_LINES


def test_docstrings_say_what_a_thing_is(trees):
    riddles = []
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            doc = ast.get_docstring(node) if isinstance(node, documented) else None
            riddles += [f"{inside(path)}: {line}" for line in (doc or "").splitlines() if RIDDLES.search(line.strip())]
        riddles += [
            f"{inside(path)}: {line.strip()}" for line in path.read_text().splitlines() if "# late: as above" in line
        ]
    assert not riddles, "\n".join(riddles)


@pytest.mark.parametrize("folder", ["cli", "clusters", "hostlink", "doctor", "agent"])
def test_no_folder_is_crowded(folder):
    rooms = [path for path in (LAUNCHER / folder, *(LAUNCHER / folder).rglob("*")) if path.is_dir()]
    counts = {inside(room): len([*room.glob("*.py")]) for room in rooms}
    assert not {name: count for name, count in counts.items() if count > MOST_FILES + 1}  # __init__.py is no room


@pytest.mark.parametrize("kind", ["local", "slurm", "ssh"])
def test_the_floors_of_a_kind_can_be_climbed(kind):
    """How deep the chain of imports inside a kind's folder is."""
    prefix = f"launcher.clusters.{kind}"
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in FILES}
    own = {name: path for name, path in modules.items() if name.startswith(f"{prefix}.")}
    below = {name: imported(path, own) - {name} for name, path in own.items()}

    def floors(name, seen=()):
        return 1 + max((floors(one, (*seen, name)) for one in below[name] if one not in seen), default=0)

    depths = {name: floors(name) for name in own}
    assert max(depths.values()) <= MOST_FLOORS, {name: depth for name, depth in depths.items() if depth > MOST_FLOORS}


def imported(path, own):
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & set(own)


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
