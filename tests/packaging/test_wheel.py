"""Test the wheel, alone in a clean environment, without torch, with the versions that were tested."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import launcher
from launcher.states import VERSION
from tests.docs.blocks import DOCS, ROOT, block

CONSTRAINTS = ROOT / "tests" / "constraints.txt"
# Building and installing ask the package index, which may be slow to answer.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]


def command(*words, cwd, env=None):
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def uv():
    found = os.environ.get("UV") or shutil.which("uv")
    if found is None:
        pytest.skip("needs uv: python -m pip install uv")
    return found


@pytest.fixture(scope="module")
def wheel(uv, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command(uv, "build", "--wheel", "--out-dir", folder, ROOT, cwd=folder)
    (one,) = folder.glob("*.whl")
    return one


@pytest.fixture(scope="module")
def clean(uv, wheel, tmp_path_factory):
    """The bin folder of an environment with nothing but the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("clean") / "env"
    command(uv, "venv", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    command(uv, "pip", "install", "--python", python, "--constraints", CONSTRAINTS, wheel, cwd=folder.parent)
    return folder / "bin"


@pytest.fixture
def launch(clean, tmp_path):
    """The installed command, as a user with an empty home runs it in an empty project."""
    env = {"PATH": f"{clean}:{os.environ['PATH']}", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")

    def run(*words):
        return command(clean / "launch", *words, cwd=project, env=env)

    return run


@pytest.mark.daily
def test_the_wheel_carries_the_templates_and_the_jobs(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("templates", "jobs"):
        shipped = [path.name for path in (ROOT / folder).iterdir() if path.is_file()]
        assert shipped
        assert {f"launcher/shipped_files/{folder}/{name}" for name in shipped} <= names


def test_the_wheel_carries_the_whole_page_of_the_board(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    page = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "launcher/apps/board/page").rglob("*") if path.is_file()
    }
    assert "launcher/apps/board/page/index.html" in page
    assert page <= names


def test_the_wheel_carries_nothing_that_is_not_the_users(wheel):
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"launcher", "trainer"}


@pytest.mark.daily
def test_the_wheel_carries_all_of_the_trainer(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "trainer").rglob("*.py")}
    assert modules
    assert modules - names == set()


def test_the_wheel_carries_the_versions_that_were_tested(wheel):
    carried = zipfile.ZipFile(wheel).read("launcher/shipped_files/constraints.txt")
    assert carried == CONSTRAINTS.read_bytes()
    lines = carried.decode().splitlines()
    assert len(lines) > 30
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9._-]*==[0-9][0-9a-z.]*", line) for line in lines)


def test_all_that_it_may_ask_for_is_had_in_the_versions_that_were_tested(uv, tmp_path):
    """Resolved without an install: torch alone is gigabytes."""
    words = ("--all-extras", "--constraints", CONSTRAINTS, "--no-header", "--no-annotate", "--quiet")
    resolved = command(uv, "pip", "compile", ROOT / "pyproject.toml", *words, cwd=tmp_path).split()
    assert {line.partition("==")[0] for line in resolved} >= {"msgspec", "paramiko", "submitit", "torch", "tensorboard"}
    assert set(resolved) <= set(CONSTRAINTS.read_text().split())


@pytest.mark.daily
def test_torch_is_not_there(clean):
    found = command(
        clean / "python",
        "-c",
        "import importlib.util as u; print(u.find_spec('torch'), u.find_spec('torchvision'))",
        cwd=clean,
    )
    assert found == "None None\n"


@pytest.mark.daily
def test_the_commands_work_without_torch(launch):
    assert "usage: launch COMMAND" in launch("--help")
    launch("init")
    launch("validate", "job.yaml")
    plan = json.loads(launch("submit", "job.yaml", "--dry-run", "--json"))
    assert plan["entry"]["target"] == "train.py"
    assert "train.py" in launch("submit", "job.yaml", "--dry-run")
    assert json.loads(launch("status", "--json")) == []
    assert launch("help", "install").startswith("Install and upgrade\n")
    assert launch("help", "trainer").startswith("The trainer\n")


