import os
import shutil
import socket
import subprocess

import pytest

from launcher.errors import BadInput
from launcher.run.code.listing import list_code, list_frozen
from launcher.run.code.names import walk
from launcher.spec.model import Code


class Project:
    def __init__(self, path):
        self.path = path
        path.mkdir()

    def write(self, name, content="x"):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    def git(self, *args, cwd=None):
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always"]
        command = ["git", *who, "-c", "init.defaultBranch=main", *args]
        subprocess.run(command, cwd=cwd or self.path, check=True, capture_output=True)

    def names(self, **code):
        return [file.path for file in list_code(self.path, Code(**code)).files]


def library(path):
    """A repository with a commit, which others may have in theirs."""
    lib = Project(path)
    lib.git("init")
    lib.write("net.py")
    lib.git("add", ".")
    lib.git("commit", "-m", "x")
    return lib


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.delenv("LAUNCH_RUNS", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path / "project")


@pytest.fixture
def repository(project):
    project.git("init")
    return project


def test_git_says_what_is_code(repository):
    for name in ("train.py", "lib/net.py", "untracked.py", "ignored.bin", "__pycache__/x.pyc", ".venv/lib/x.py"):
        repository.write(name)
    repository.write(".gitignore", "*.bin\n")
    repository.git("add", "train.py", "lib", ".gitignore")
    assert repository.names() == [".gitignore", "lib/net.py", "train.py", "untracked.py"]


def test_what_git_tracks_is_code_whatever_its_name(repository):
    repository.write("venv/tool.py")
    repository.write("node_modules/x.js")
    repository.git("add", "-f", "venv")
    assert repository.names() == ["venv/tool.py"]


def test_a_deleted_file_is_no_code(repository):
    repository.write("gone.py").unlink()
    repository.write("late.py")
    repository.git("add", "late.py")
    (repository.path / "late.py").unlink()
    repository.write("here.py")
    assert repository.names() == ["here.py"]


def test_a_tracked_file_that_became_a_folder_is_what_is_in_it(repository):
    repository.write("lib", "x")
    repository.write(".gitignore", "*.bin\n")
    repository.git("add", ".")
    (repository.path / "lib").unlink()
    repository.write("lib/net.py")
    repository.write("lib/ignored.bin")
    assert repository.names() == [".gitignore", "lib/net.py"]


def test_a_submodule_that_became_a_file_is_that_file(repository, tmp_path):
    lib = library(tmp_path / "lib")
    repository.git("submodule", "add", str(lib.path), "sub")
    shutil.rmtree(repository.path / "sub")
    repository.write("sub")
    assert repository.names() == [".gitmodules", "sub"]


def test_a_folder_of_a_repository_is_a_project(repository):
    repository.write("other/x.py")
    repository.write("mine/train.py")
    repository.write("mine/big.bin")
    repository.write(".gitignore", "*.bin\n")
    assert [file.path for file in list_code(repository.path / "mine", Code()).files] == ["train.py"]


def test_a_folder_that_its_repository_ignores_is_walked(repository):
    repository.write(".gitignore", "/jobs/\n")
    repository.write("jobs/train.py")
    assert [file.path for file in list_code(repository.path / "jobs", Code()).files] == ["train.py"]


def test_submodules_and_inner_repositories_are_descended_into(repository, tmp_path):
    lib = library(tmp_path / "lib")
    lib.write(".gitignore", "*.bin\n")
    lib.git("add", ".")
    lib.git("commit", "-m", "x")
    repository.git("submodule", "add", str(lib.path), "sub")
    repository.write("sub/ignored.bin")
    shutil.copytree(lib.path, repository.path / "inner")
    expected = [".gitmodules", "inner/.gitignore", "inner/net.py", "sub/.gitignore", "sub/net.py"]
    assert repository.names() == expected


def test_a_submodule_that_was_never_fetched_is_empty(repository, tmp_path):
    lib = library(tmp_path / "lib")
    repository.git("submodule", "add", str(lib.path), "sub")
    repository.git("submodule", "deinit", "-f", "sub")
    assert repository.names() == [".gitmodules"]


def test_variables_of_another_git_do_not_disturb(repository, tmp_path, monkeypatch):
    repository.write("train.py")
    repository.write("x.bin")
    repository.write(".gitignore", "*.bin\n")
    other = Project(tmp_path / "other")
    other.git("init")
    monkeypatch.setenv("GIT_DIR", str(other.path / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other.path / "index"))
    assert repository.names() == [".gitignore", "train.py"]


