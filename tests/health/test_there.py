"""The programs that run on machines which need not have us, and the reading of what they answer."""

import ast
import contextlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import Unreachable
from launcher.health import machine_there
from launcher.health.machine_there import MachineFacts, Measured, OpenDoors
from launcher.health.network import RankAnswer
from launcher.health.session import Helper, read_answer
from launcher.places.batch.trial.checks import Hello, NodeReport, read_stopped

PROGRAMS = sorted(Path(machine_there.__file__).parent.glob("*_there.py"))
ANSWERS = (MachineFacts, OpenDoors, Measured, RankAnswer, Hello, NodeReport)


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_they_need_the_standard_library_alone_and_torch_where_it_is_asked_for(path):
    tree = ast.parse(path.read_text())
    assert set(imported(tree)) <= sys.stdlib_module_names | {"torch"}
    at_once = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert set(imported(ast.Module(at_once, []))) <= sys.stdlib_module_names


def test_a_look_as_text_tells_what_a_look_from_here_does(tmp_path):
    asked = {"folders": [str(tmp_path / "not" / "there")], "user": "ann"}
    words = [sys.executable, "-I", "-c", Path(machine_there.__file__).read_text()]
    done = subprocess.run(words, input=json.dumps({"do": "look", **asked}).encode(), capture_output=True, check=True)
    there = read_answer(done.stdout, MachineFacts)
    here = machine_there.look(**asked)
    assert there.folders[0].at == here.folders[0].at == str(tmp_path)
    assert there.folders[0].refusals == () and there.open_files == here.open_files
    assert list(tmp_path.iterdir()) == []


# What they answer


@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: kind.__name__)
@given(st.data())
def test_an_answer_is_of_its_type_and_bounded_or_a_named_error(kind, data):
    """Near answers: the fields of the type with any values, and any bytes."""
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("x" * 5000) | st.just(10**400),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=8,
    )
    names = [field.name for field in msgspec.inspect.type_info(kind).fields]
    near = st.fixed_dictionaries({}, optional=dict.fromkeys(names, values)).map(lambda one: json.dumps(one).encode())
    text = data.draw(near | st.binary() | st.just(b"[" * 100_000) | st.just(b'{"port": 1e999}'))
    with contextlib.suppress(ValueError):
        found = read_answer(text, kind)
        assert isinstance(found, kind)
        bounded(msgspec.to_builtins(found))


def bounded(found):
    if isinstance(found, dict | list | tuple):
        assert len(found) <= 1000
        for one in found.values() if isinstance(found, dict) else found:
            bounded(one)
    elif isinstance(found, str):
        assert len(found) <= 4096
    elif found is not None:
        assert abs(found) < 2**63


def test_ports_that_are_none_are_no_answer():
    for ports in ([], [1], [1, 2, 3], [0, "x"]):
        with pytest.raises(ValueError, match="ports"):
            read_answer(json.dumps({"ports": ports}).encode(), OpenDoors)


@given(
    st.lists(st.sampled_from(["1: ", "stopped ", "n1", " 41", "\n", "²", "\r", "\u2028", ": "]) | st.text(max_size=3))
)
def test_a_log_of_nodes_gives_names_and_codes_or_nothing(pieces):
    for node, (code, said) in read_stopped("".join(pieces)).items():
        assert node and not node.isspace() and 0 <= code <= 999 and "\n" not in said


def test_a_long_log_is_read_once():
    """For each of its lines anew it would take hours."""
    log = "".join(f"{number}: odd\n{number}: stopped n{number} 1\n" for number in range(40_000))
    found = read_stopped(log)
    assert len(found) == 40_000 and found["n7"] == (1, "odd")


@dataclass
class Talker:
    """A host's program that says this, for ever; it is its connection, too."""

    words: bytes
    said: int = 0

    def start(self, _command):
        return self

    def write(self, _data, _limit_s):
        """Write a program that does not listen."""

    def read(self, size, _limit_s):
        self.said += min(size, len(self.words))
        return self.words[:size]


@pytest.mark.parametrize("words", [b"x" * 100_000, b"[" * 100_000])
def test_a_host_that_never_ends_its_line_is_given_up(words):
    talker = Talker(words)
    with pytest.raises(Unreachable, match="more than was requested"):
        Helper("node1", talker, "python", "machine").ask({"do": "look"}, MachineFacts, 60.0)
    assert talker.said < 2_000_000


def test_it_is_written_in_python_3_9():
    """The ranks' interpreter runs it, too, and that may be so old: no annotation is looked at when it is imported."""
    tree = ast.parse(Path(machine_there.__file__).read_text(), feature_version=(3, 9))
    assert any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
