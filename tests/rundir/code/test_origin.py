import subprocess

import pytest

from launcher.rundir.code.origin import origin_of


def git(folder, *words):
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=folder, check=True, capture_output=True
    )


@pytest.fixture
def project(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "train.py").write_text("1\n")
    return tmp_path


def test_no_repository_and_no_commit(tmp_path):
    (tmp_path / "plain").mkdir()
    assert origin_of(tmp_path / "plain") is None
    git(tmp_path / "plain", "init", "-q")
    assert origin_of(tmp_path / "plain") is None


def test_a_commit_and_what_differs_from_it(project):
    git(project, "add", "train.py")
    git(project, "commit", "-qm", "first")
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=project, check=True, capture_output=True, text=True
    ).stdout.strip()
    clean = origin_of(project)
    assert (clean.commit, clean.dirty) == (head, False)
    (project / "new.txt").write_text("not tracked")
    assert not origin_of(project).dirty
    (project / "train.py").write_text("2\n")
    changed = origin_of(project)
    assert (changed.commit, changed.dirty) == (head, True)
