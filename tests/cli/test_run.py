"""`launch run`: the spec that torchrun's words stand for; and one real run of it."""

import json
import re
import subprocess
import sys

import pytest

from launcher.cli.starting.script_options import flow, job_name, scalar
from launcher.spec.read import parse_spec
from tests.conftest import tagged_processes
from tests.waits import until

SCRIPT = (
    "import os, sys\nprint('got', sys.argv[1:], 'in', os.path.basename(os.getcwd()), 'of', os.environ['WORLD_SIZE'])\n"
)


@pytest.fixture
def project(desk):
    (desk.root / "pyproject.toml").write_text("[project]\nname = 'theirs'\n")
    (desk.root / "train.py").write_text(SCRIPT)
    return desk


def spec_of(project, *words, cwd=None):
    return parse_spec(project.launch("run", "--dry-run", *words, cwd=cwd).stdout, "run")


@pytest.mark.parametrize(
    ("words", "nodes", "ranks"),
    [
        ((), "1", None),
        (("--nproc", "4"), "1", 4),
        (("--nproc-per-node", "2"), "1", 2),
        (("--nproc_per_node=2", "--standalone", "--rdzv-backend=c10d", "--rdzv_endpoint", "localhost:0"), "1", 2),
        (("--nproc", "gpu", "--nnodes", "2"), "2", None),
        (("--nnodes=1:3", "--node-rank", "0", "--master_addr", "x", "--master-port=1", "-r", "3"), "1..3", None),
    ],
)
def test_the_words_of_torchrun(project, words, nodes, ranks):
    spec = spec_of(project, *words, "train.py", "--lr", "0.1")
    assert (str(spec.resources.nodes), spec.resources.ranks_per_node) == (nodes, ranks)
    assert (spec.name, spec.run.script, spec.run.args) == ("train", "train.py", ("--lr", "0.1"))


def test_a_spec_that_says_no_resources_has_as_many_ranks_as_launch_run(project):
    assert spec_of(project, "train.py").resources == parse_spec("name: train\nrun: {script: train.py}\n", "x").resources


def test_what_follows_the_script_is_the_scripts(project):
    words = ("--help", "-m", "--nproc", "x y", "", "null", "*", "'", '"', "a: b", "true", "--", "ä\n#")
    assert spec_of(project, "train.py", *words).run.args == words
    assert spec_of(project, "-m", "package.train", "-x").run.module == "package.train"
    assert spec_of(project, "--no-python", "sh", "-c", "exit 1").run.command == ("sh", "-c", "exit 1")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("run", "--lr", "0.1", "train.py"), "options of the script's come behind the script"),
        (("submit", "train.yaml", "--lr", "0.1"), "an option of the script's is set by --set run.args.lr=0.1"),
    ],
)
def test_where_options_of_the_script_belong(project, words, hint):
    said = project.launch(*words, check=2).stderr
    assert said.endswith(f"; {hint}\n")


def test_a_folder_of_the_project(project):
    (project.root / "sub").mkdir()
    (project.root / "sub" / "eval.py").write_text(SCRIPT)
    spec = spec_of(project, "./eval.py", cwd=project.root / "sub")
    assert (spec.run.workdir, spec.run.script) == ("sub", "eval.py")


def test_a_script_of_a_project_that_lies_elsewhere_is_run_as_that_project(project):
    above = project.root / "above"
    lone, nested = above / "lone", project.root / "nested"
    for folder in (lone / "scripts", above / "plain", nested):
        folder.mkdir(parents=True)
        (folder / "train.py").write_text(SCRIPT)
    (project.root / "pyproject.toml").rename(lone / "pyproject.toml")
    (project.root / "link").symlink_to(lone)
    for named in ("lone/scripts/train.py", lone / "scripts/train.py", project.root / "link/scripts/train.py"):
        spec = spec_of(project, str(named), cwd=above)
        assert (spec.run.workdir, spec.run.script) == (".", "scripts/train.py")
    assert spec_of(project, "plain/train.py", cwd=above).run.script == "plain/train.py", "no project of its own"
    done = project.launch("run", "lone/scripts/train.py", cwd=above)
    assert f"\nthe script's project is {lone}: ranks begin there\n" in done.stderr
    assert [(lone / ".launch/runs").is_dir(), (above / ".launch").exists()] == [True, False]
    until("its supervisor to leave", lambda: not any(str(lone) in tag for tag in tagged_processes().values()))
    (project.root / "pyproject.toml").touch()
    (nested / "pyproject.toml").touch()
    assert spec_of(project, "nested/train.py").run.script == "nested/train.py", "it is of the project one stands in"


