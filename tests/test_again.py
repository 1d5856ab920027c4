"""A test that failed once is tried again; what fails again, or is no single test's, stays a failure."""

import pytest
from again import MOST, TIMES, again, worth_trying

STARVED = "tests/ssh/test_cuts.py::test_a_cut"


@pytest.mark.parametrize(
    ("told", "tried"),
    [
        ({"failed": [STARVED], "errors": 0}, [STARVED]),
        ({"failed": [STARVED], "errors": 1}, []),
        ({"failed": [STARVED] * (MOST + 1), "errors": 0}, []),
        ({"failed": [STARVED, "tests/chaos/test_chaos.py::test_nothing_wrong_ever[ssh-0]"], "errors": 0}, []),
        ({"failed": ["tests/quality/test_shape.py::test_sizes"], "errors": 0}, []),
        ({"failed": [], "errors": 0}, []),
    ],
)
def test_what_is_tried_again(told, tried):
    assert worth_trying(told) == tried


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
    assert again({"failed": ["test_it.py::test_it"], "errors": 0, "seed": 7}) == status
    assert (tmp_path / "tried").read_text() == "x" * tries
    assert ("FLAKY test_it.py::test_it" in capfd.readouterr().out) is (status == 0)
