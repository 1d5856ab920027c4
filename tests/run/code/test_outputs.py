"""Test that files that ranks write beside their code are distinguished from the code."""

import os

from launcher.run.code.outputs import link_into, written


def tree(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def test_what_is_written_is_what_is_none_of_the_code(tmp_path):
    code = tree(tmp_path, "train.py", "src/a.py", "src/a.csv", "results/b.csv", "__pycache__/train.pyc", "log.txt")
    frozen = {"train.py", "src/a.py"}
    assert written(code, frozen, ()) == ["log.txt", "results/b.csv", "src/a.csv"]
    assert written(code, frozen, ("results/",)) == ["results/b.csv"]
    assert written(code, frozen, ("*.csv", "log.txt")) == ["log.txt", "results/b.csv", "src/a.csv"]
    assert written(tmp_path / "nowhere", frozen, ()) == []


def test_taken_again_it_is_as_it_is_now(tmp_path):
    code, folder = tree(tmp_path / "code", "results/b.csv"), tmp_path / "outputs"
    assert link_into(code, ["results/b.csv"], folder) == [folder / "results" / "b.csv"]
    (code / "results" / "new").write_text("other")
    os.replace(code / "results" / "new", code / "results" / "b.csv")
    link_into(code, ["results/b.csv"], folder)
    assert (folder / "results" / "b.csv").read_text() == "other"
    assert sorted(path.name for path in (folder / "results").iterdir()) == ["b.csv"]


def test_links_and_what_is_gone_are_left(tmp_path):
    code = tree(tmp_path / "code", "a")
    (code / "link").symlink_to("/etc/hostname")
    assert link_into(code, ["a", "gone", "link"], tmp_path / "outputs") == [tmp_path / "outputs" / "a"]