def test_without_a_repository_the_folder_is_walked(project):
    for name in (
        "train.py",
        "a/b/c.py",
        ".venv/x",
        "node_modules/x",
        "a/__pycache__/x",
        "a/x.pyc",
        ".launch/x",
        ".env",
    ):
        project.write(name)
    assert project.names() == [".env", "a/b/c.py", "train.py"]


def test_without_git_the_folder_is_walked(repository, monkeypatch, tmp_path):
    repository.write("train.py")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert repository.names() == ["train.py"]


def test_a_repository_that_git_cannot_read_is_walked(repository):
    repository.write("train.py")
    repository.write(".git/HEAD", "garbage")
    assert repository.names() == ["train.py"]


def test_include_adds_even_what_is_ignored(repository):
    repository.write(".gitignore", "data/\n*.bin\n")
    for name in ("data/vocab.txt", "data/huge.dat", "data/deep/a.json", "x.bin", "sub/y.bin"):
        repository.write(name)
    names = repository.names(include=("data/vocab.txt", "data/**/*.json", "*.bin"))
    assert names == [".gitignore", "data/deep/a.json", "data/vocab.txt", "sub/y.bin", "x.bin"]


def test_include_takes_whole_folders_and_enters_what_tools_made_only_by_name(repository):
    repository.write("node_modules/lib/a.json")
    repository.write("data/a.json")
    repository.write(".gitignore", "*.json\n")
    assert repository.names(include=("*.json",)) == [".gitignore", "data/a.json"]
    names = repository.names(include=("data", "node_modules/lib/"))
    assert names == [".gitignore", "data/a.json", "node_modules/lib/a.json"]


@pytest.mark.parametrize("pattern", ["dta/vocab.txt", "*.nope", ".git/config", ".launch/runs", "link/secret"])
def test_an_include_that_names_nothing_is_an_error(repository, tmp_path, pattern):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").touch()
    (repository.path / "link").symlink_to(tmp_path / "outside")
    repository.write(".launch/runs/x")
    with pytest.raises(BadInput, match=r"no file in .* matches"):
        repository.names(include=(pattern,))


@pytest.mark.parametrize("pattern", ["../outside", "data/../../outside"])
def test_an_include_does_not_lead_out(project, pattern):
    with pytest.raises(BadInput, match="leads out of the project"):
        project.names(include=(pattern,))


def test_exclude_removes_tracked_and_included_files(repository):
    for name in ("train.py", "docs/a.md", "docs/b/c.md", "tests/x.py", "weights.pt"):
        repository.write(name)
    repository.git("add", ".")
    assert repository.names(exclude=("docs", "*.pt"), include=("weights.pt", "tests/")) == ["tests/x.py", "train.py"]


def test_links_to_folders_are_not_entered(project):
    project.write("train.py")
    (project.path / "circle").symlink_to(project.path)
    assert project.names() == ["circle", "train.py"]
    assert project.names(exclude=("circle",)) == ["train.py"]


def test_the_runs_root_is_never_code(repository, monkeypatch):
    repository.write("train.py")
    repository.write("out/run-1/code/train.py")
    repository.write("a/.launch/x")
    monkeypatch.setenv("LAUNCH_RUNS", str(repository.path / "out"))
    assert repository.names() == ["train.py"]
    with pytest.raises(BadInput, match="no file"):
        repository.names(include=("a/.launch/x",))
    assert repository.names(include=("out/**",)) == ["train.py"]


def test_the_project_cannot_be_the_runs_root(project, monkeypatch):
    monkeypatch.setenv("LAUNCH_RUNS", str(project.path))
    with pytest.raises(BadInput, match=r"LAUNCH_RUNS: .* is the project itself"):
        project.names()


def test_sizes_and_modes(project):
    project.write("run.sh", "12345").chmod(0o755)
    project.write("train.py", "123")
    code = list_code(project.path, Code())
    assert [(file.path, file.size, file.executable) for file in code.files] == [
        ("run.sh", 5, True),
        ("train.py", 3, False),
    ]
    assert code.bytes == 8


