"""The programs that run on machines which need not have us."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from launcher.doctor import look_there
from launcher.doctor.programs import text_of

FOLDER = Path(look_there.__file__).parent
OF_TORCH = {"torch"}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*_there.py")), ids=lambda path: path.stem)
def test_they_need_the_standard_library_alone(path):
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    assert names <= sys.stdlib_module_names | (OF_TORCH if path.stem in ("torch_there", "reduce_there") else set())


def test_a_look_as_text_tells_what_a_look_from_here_does(tmp_path):
    asked = json.dumps({"folders": [str(tmp_path / "not" / "there")], "user": "ann"})
    words = [sys.executable, "-I", "-c", text_of("look"), asked]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    there = msgspec.json.decode(done.stdout.removeprefix(look_there.MARK), type=look_there.NodeFacts)
    here = look_there.look([str(tmp_path / "not" / "there")], "ann")
    assert there.folders[0].at == here.folders[0].at == str(tmp_path)
    assert there.folders[0].refusals == () and there.open_files == here.open_files
    assert list(tmp_path.iterdir()) == []
