"""What a user gets: the wheel, alone in a clean environment, without torch."""

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Building and installing ask the package index, which may be slow to answer.
pytestmark = pytest.mark.timeout(300)


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
    command(uv, "pip", "install", "--python", folder / "bin" / "python", wheel, cwd=folder.parent)
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


def test_the_wheel_carries_the_templates_and_the_jobs(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("templates", "jobs"):
        shipped = [path.name for path in (ROOT / folder).iterdir() if path.is_file()]
        assert shipped
        assert {f"launcher/shipped_files/{folder}/{name}" for name in shipped} <= names


def test_the_wheel_carries_nothing_that_is_not_the_users(wheel):
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"launcher", "trainer"}


def test_the_wheel_carries_all_of_the_trainer(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "trainer").rglob("*.py")}
    assert modules
    assert modules - names == set()


def test_torch_is_not_there(clean):
    found = command(
        clean / "python",
        "-c",
        "import importlib.util as u; print(u.find_spec('torch'), u.find_spec('torchvision'))",
        cwd=clean,
    )
    assert found == "None None\n"


def test_the_commands_work_without_torch(launch):
    assert "usage: launch COMMAND" in launch("--help")
    launch("init")
    launch("validate", "job.yaml")
    plan = json.loads(launch("submit", "job.yaml", "--dry-run", "--json"))
    assert plan["entry"]["target"] == "train.py"
    assert "train.py" in launch("submit", "job.yaml", "--dry-run")
    assert json.loads(launch("status", "--json")) == []


def test_a_job_runs_without_torch(launch):
    launch("init")
    log = launch("submit", "job.yaml", "--follow", "--set", "resources.ranks_per_node=2")
    assert "rank 0 of 2" in log
    assert "rank 1 of 2" in log
    (run,) = json.loads(launch("status", "--json"))
    assert run["state"] == "succeeded"
    assert json.loads(launch("checkpoints", "last", "--json")) == []
    assert "checkpoint  none yet" in launch("status", "last")
