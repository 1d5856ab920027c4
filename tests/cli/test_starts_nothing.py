"""Test that commands that only look start no program but git, and git none that a repository names."""

import json
import os
import re
import subprocess
import sys

import pytest

# Whatever of a project could be taken for a program that is to be run.
EVIL = '#!/bin/sh\ntouch {canary}\nexec python3 "$@"\n'
CONFIG = """
[core]
    repositoryformatversion = 1
    fsmonitor = {evil}
    hooksPath = {hooks}
    sshCommand = {evil}
    alternateRefsCommand = {evil}
    untrackedCache = true
[diff]
    external = {evil}
[diff "any"]
    textconv = {evil}
    command = {evil}
[filter "any"]
    clean = {evil}
    smudge = {evil}
    process = {evil}
    required = true
[extensions]
    partialClone = origin
[remote "origin"]
    url = {elsewhere}
    promisor = true
    uploadpack = {evil}
[protocol "file"]
    allow = always
"""
SPEC = "name: mine\nrun:\n  module: nothing_like_it\n  python: ./python\n"


@pytest.fixture
def hostile(desk):
    """A project that was unpacked from somewhere."""
    canary = desk.root / "canary"
    evil = desk.root / "python"
    for program in (
        evil,
        desk.root / "git",
        desk.root / ".venv" / "bin" / "python",
        desk.root / "hooks" / "post-index-change",
    ):
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(EVIL.format(canary=canary))
        program.chmod(0o755)
    subprocess.run(["git", "init", "-q"], cwd=desk.root, check=True)
    subprocess.run(["git", "add", "hooks"], cwd=desk.root, check=True)
    (desk.root / ".gitattributes").write_text("* filter=any diff=any\n")
    (desk.root / "train.py").write_text("print('hello')\n")
    with (desk.root / ".git" / "config").open("a") as config:
        config.write(CONFIG.format(evil=evil, hooks=desk.root / "hooks", elsewhere=desk.root))
    (desk.root / "script.yaml").write_text(SPEC.replace("module: nothing_like_it", "script: train.py"))
    (desk.root / "module.yaml").write_text(SPEC)
    (desk.root / "venv.yaml").write_text(SPEC.replace("  python: ./python\n", ""))
    run = desk.run().succeeded()
    run.log(0, "a line\n")
    return desk


def started(desk, *words):
    """The programs that a command starts, `launch` itself left out; the environment names the project on PATH too."""
    told = desk.root.parent / f"{desk.root.name}.strace"
    env = {name: value for name, value in desk.env.items() if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    watched = ["strace", "-f", "-qq", "-e", "trace=execve,execveat", "-o", told]
    done = subprocess.run(
        [*watched, sys.executable, "-m", "launcher.cli.main", *words],
        env={**env, "PATH": f".::{os.environ['PATH']}"},
        cwd=desk.root,
        capture_output=True,
        text=True,
        timeout=150,
    )  # fmt: skip
    programs = re.findall(r'execve\("([^"]+)".* = 0$', told.read_text(), re.MULTILINE)
    assert programs[0] == sys.executable, done.stderr
    return done, {os.path.basename(program) for program in programs[1:]}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("validate", "script.yaml"), 0),
        (("validate", "module.yaml"), 0),
        (("validate", "venv.yaml"), 0),
        (("submit", "script.yaml", "--dry-run"), 0),
        (("submit", "venv.yaml", "--dry-run", "--json"), 0),
        (("status",), 0),
        (("status", "last"), 0),
        (("logs", "last"), 0),
        (("checkpoints", "last", "--verify"), 0),
    ],
)
@pytest.mark.needs("strace")
def test_only_git_is_started(hostile, words, code):
    done, programs = started(hostile, *words)
    assert done.returncode == code, done.stderr
    assert programs <= {"git"}
    assert not (hostile.root / "canary").exists()


def test_what_starts_runs_starts_nothing_that_a_repository_names(desk):
    """A run's own program is code; what looks at its repository before and after is not."""
    evil, project = desk.root / "python", desk.root / "project"
    (project / "hooks").mkdir(parents=True)
    evil.write_text(EVIL.format(canary=desk.root / "canary"))
    evil.chmod(0o755)
    (project / ".gitattributes").write_text("* filter=any diff=any\n")
    (project / "train.py").write_text("print('hello')\n")
    (project / "job.yaml").write_text("name: mine\nrun: {command: [echo, hello]}\n")
    for words in (("init", "-q"), ("add", "-A"), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all")):
        subprocess.run(["git", *words], cwd=project, check=True)
    with (project / ".git" / "config").open("a") as config:
        config.write(CONFIG.format(evil=evil, hooks=project / "hooks", elsewhere=project))
    (project / "train.py").write_text("print('olleh')\n")
    desk.launch("run", "train.py", cwd=project)
    desk.launch("submit", "job.yaml", "--follow", cwd=project)
    assert "train.py" in desk.launch("compare", "last", cwd=project).stdout
    assert not (desk.root / "canary").exists()
    subprocess.run(["git", "status"], cwd=project, check=False, capture_output=True)
    assert (desk.root / "canary").exists()


def test_the_repository_would_have_started_something(hostile):
    """What the others rest on: this configuration does run programs where it is obeyed."""
    subprocess.run(["git", "ls-files", "--others"], cwd=hostile.root, check=False, capture_output=True)
    assert (hostile.root / "canary").exists()


def test_a_module_is_looked_for_in_files(desk):
    """Where an interpreter's folders are known, a module that is in none of them is a typing error."""
    (desk.root / "job.yaml").write_text("name: a\nrun:\n  module: msgspec.tools\n")
    desk.launch("validate", "job.yaml")
    (desk.root / "job.yaml").write_text("name: a\nrun:\n  module: msgspek.tools\n")
    assert "run.module: no module named 'msgspek.tools'" in desk.launch("validate", "job.yaml", check=2).stderr
    for there in ("ssh.hosts=[gpu01]", "login.node=hpc", "run.setup=pip install msgspek"):
        desk.launch("validate", "job.yaml", "--set", there)  # nobody here knows what is there by then
    (desk.root / "lib" / "msgspek").mkdir(parents=True)
    desk.launch("validate", "job.yaml", "--set", f"env.PYTHONPATH={desk.root / 'lib'}")
    plan = desk.launch("submit", "job.yaml", "--dry-run", "--set", "run.module=json.tool", "--json").stdout
    assert json.loads(plan)["entry"]["target"] == "json.tool"
