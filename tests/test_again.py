"""A few tests that failed once are tried again; what fails again, or is too much, stays a failure."""

import pytest
from again import MOST, MOST_FILES, TIMES, again, worth_trying

STARVED = "tests/ssh/test_cuts.py::test_a_cut"
SHARED = [f"tests/login/test_hostile_login_node.py::test_a_lie[{number}]" for number in range(MOST)]


@pytest.mark.parametrize(
    ("failed", "tried"),
    [
        ([STARVED], [STARVED]),
        (SHARED, SHARED),
        ([STARVED, *SHARED], []),
        ([f"tests/test_{number}.py::test_it" for number in range(MOST_FILES)], ...),
        ([f"tests/test_{number}.py::test_it" for number in range(MOST_FILES + 1)], []),
        ([STARVED, "tests/quality/test_shape.py::test_sizes"], []),
        ([], []),
    ],
)
def test_what_is_tried_again(failed, tried):
    assert worth_trying({"failed": failed}) == (failed if tried is ... else tried)


@pytest.mark.parametrize(("failures", "status", "tries"), [(0, 0, TIMES), (1, 1, 1)])
def test_it_has_to_pass_each_time(tmp_path, monkeypatch, capfd, failures, status, tries):
    (tmp_path / "test_it.py").write_text(f"""
from pathlib import Path

def test_it():
    with open("tried", "a") as file:
        file.write("x")
    assert len(Path("tried").read_text()) > {failures}
""")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_ADDOPTS", f"--rootdir={tmp_path}")
    assert again({"failed": ["test_it.py::test_it"], "seed": 7}) == status
    assert (tmp_path / "tried").read_text() == "x" * tries
    assert ("FLAKY test_it.py::test_it" in capfd.readouterr().out) is (status == 0)
