from types import SimpleNamespace

import pytest

from launcher.run.code.left_out import left_out


@pytest.fixture
def run(tmp_path):
    """A run in whose project data/ was not frozen."""
    for folder in ("run/code/lib", "project/data", "project/lib"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "project/data/words.txt").touch()
    (tmp_path / "project/lib/net.json").touch()
    (tmp_path / "run/code/lib/net.json").touch()
    (tmp_path / "secret").touch()
    return tmp_path / "run"


def missed(run, path, workdir="code"):
    plan = SimpleNamespace(project=str(run.parent / "project"), workdir=workdir)
    return left_out(f"FileNotFoundError: [Errno 2] No such file or directory: {path!r}", plan, run)


def test_a_file_of_the_project_that_was_not_frozen_is_named(run):
    assert missed(run, "data/words.txt") == "data/words.txt"
    assert missed(run, b"data/words.txt") == "data/words.txt"
    assert missed(run, "./data/../data/words.txt") == "data/words.txt"
    assert missed(run, "../data/words.txt", workdir="code/lib") == "data/words.txt"
    assert missed(run, str(run / "code" / "data" / "words.txt")) == "data/words.txt"
    assert missed(run, "data") == "data"


@pytest.mark.parametrize(
    "path", ["nowhere.txt", "lib/net.json", "../secret", "../../secret", "/etc/passwd", ".", "data/\\x00"]
)
def test_any_other_is_not(run, path):
    assert missed(run, path) == ""


def test_a_file_that_ranks_have_made_since_is_there(run):
    (run / "code" / "data").mkdir()
    (run / "code" / "data" / "words.txt").touch()
    assert missed(run, "data/words.txt") == ""


def test_other_words_say_nothing_of_files(run):
    plan = SimpleNamespace(project=str(run.parent / "project"), workdir="code")
    assert left_out("KeyError: 'data/words.txt'", plan, run) == ""
    assert left_out("sh: 1: data/words.txt: not found", plan, run) == ""
