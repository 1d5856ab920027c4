import hashlib
import os
import subprocess

import pytest

from launcher.errors import BadInput
from launcher.run.code.listing import list_frozen
from launcher.run.code.origin import changes_since, origin_of


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


class Frozen:
    """The code of a run, beside the project that it is of."""

    def __init__(self, project, code):
        self.project, self.code = project, code

    def commit(self):
        git(self.project, "add", "-A")
        git(self.project, "commit", "-qm", "all")
        return origin_of(self.project).commit

    def write(self, name, content, root=None):
        path = (root or self.code) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def other(self, commit, excluded=(), project=None):
        return [str(one) for one in changes_since(commit, project or self.project, list_frozen(self.code), excluded)]


@pytest.fixture(params=["sha1", "sha256"])
def frozen(tmp_path, request):
    for name in ("project", "code"):
        (tmp_path / name).mkdir()
    git(tmp_path / "project", "init", "-q", f"--object-format={request.param}")
    return Frozen(tmp_path / "project", tmp_path / "code")


def test_code_as_it_was_committed_differs_in_nothing(frozen):
    for root in (frozen.project, frozen.code):
        frozen.write("train.py", b"1\n", root)
        frozen.write("run.sh", b"#!/bin/sh\n", root).chmod(0o755)
        os.symlink("train.py", root / "link")
        frozen.write(os.fsdecode(b"sub/\xff name"), b"\0", root)
    assert frozen.other(frozen.commit()) == []


def test_what_was_not_committed_is_told_by_line(frozen):
    for name in ("same.py", "changed.py", "gone.py", "run.sh"):
        frozen.write(name, b"1\n", frozen.project)
    commit = frozen.commit()
    for name, content in {"same.py": b"1\n", "changed.py": b"2\n", "new.py": b"3\n", "run.sh": b"1\n"}.items():
        frozen.write(name, content)
    (frozen.code / "run.sh").chmod(0o755)
    assert frozen.other(commit) == [
        "changed.py: changed +1 -1", "gone.py: gone +0 -1", "new.py: new +1 -0", "run.sh: changed, executable now",
    ]  # fmt: skip


def test_what_the_spec_leaves_out_is_not_gone(frozen):
    for name in ("train.py", "data/large.bin", "notes.txt"):
        frozen.write(name, b"1\n", frozen.project)
    frozen.write("train.py", b"1\n")
    assert frozen.other(frozen.commit(), ["data/", "*.txt"]) == []


def test_a_project_below_its_repository_is_compared_alone(frozen):
    frozen.write("other/left.py", b"1\n", frozen.project)
    below = frozen.write("mine/train.py", b"1\n", frozen.project).parent
    frozen.write("train.py", b"2\n")
    assert frozen.other(frozen.commit(), project=below) == ["train.py: changed +1 -1"]


def test_ends_of_lines_that_git_writes_and_content_that_lfs_keeps_are_no_change(frozen):
    weights = b"weights" * 1000
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n"
    frozen.write("a.pt", pointer % (hashlib.sha256(weights).hexdigest().encode(), len(weights)), frozen.project)
    frozen.write("b.pt", pointer % (b"0" * 64, 1), frozen.project)
    frozen.write("train.py", b"1\n2\n", frozen.project)
    for name, content in {"a.pt": weights, "b.pt": weights, "train.py": b"1\r\n2\r\n"}.items():
        frozen.write(name, content)
    assert [line.partition(":")[0] for line in frozen.other(frozen.commit())] == ["b.pt"]


def test_a_file_that_is_too_long_is_only_named(frozen):
    frozen.write("data.bin", b"1\n" * (1 << 20), frozen.project)
    commit = frozen.commit()
    frozen.write("data.bin", b"2\n" * (1 << 20))
    assert frozen.other(commit) == ["data.bin: changed, no text, or too long to be compared by line"]


@pytest.mark.parametrize("commit", ["0" * 40, "--help", "HEAD"])
def test_a_commit_that_git_does_not_know_is_named(frozen, commit):
    frozen.write("train.py", b"1\n", frozen.project)
    frozen.commit()
    with pytest.raises(BadInput, match="git knows nothing of the commit"):
        frozen.other(commit)


def test_a_project_that_is_gone_is_named(frozen, tmp_path):
    with pytest.raises(BadInput, match="git knows nothing of the commit"):
        frozen.other("0" * 40, project=tmp_path / "gone")