def test_restarts_as_torchrun_counts_them(project):
    recovery = spec_of(project, "--max-restarts", "7", "train.py").recovery
    causes = (recovery.user_error, recovery.killed, recovery.out_of_memory, recovery.hang, recovery.communication)
    assert {(one.restarts, one.explicit) for one in causes} == {(7, True)}
    assert recovery.no_progress == 7, "else five would be the most"
    assert spec_of(project, "--max-restarts", "0", "train.py").recovery.no_progress == 5


def test_only_the_output_of_the_ranks_that_are_chosen_is_shown(project):
    (project.root / "train.py").write_text("import os\nprint('I am', os.environ['RANK'])\n")
    for option in ("--local-ranks-filter", "--local_ranks_filter"):
        done = project.launch("run", "--nproc", "3", option, "0,2", "train.py")
        assert sorted(re.findall(r"I am \d", done.stdout)) == ["I am 0", "I am 2"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nope.py",), "nope.py: no such file"),
        (("--node-rank", "1", "train.py"), "all nodes are started from here"),
        (("--nproc", "two", "train.py"), "expected a number of ranks, auto, gpu or cpu, got 'two'"),
        (("--nnodes", "0:2", "train.py"), "expected a number of nodes, or MIN:MAX, got '0'"),
        (("--set", "resources.nodes=x", "train.py"), "launch: --set resources.nodes: expected an integer"),
        (("--set", "code.exclude=[train.py]", "train.py"), "launch: run.script: no file 'train.py' among the frozen"),
        ((), "required: SCRIPT"),
    ],
)  # fmt: skip
def test_what_cannot_be_run(project, words, told):
    done = project.launch("run", *words, check=2)
    assert told in done.stderr
    assert done.stdout == ""
    assert [*project.root.glob(".launch/*.yaml")] == []


def test_a_run_without_a_spec(project):
    for words in (("init", "-q"), ("add", "train.py"), ("commit", "-qm", "first")):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=project.root, check=True)
    done = project.launch("run", "--nproc", "2", "train.py", "--lr", "0.1")
    run, *log = done.stdout.splitlines()
    assert run.startswith("train-")
    assert sorted(line.split("│")[1] for line in log) == [" got ['--lr', '0.1'] in code of 2"] * 2
    assert "\n    args: [--lr, 0.1]\n" in done.stderr
    assert sorted(path.name for path in (project.root / ".launch").iterdir()) == [".gitignore", "runs"]
    [status] = json.loads(project.launch("status", "--json").stdout)
    assert (len(status["commit"]), status["dirty"], status["args"]) == (40, False, ["--lr", "0.1"])
    venv = project.root / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    in_venv = project.launch("run", "--detach", "train.py", env={"VIRTUAL_ENV": "", "CONDA_PREFIX": ""})
    assert f"ranks run with the project's own Python: {venv}\n" in in_venv.stderr
    detached = in_venv.stdout.strip()
    assert project.launch("wait", detached).stdout == f"{detached} succeeded: all ranks have finished\n"
    until("its supervisor to leave", lambda: not any(str(project.root) in tag for tag in tagged_processes().values()))


@pytest.mark.parametrize(
    "text", ["0.1", "a", "", "null", "~", "- x", "a: b", "#", "a #b", "1e3", "'", '"', "\t", "on", "@x", "%x", "ä"]
)
def test_text_is_read_back_as_it_is(text):
    assert parse_spec(f"name: a\nrun:\n  command: {flow([text, text])}\n", "x").run.command == (text, text)
    if text:
        assert parse_spec(f"name: a\nrun: {{script: x.py}}\ndescription: {scalar(text)}\n", "x").description == text


@pytest.mark.parametrize(
    ("file", "name"),
    [("train.py", "train"), ("a/B-c.D.py", "b-c-d"), ("pkg.train", "pkg-train"), ("/bin/sh", "sh"), ("ä.py", "job")],
)
def test_a_name_for_it(file, name):
    assert job_name(file) == name
