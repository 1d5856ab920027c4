"""The benchmarks run: tiny, and whatever figures come out. No figure decides about a test."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
OWN_STORE = "torchrun, own store"


def run(script, *words):
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "words", "rows"),
    [
        ("start", ["--ranks", "2", "--pairs", "1", "--peers", "launch", OWN_STORE], ["2 | launch", f"2 | {OWN_STORE}"]),
        ("recover", ["--ranks", "2", "--kills", "2", "--peers", "launch"], ["launch | 2 of 2"]),
        ("memory", ["--ranks", "2", "--pairs", "1", "--peers", "launch"], ["launch"]),
        ("cli", ["--runs", "3", "--repeats", "1"], ["`launch --help`", "`launch status, 3 runs`"]),
        ("idle", ["--ranks", "2", "--seconds", "1"], ["agent", "keeper"]),
        ("coordinator", ["--sizes", "3", "--rounds", "1"], ["3"]),
    ],
)
def test_it_runs_and_shows_a_table(name, words, rows):
    table = [line for line in run(HERE / f"{name}.py", *words).splitlines() if line.startswith("|")]
    assert table[1].strip("|-") == ""
    for row in rows:
        assert any(line.startswith(f"| {row} |") for line in table), table


def test_its_section_of_the_results_is_replaced_and_no_other(tmp_path):
    shutil.copy(HERE / "results.py", tmp_path)
    script = "import sys; from results import publish; publish(sys.argv[1], sys.argv[2], write=True)"
    for name, table in (("one", "| first |"), ("two", "| second |"), ("one", r"| third \1 |")):
        subprocess.run([sys.executable, "-c", script, name, table], cwd=tmp_path, check=True, capture_output=True)
    text = (tmp_path / "RESULTS.md").read_text()
    assert text.count("## one.py") == text.count("## two.py") == 1
    assert "first" not in text
    assert text.index(r"| third \1 |") < text.index("| second |")