@pytest.mark.daily
def test_a_job_runs_without_torch(launch):
    launch("init")
    log = launch("submit", "job.yaml", "--follow", "--set", "resources.ranks_per_node=2")
    assert "rank 0 of 2" in log
    assert "rank 1 of 2" in log
    (run,) = json.loads(launch("status", "--json"))
    assert run["state"] == "succeeded"
    assert json.loads(launch("checkpoints", "last", "--json")) == []
    assert "checkpoint  none\n" in launch("status", "last")


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A repository of its own with what a package is built from."""
    folder = tmp_path_factory.mktemp("clone") / "launch"
    names = (
        "launcher",
        "trainer",
        "jobs",
        "templates",
        "tests/constraints.txt",
        "pyproject.toml",
        "README.md",
        "LICENSE",
    )
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, folder / name)
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "all")):
        command(*git, *words, cwd=folder)
    return folder


@pytest.fixture
def newcomer(uv, tmp_path):
    """The environment of a user who has uv and nothing else."""
    env = {
        **os.environ, "HOME": str(tmp_path), "UV_TOOL_DIR": str(tmp_path / "tools"),
        "UV_TOOL_BIN_DIR": str(tmp_path / "bin"), "TERM": "dumb",
        "PATH": f"{tmp_path / 'bin'}:{Path(uv).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    return {name: value for name, value in env.items() if name not in ("VIRTUAL_ENV", "XDG_STATE_HOME")}


def test_the_ways_to_install_that_the_page_names(clone, newcomer, tmp_path):
    """Each in order, from a clone and from a repository's address, with the output that is shown."""
    (tmp_path / "launch").symlink_to(clone)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'theirs'\nversion = '1'\nrequires-python = '>=3.11'\n")
    shown = block(DOCS / "install.md", "console", "uv tool install").split("$ ")[1:]
    for part in shown:
        line, *wanted = part.strip().splitlines()
        said = command("sh", "-c", line.replace("git+URL", f"git+file://{clone}"), cwd=tmp_path, env=newcomer)
        assert said.splitlines()[: len(wanted)] == wanted, line
    imported = "import launcher, trainer.errors; print(launcher.__version__)"
    python = tmp_path / ".venv" / "bin" / "python"
    assert command(python, "-c", imported, cwd=tmp_path, env=newcomer).strip() == wanted[0].split()[1]


def test_a_first_job_of_ones_own_takes_less_than_three_minutes(clone, newcomer, lab):
    """By the words of the page, from nothing but uv and an environment that has torch; a stopwatch runs, of which on a
    crowded machine the share counts that is left for one."""
    page = DOCS / "ten-minutes.md"
    env = {**newcomer, "VIRTUAL_ENV": sys.prefix}
    began, said = time.monotonic(), {}

    def follow(word):
        for line in block(page, "console", word).splitlines():
            words = line.removeprefix("$ ").replace("git+URL", f"git+file://{clone}")
            said[words] = command("sh", "-c", words, cwd=lab.project, env=env)

    follow("uv tool install")
    (lab.project / "train.py").write_text(block(page, "python", "argparse"))
    follow("launch run")
    took = time.monotonic() - began
    assert "step 100  loss 0.0" in said["launch run --nproc 2 train.py --steps 100"]
    crowd = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert took / crowd < 180, f"{took:.0f} s, in a crowd of {crowd:.1f}"
    follow("launch spec init")
    assert "step 200  loss 0.0" in said["launch submit train.yaml --follow"]
    assert [line.split()[1] for line in said["launch status"].splitlines()] == ["STATE", "succeeded", "succeeded"]
    follow("resources.nodes=2")
    assert {line.split()[1] for line in said["launch logs last -n 4"].splitlines()} <= {"0:0", "0:1", "1:2", "1:3"}


HINT = "from trainer.extras import install_hint; print(install_hint('board').removeprefix('hint: '))"


def followed(python, env, cwd, *more):
    """Return the command of the installed copy's hint, and the result of running it."""
    line = command(python, "-c", HINT, cwd=cwd, env=env).strip()
    return line, command("sh", "-c", shlex.join([*shlex.split(line), *more]), cwd=cwd, env=env)


def test_the_hint_for_an_extra_works_where_the_wheel_is_installed(clean, newcomer, tmp_path):
    line, _ = followed(clean / "python", newcomer, tmp_path, "--dry-run")
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["board"]
    python, *packages = shlex.split(line.removeprefix("uv pip install --python "))
    assert (python, {*map(Requirement, packages)}) == (str(clean / "python"), {*map(Requirement, wanted)})


def test_the_hint_for_an_extra_works_in_the_environment_of_a_checkout(clone, newcomer, tmp_path):
    command("uv", "sync", "--project", clone, "--no-default-groups", "--quiet", cwd=tmp_path, env=newcomer)
    python = clone / ".venv" / "bin" / "python"
    line, _ = followed(python, newcomer, tmp_path, "--quiet")
    assert line == f"uv sync --project {clone} --inexact --no-default-groups --extra board"
    command(python, "-c", "import starlette, uvicorn", cwd=tmp_path, env=newcomer)


def test_the_hint_for_an_extra_works_where_uv_has_installed_a_tool(clone, newcomer, tmp_path):
    command("uv", "tool", "install", "--quiet", f"{clone}[plot]", cwd=tmp_path, env=newcomer)
    python = tmp_path / "tools" / "launch-anywhere" / "bin" / "python"
    line, _ = followed(python, newcomer, tmp_path, "--quiet")
    assert line == f"uv tool install 'launch-anywhere[plot,board] @ {clone.as_uri()}'"
    command(python, "-c", "import starlette, uvicorn, matplotlib", cwd=tmp_path, env=newcomer)


def test_one_version_everywhere(wheel):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    newest = re.search(r"^## (\S+)", (ROOT / "launcher" / "docs" / "changelog.md").read_text(), re.MULTILINE)
    assert wheel.name.startswith(f"launch_anywhere-{VERSION}-")
    assert project["dynamic"] == ["version"]
    assert newest[1] == launcher.__version__ == VERSION