def test_too_large_code_names_what_makes_it_large(project):
    project.write("data/deep/huge.bin", "x" * 5_000_000)
    project.write("data/small", "x")
    project.write("logs/a", "x" * 1_000_000)
    project.write("logs/b", "x" * 1_000_000)
    project.write("train.py", "x" * 10)
    with pytest.raises(BadInput) as caught:
        project.names(max_bytes=1_000_000)
    assert caught.value.lines == (
        f"code.max_size: expected at most 1.0 MB of code in {project.path}, got 7.0 MB; largest:",
        "        5.0 MB  data/deep/huge.bin",
        "        2.0 MB  logs/",
        "      10 bytes  train.py",
        "hint: leave data and outputs out with code.exclude, or raise code.max_size",
    )
    assert project.names(max_bytes=7_000_011)


def test_gitignore_is_advised_where_git_is_asked(repository):
    repository.write("data.bin", "x" * 2_000_000)
    with pytest.raises(BadInput) as caught:
        repository.names(max_bytes=1_000_000)
    assert caught.value.lines[-1] == (
        "hint: leave data and outputs out with .gitignore or code.exclude, or raise code.max_size"
    )


def test_links_are_kept_and_lead_where_they_should(project, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    project.write("lib/net.py")
    project.write("venv/left-out.py")
    links = {
        "inside": "lib/net.py",
        "lib/up": "../lib/net.py",
        "folder": "lib",
        "absolute-inside": str(project.path / "lib" / "net.py"),
        "lib/absolute-inside": str(project.path / "lib"),
        "absolute-outside": str(outside),
        "outside": "../outside",
        "lib/outside": "../../outside/x",
        "left-out": "venv/left-out.py",
        "dangling": "nowhere",
    }
    for name, target in links.items():
        (project.path / name).symlink_to(target)
    found = {file.path: file.link for file in list_code(project.path, Code()).files if file.link is not None}
    assert found == {
        **links,
        "absolute-inside": "lib/net.py",
        "lib/absolute-inside": ".",
        "outside": str(outside),
        "lib/outside": str(outside / "x"),
        "left-out": str(project.path / "venv/left-out.py"),
        "dangling": str(project.path / "nowhere"),
    }


def test_a_link_that_leaves_the_project_and_comes_back_leads_to_the_copy(project, tmp_path):
    project.write("lib/net.py")
    (project.path / "back").symlink_to("../project/lib/net.py")
    (project.path / "lib" / "back").symlink_to("../../project/lib")
    (project.path / "lib" / "roundabout").symlink_to("./../lib/net.py")
    found = {file.path: file.link for file in list_code(project.path, Code()).files if file.link is not None}
    assert found == {"back": "lib/net.py", "lib/back": ".", "lib/roundabout": "./../lib/net.py"}


def test_what_is_neither_file_nor_link_is_left_out(project, monkeypatch):
    project.write("train.py")
    os.mkfifo(project.path / "fifo")
    monkeypatch.chdir(project.path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        assert project.names() == ["train.py"]


@pytest.mark.parametrize("place", ["in git", "tracked", "no git"])
def test_names_may_be_anything(project, place):
    if place != "no git":
        project.git("init")
    names = [
        b"new\nline",
        b"qu\"o'te",
        b"sp ace",
        b"\xff\xfe",
        b"-rf",
        b"; echo foo",
        "caf\u00e9".encode(),
        b"*",
        b"\\",
        b"tab\tbed",
        b"? x",
        b"H 160000 e69de29bb2d1d6434b8b29ae775ad8c2e48c5391 0\tx",
    ]
    for name in names:
        (project.path / os.fsdecode(name)).write_text("x")
    if place == "tracked":
        project.git("add", "-A")
    assert project.names() == [os.fsdecode(name) for name in sorted(names)]


def test_more_files_than_any_code_has_is_an_error(project):
    for number in range(5):
        project.write(f"f{number}")
    with pytest.raises(BadInput, match="expected at most 3 files"):
        walk(project.path, "", lambda _: False, most_files=3)


def test_frozen_code_may_have_however_many_files(project):
    """Git's list of a project has no end: what was submitted was then refused."""
    project.write("lib/__pycache__/net.pyc")
    names = {project.write(f"f{number}").name for number in range(5)} | {"lib/__pycache__/net.pyc"}
    assert walk(project.path, "", lambda _: False, everything=True, most_files=3) == names
    assert {file.path for file in list_frozen(project.path).files} == names
