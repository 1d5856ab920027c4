"""Which Python runs ranks, and what it has, from files alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.plan.interpreter import (
    install_command,
    interpreter,
    is_too_old,
    lacking,
    may_import,
    packages_of,
    version_of,
)
from launcher.spec.model import JobSpec, RunOptions


def chosen(project, python=None, **environ):
    return interpreter(JobSpec("a", RunOptions(script="t.py", python=python)), project, environ)


def program(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_a_path_begins_at_the_project_wherever_one_stands(tmp_path, monkeypatch):
    own = program(tmp_path / "project" / ".venv" / "bin" / "python")
    for here in (tmp_path, tmp_path / "project"):
        monkeypatch.chdir(here)
        assert chosen(tmp_path / "project", ".venv/bin/python") == own


def test_a_name_is_looked_for_on_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert chosen(tmp_path, "python9") == str(tmp_path / "python9")
    assert chosen(tmp_path, "python9") == str(tmp_path / "python9")
    there = program(tmp_path / "bin" / "python9")
    assert chosen(tmp_path, "python9") == there


def test_what_is_usual(tmp_path):
    assert chosen(tmp_path) == sys.executable
    own = program(tmp_path / ".venv" / "bin" / "python")
    assert chosen(tmp_path) == own
    active = program(tmp_path / "active" / "bin" / "python")
    assert chosen(tmp_path, VIRTUAL_ENV=str(tmp_path / "active")) == active


@pytest.mark.parametrize("module", ["os", "sys", "json.tool", "msgspec", "launcher.cli.main", "torch.distributed.run"])
def test_our_own_interpreter_has_what_it_imports(module):
    assert may_import(module, sys.executable, {})


def test_a_module_that_nobody_has():
    assert not may_import("nothing_like_it", sys.executable, {})


def test_a_virtual_environment_that_is_closed(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    site = next((tmp_path / "venv").glob("lib/python3*/site-packages"))
    assert not may_import("thing", python, {})
    assert may_import("asyncio.tasks", python, {})
    (site / "added.pth").write_text(f"# a comment\nimport _virtualenv\n{tmp_path / 'elsewhere'}\n")
    assert not may_import("thing", python, {})
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "thing.py").write_text("")
    assert may_import("thing", python, {})
    (site / "__editable___other_1_0_finder.py").write_text("MAPPING = {'other': '/src/other'}\n")
    assert may_import("other.part", python, {})
    (tmp_path / "named" / "third").mkdir(parents=True)
    assert not may_import("third", python, {})
    assert may_import("third", python, {"PYTHONPATH": f"/nowhere:{tmp_path / 'named'}"})


def test_a_home_that_the_environment_names_is_looked_into(tmp_path):
    python, site = closed(tmp_path / "venv")
    packages = tmp_path / "home" / "lib" / site.parent.name / "site-packages"
    (packages / "thing").mkdir(parents=True)
    assert not may_import("thing", python, {})
    assert may_import("thing", python, {"PYTHONHOME": f"{tmp_path}:{tmp_path / 'home'}"})


def closed(folder):
    """The interpreter of a virtual environment that is closed, and its site-packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return str(folder / "bin" / "python"), next(folder.glob("lib/python3*/site-packages"))


@pytest.mark.parametrize(
    "text",
    [
        "import site; site.addsitedir('/elsewhere')",  # the overlay of `uv run --with`
        "import _thing_editable",  # scikit-build-core
        "import\t_thing_editable_loader",  # meson-python
        "# long\n" * 20_000,
        "archive.zip  ",
    ],
)
def test_what_code_or_an_archive_brings_is_not_known(text, tmp_path):
    python, site = closed(tmp_path / "venv")
    (site / "archive.zip").write_bytes(b"PK")
    assert not may_import("thing", python, {})
    (site / "added.pth").write_text(text)
    assert may_import("thing", python, {})


@pytest.mark.parametrize("name", ["sitecustomize", "usercustomize"])
def test_what_the_site_s_own_code_brings_is_not_known(name, tmp_path):
    python, site = closed(tmp_path / "venv")
    (site / f"{name}.py").write_text("try:\n    import apport_python_hook\nexcept ImportError:\n    pass\n")
    assert not may_import("thing", python, {})
    (site / f"{name}.py").write_text("import sys; sys.path.append('/elsewhere')\n")
    assert may_import("thing", python, {})


def test_lines_of_paths_are_read_as_python_reads_them(tmp_path):
    python, site = closed(tmp_path / "venv")
    for folder, module in (("imported", "one"), ("padded", "two")):
        (site / folder).mkdir()
        (site / folder / f"{module}.py").write_text("")
    (site / "added.pth").write_text("imported\npadded  \n")
    assert may_import("one", python, {}) and may_import("two", python, {})
    assert not may_import("three", python, {})


def test_packages_of_the_user_are_where_the_environment_says(tmp_path):
    python, site = closed(tmp_path / "venv")
    (tmp_path / "venv" / "pyvenv.cfg").write_text("include-system-site-packages = true\n")
    user = tmp_path / "user" / "lib" / site.parent.name / "site-packages"
    (user / "thing").mkdir(parents=True)
    assert may_import("thing", python, {"PYTHONUSERBASE": str(tmp_path / "user")})


def test_of_a_wrapper_nothing_is_known(tmp_path):
    assert may_import("anything", program(tmp_path / "shims" / "python"), {})
    assert may_import("anything", str(tmp_path / "none"), {})


@pytest.mark.timeout(120)
def test_files_that_are_none_are_not_waited_for(tmp_path):
    python = program(tmp_path / "venv" / "bin" / "python")
    os.mkfifo(tmp_path / "venv" / "pyvenv.cfg")
    site = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (site.parent / "os.py").write_text("")
    os.mkfifo(site / "a.pth")
    assert not may_import("thing", python, {})
    assert Path(python).exists()


def test_packages_and_version_are_read_from_an_environment(tmp_path):
    python = program(tmp_path / "bin" / "python")
    site = tmp_path / "lib" / "python3.12" / "site-packages"
    for name in ("torch-2.15.0+cpu.dist-info", "Flask_Login-0.6.dist-info", "old.one-1.0-py3.12.egg-info", "torch"):
        (site / name).mkdir(parents=True)
    (tmp_path / "pyvenv.cfg").write_text(
        "home = /usr/bin\nversion_info = 3.12.4\ninclude-system-site-packages = false\n"
    )
    assert packages_of(python, {}) == {"flask-login": "0.6", "old-one": "1.0", "torch": "2.15.0+cpu"}
    (tmp_path / "shared" / "numpy-2.4.0.dist-info").mkdir(parents=True)
    (site / "shared.pth").write_text(f"{tmp_path / 'shared'}\n")
    assert packages_of(python, {})["numpy"] == "2.4.0"
    assert version_of(python) == "3.12.4"
    (tmp_path / "pyvenv.cfg").unlink()
    (site.parent / "os.py").touch()
    assert version_of(python) == "3.12"


def test_the_command_that_gives_an_interpreter_a_package_is_one_that_works_there(tmp_path):
    python, site = closed(tmp_path / "venv")
    assert install_command("torch", python) == f"uv pip install --python {python} torch"
    (site / "pip").mkdir()
    assert install_command("torch", python) == f"{python} -m pip install torch"
    (tmp_path / "venv" / "uv-receipt.toml").touch()  # launch's own, as `uv tool install` makes it
    assert install_command("torch", python) == "python3 -m venv .venv && .venv/bin/python -m pip install torch"


def test_of_several_modules_those_that_are_surely_missing(tmp_path):
    python, site = closed(tmp_path / "venv")
    (site / "thing").mkdir()
    assert lacking(["thing.part", "os.path", "other.part", "third"], python, {}) == {"other.part", "third"}
    assert lacking(["other"], python, {"PYTHONPATH": "lib"}) == set()  # from where ranks are


@pytest.mark.parametrize(
    ("version", "old"), [("3.8.10", True), ("3.8", True), ("3.9", False), ("3.14.0", False), ("", False), ("3", False)]
)
def test_an_interpreter_that_is_too_old(version, old):
    assert is_too_old(version) is old
