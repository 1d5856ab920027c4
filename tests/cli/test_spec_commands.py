"""validate, schema, init and dry runs: what starts nothing."""

import json
import os
import re
import subprocess
import sys

import pytest

GOOD = "name: mine\nrun:\n  script: train.py\n"
BAD = "name: mine\nrun:\n  scrpt: train.py\nresources:\n  nodes: two\n"


@pytest.fixture
def project(desk):
    (desk.root / "pyproject.toml").write_text("[project]\nname = 'theirs'\n")
    (desk.root / "train.py").write_text("print('hello')\n")
    (desk.root / "good.yaml").write_text(GOOD)
    (desk.root / "bad.yaml").write_text(BAD)
    return desk


def entries(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_validate_shows_all_problems_of_all_files(project):
    done = project.launch("validate", "bad.yaml", "good.yaml", "none.yaml", check=2)
    assert done.stdout == "good.yaml: ok\n"
    assert "bad.yaml:3:3: " in done.stderr
    assert "bad.yaml:5:10: " in done.stderr
    assert "none.yaml" in done.stderr
    assert project.launch("validate", "good.yaml").returncode == 0


def test_validate_with_an_override(project):
    project.launch("validate", "good.yaml", "--set", "resources.nodes=2")
    assert "resources.nodes" in project.launch("validate", "good.yaml", "--set", "resources.nodes=two", check=2).stderr


def test_problems_begin_with_their_place(project):
    done = project.launch("submit", "bad.yaml", check=2)
    assert done.stderr.startswith("bad.yaml:")
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("grid: {run.args.lr: [1, 2]}", ["sweep.grid: a way to search, and not an option"]),
        (
            "space: {run.args.lr: [1]}, metric: loss, mode: min",
            ["sweep.trials: missing: search is tpe by default, which has no end of its own"],
        ),
    ],
)
def test_a_mistake_in_a_sweep_is_one_problem(project, written, said):
    (project.root / "sweep.yaml").write_text(f"{GOOD}sweep: {{{written}}}\n")
    lines = project.launch("validate", "sweep.yaml", check=2).stderr.splitlines()
    assert [line.partition(": ")[2] for line in lines if not line.startswith("hint: ")] == said


@pytest.mark.parametrize("command", [("validate",), ("submit", "--dry-run")])
def test_a_misspelt_argument_of_a_script_is_told(project, command):
    (project.root / "train.py").write_text(OPTIONS)
    given = ("--set", "run.args={batch-sizes: 3, amp: true, siz: [1], unheard-of: 1}")
    said = project.launch(*command, "good.yaml", *given).stderr
    assert "run.args: train.py has no option --batch-sizes\nhint: did you mean --batch-size?\n" in said
    assert said.count("has no option") == 1


@pytest.mark.parametrize(
    ("word", "said", "hint"),
    [
        ("bestt", "neither a verb of `launch sweep` nor a file", "did you mean `launch sweep best`?"),
        ("list", "neither a verb of `launch sweep` nor a file", "did you mean `launch sweep status`?"),
        ("zzz", "neither a verb", "verbs are status, best, stop, resume, add, extend, plot"),
        ("none.yaml", "no such file", "expected the YAML file of a job with `sweep:`"),
    ],
)
def test_a_word_that_is_no_verb_of_sweep_names_the_verbs(project, word, said, hint):
    told = project.launch("sweep", word, check=2).stderr
    assert f"launch: {word}: {said}" in told
    assert f"hint: {hint}" in told


def test_schema_is_json(desk):
    assert json.loads(desk.launch("schema").stdout)["type"] == "object"


@pytest.mark.parametrize("template", ["minimal", "ddp", "slurm", "gridengine", "pbs", "lsf", "k8s", "ssh"])
def test_init_writes_a_spec_that_is_valid_and_names_its_schema(desk, template):
    assert desk.launch("init", template, "--output", "new.yaml").stdout == "new.yaml\n"
    text = (desk.root / "new.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=.launch/job.schema.json\n")
    assert json.loads((desk.root / ".launch" / "job.schema.json").read_text())["type"] == "object"
    missing = desk.launch("validate", "new.yaml", check=2)
    assert re.search(r"^new.yaml:\d+:11: run.script: no file 'train.py'", missing.stderr)
    (desk.root / "train.py").write_text("")
    desk.launch("validate", "new.yaml")


@pytest.mark.parametrize("words", [(), ("ddp",), ("--from", "train.py")])
def test_init_prints_a_spec_and_writes_nothing(project, words):
    before = entries(project.root)
    text = project.launch("init", *words, "-o", "-").stdout
    assert entries(project.root) == before
    (project.root / "printed.yaml").write_text(text)
    project.launch("validate", "printed.yaml")


def test_init_writes_over_nothing(desk):
    (desk.root / "job.yaml").write_text("precious")
    done = desk.launch("init", check=2)
    assert "job.yaml exists already" in done.stderr
    assert (desk.root / "job.yaml").read_text() == "precious"
    assert entries(desk.root) == ["job.yaml"]


@pytest.mark.parametrize("there", ["a file", "a folder in its place", "a link"])
def test_init_that_cannot_write_all_writes_nothing(desk, there):
    """Half of it was in the way of the next."""
    blocked = desk.root / ".launch"
    if there == "a file":
        blocked.touch()
    elif there == "a link":
        blocked.symlink_to("nowhere/at/all")
    else:
        blocked.mkdir()
        (blocked / "job.schema.json").mkdir()
    before = entries(desk.root)
    done = desk.launch("init", check=4)
    assert done.stderr.startswith("launch: cannot write .launch/job.schema.json: ")
    assert (done.stdout, entries(desk.root)) == ("", before)
    blocked.rename(desk.root / "away")
    desk.launch("init")


def test_init_leaves_only_the_spec_for_git_to_see(desk):
    """In a folder below the project's too, whatever the project ignores."""
    subprocess.run(["git", "init", "-q"], cwd=desk.root, check=True)
    folder = desk.root / "experiments"
    folder.mkdir()
    desk.launch("init", cwd=folder)
    assert (folder / ".launch" / "job.schema.json").is_file()
    said = subprocess.run(
        ["git", "status", "--short", "-uall"], cwd=desk.root, capture_output=True, text=True, check=True
    )
    assert said.stdout == "?? experiments/job.yaml\n"


@pytest.mark.parametrize("command", ["validate", "submit"])
def test_a_spec_of_no_name_is_nothing(desk, command):
    done = desk.launch(command, "", check=2)
    assert done.stderr.removeprefix("launch: ").startswith("expected the file of a spec, got nothing\nhint: ")


def test_init_into_a_folder(desk):
    (desk.root / "there").mkdir()
    assert desk.launch("init", "-o", "there").stdout == "there/job.yaml\n"
    assert "there/job.yaml exists already" in desk.launch("init", "-o", "there/", check=2).stderr
    assert "cannot write nowhere/job.yaml" in desk.launch("init", "-o", "nowhere/", check=2).stderr
    (desk.root / "link").symlink_to("nowhere/job.yaml")
    assert "link is a link that leads nowhere" in desk.launch("init", "-o", "link", check=2).stderr
    assert not (desk.root / "nowhere").exists()


def test_init_of_what_there_is_not(desk):
    assert "hint: did you mean minimal?" in desk.launch("init", "minimum", check=2).stderr
    assert "cannot write nowhere/job.yaml" in desk.launch("init", "--output", "nowhere/job.yaml", check=2).stderr
    assert entries(desk.root) == []


def test_init_list(desk):
    names = [line.split()[0] for line in desk.launch("init", "--list").stdout.splitlines()]
    assert {"minimal", "ddp", "slurm", "ssh"} <= set(names)
    assert entries(desk.root) == []


def test_a_dry_run_shows_everything_and_does_nothing(project):
    (project.root / "good.yaml").write_text(
        GOOD + "resources:\n  nodes: 2\n  ranks_per_node: 3\nenv:\n  ANSWER: '42'\nsecrets: [TOKEN]\n"
    )
    before = entries(project.root)
    done = project.launch("submit", "good.yaml", "--dry-run", env={"TOKEN": "canary-1234"})
    for text in ("mine would run on local", "train.py", "node 1", "127.0.0.2", "3 ranks", "ANSWER", "42", "TOKEN",
                 "files", str(project.root / ".launch" / "runs"), "for example: the end of its name"):  # fmt: skip
        assert text in done.stdout
    assert "canary" not in done.stdout + done.stderr
    assert entries(project.root) == before


def test_a_dry_run_as_json(project):
    plan = json.loads(project.launch("submit", "good.yaml", "--dry-run", "--json", "--set", "resources.nodes=3").stdout)
    assert (plan["name"], plan["nodes_max"], plan["overrides"]) == ("mine", 3, ["resources.nodes=3"])
    assert {"path": "train.py", "size": 15} in plan["files"]


def test_a_file_whose_name_is_not_utf8(project):
    with open(os.path.join(os.fsencode(project.root), b"odd\xff.py"), "wb") as file:
        file.write(b"x" * 5000)
    assert "odd" in project.launch("submit", "good.yaml", "--dry-run").stdout
    plan = json.loads(project.launch("submit", "good.yaml", "--dry-run", "--json").stdout)
    assert any(entry["path"].startswith("odd") for entry in plan["files"])


@pytest.mark.parametrize(("python", "mode", "told"), [
    (".venv/bin/python", None, "no interpreter at {root}/.venv/bin/python"),
    ("python9.99", None, "no interpreter at {root}/python9.99"),
    ("./python", 0o600, "{root}/python is no program that can be run"),
    (".", None, "no interpreter at {root}"),
])  # fmt: skip
def test_an_interpreter_that_cannot_be_run_is_told_before_anything_starts(project, python, mode, told):
    (project.root / "good.yaml").write_text(GOOD + f"  python: {python}\n")
    if mode is not None:
        (project.root / python).write_text("#!/bin/sh\n")
        (project.root / python).chmod(mode)
    before = entries(project.root)
    done = project.launch("submit", "good.yaml", check=2)
    assert done.stderr.startswith(f"good.yaml:4:11: run.python: {told.format(root=project.root)}\nhint: ")
    assert entries(project.root) == before


OPTIONS = """
import argparse, os
raise SystemExit('was run')
def parse(parser):
    parser.add_argument("data")
    parser.add_argument("-b", "--batch-size", type=int, default=32, help="of each\\n   rank")
    parser.add_argument("--lr", default=1e-3)
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--name", default="yes", help=f"not {1}")
    parser.add_argument("--sizes", nargs="*", default=[1, 2])
    parser.add_argument("--resume", default=None, help="a file")
    parser.add_argument("--root", default=os.environ["HOME"])
    parser.add_argument("--out", required=True)
    parser.add_argument("-v", action="count")
    parser.add_argument("--version", action="version")
"""


IMPORTS = """import os
import helper
import tqdm_of_nobody
from sklearn_of_nobody.linear_model import LinearRegression
try:
    import guarded_of_nobody
except ImportError:
    pass
"""


@pytest.fixture
def venv(project):
    """The project's own environment, without packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", project.root / ".venv"], check=True)
    (project.root / "train.py").write_text(IMPORTS)
    (project.root / "helper.py").write_text("import yaml\n")
    (project.root / "good.yaml").write_text(f"{GOOD}  python: .venv/bin/python\n")
    return project.root / ".venv"


def test_modules_that_the_interpreter_of_the_ranks_does_not_have_are_told_before_anything_starts(project, venv):
    (project.root / "uv.lock").touch()
    done = project.launch("submit", "good.yaml", check=2)
    assert done.stderr.splitlines() == [
        "good.yaml:3:11: run.script: helper.py:1: no module yaml in .venv",
        "hint: uv add pyyaml",
        "good.yaml:3:11: run.script: train.py:3: no module tqdm_of_nobody in .venv",
        "hint: uv add tqdm_of_nobody",
        "good.yaml:3:11: run.script: train.py:4: no module sklearn_of_nobody in .venv",
        "hint: uv add sklearn_of_nobody",
    ]
    assert not (project.root / "runs").exists() or not os.listdir(project.root / "runs")


def test_validate_only_warns_of_them_for_the_spec_may_run_elsewhere(project, venv):
    done = project.launch("validate", "good.yaml")
    assert done.stdout == "good.yaml: ok\n"
    assert done.stderr.splitlines()[:2] == [
        "warning: good.yaml: helper.py:1: no module yaml in .venv",
        f"hint: uv pip install --python {venv}/bin/python pyyaml",
    ]
    assert project.launch("validate", "good.yaml", "--set", "ssh.hosts=[far]").stderr == ""


@pytest.mark.parametrize("there", ["tqdm_of_nobody.py", "tqdm_of_nobody/data.txt"])
def test_what_lies_in_the_project_or_its_setup_may_install_is_not_missed(project, venv, there):
    (project.root / "train.py").write_text("import tqdm_of_nobody\n")
    assert "tqdm_of_nobody" in project.launch("submit", "good.yaml", "--dry-run", check=2).stderr
    project.launch("submit", "good.yaml", "--dry-run", "--set", "run.setup=make environment")
    (project.root / there).parent.mkdir(exist_ok=True)
    (project.root / there).touch()
    project.launch("submit", "good.yaml", "--dry-run")
    project.launch("submit", "good.yaml", "--dry-run", "--set", f"code.exclude=[{there}]")


def test_an_interpreter_that_is_too_old_is_told_before_anything_starts(project, venv):
    (project.root / "train.py").write_text("")
    (venv / "pyvenv.cfg").write_text("include-system-site-packages = false\nversion = 3.8.10\n")
    done = project.launch("submit", "good.yaml", check=2)
    assert f"run.python: {venv}/bin/python is Python 3.8.10: ranks need 3.9 or newer" in done.stderr
    project.launch("submit", "good.yaml", "--dry-run", "--set", "run={command: [true]}", "--set", "run.script=null")


def test_more_ranks_than_cores_are_no_mistake_and_worth_a_word(project):
    done = project.launch("submit", "good.yaml", "--dry-run", "--set", "resources.ranks_per_node=999")
    assert re.search(r"^warning: 999 ranks take turns on the \d+ cores of this machine$", done.stderr, re.MULTILINE)


def test_where_ranks_are_that_divide_layers(project):
    divided = ("--set", "run.args.mesh=tp=2", "--set", "resources.nodes=2", "--set")
    done = project.launch("submit", "good.yaml", "--dry-run", *divided, "resources.ranks_per_node=4")
    assert re.search(
        r"^  mesh +local ranks 0-1, 2-3 divide each layer \(tp 2\), on one node", done.stdout, re.MULTILINE
    )
    done = project.launch("submit", "good.yaml", "--dry-run", *divided, "resources.ranks_per_node=1")
    said = "tp=2 crosses nodes of 1 rank: every layer waits for the network"
    assert re.search(f"^  mesh +{said}", done.stdout, re.MULTILINE) and f"warning: {said}" in done.stderr


def test_which_ranks_have_which_stage(project):
    mesh = ("--set", "run.args.mesh=pp=2,tp=2", "--set", "resources.nodes=2", "--set", "resources.ranks_per_node=4")
    shown = project.launch("submit", "good.yaml", "--dry-run", *mesh).stdout
    assert re.search(
        r"^  stages +ranks 0-3 have the first of 2 stages of layers \(pp 2\), 4-7 the", shown, re.MULTILINE
    )
    assert re.search(r"^  mesh +local ranks 0-1, 2-3 divide each layer", shown, re.MULTILINE)


def test_init_from_a_script(project):
    (project.root / "opts.py").write_text(OPTIONS)
    assert project.launch("init", "--from", "opts.py").stdout == "job.yaml\n"
    lines = (project.root / "job.yaml").read_text().splitlines()
    assert lines[2:] == [
        "name: opts", "", "run:", "  script: opts.py", "  args:", "    batch-size: 32  # of each rank", "    lr: 0.001",
        "    amp: false", '    name: "yes"', "    sizes: [1, 2]", "    #resume:  # a file", "    #root:",
        "    out: FILL_IN", "  # it takes data too: args as a list, [--key, value, ...], can hold that",
    ]  # fmt: skip
    plan = json.loads(project.launch("submit", "job.yaml", "--dry-run", "--json").stdout)
    assert plan["entry"]["args"] == [
        "--batch-size",
        "32",
        "--lr",
        "0.001",
        "--name",
        "yes",
        "--sizes",
        "1",
        "2",
        "--out",
        "FILL_IN",
    ]


def test_init_from_a_script_without_options_and_from_none(project):
    project.launch("init", "--from", "train.py")
    assert (project.root / "job.yaml").read_text().endswith("name: train\n\nrun:\n  script: train.py\n")
    project.launch("validate", "job.yaml")
    (project.root / "torn.py").write_text("a = (\n")
    assert "torn.py:1:1: " in project.launch("init", "--from", "torn.py", "-o", "x.yaml", check=2).stderr
    assert "none.py: no such file" in project.launch("init", "--from", "none.py", "-o", "x.yaml", check=2).stderr
    assert not (project.root / "x.yaml").exists()


ARGUMENT = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument"


def test_a_name_of_an_option_writes_nothing_else_into_a_spec(project):
    """A script that somebody else wrote had `run.command` in the spec that was made of it."""
    script = (
        ARGUMENT
        + """("--a\\nrun: {command: evil}", default=1)\nparser.add_argument("--b", default=1, help="\\x1b[2Jx")\n"""
    )
    (project.root / "lies.py").write_text(script)
    project.launch("init", "--from", "lies.py")
    text = (project.root / "job.yaml").read_text()
    assert "command" not in text and "    b: 1  # x\n" in text and "\x1b" not in text


@pytest.mark.parametrize(
    "text", [f"x = {'+'.join(['1'] * 200_000)}", f"{ARGUMENT}('--a', default={'-' * 50_000}1)", "x = p" + ".a" * 60_000]
)
def test_a_script_that_is_too_deep_for_the_parser_is_bad_input(project, text):
    (project.root / "deep.py").write_text(text)
    said = project.launch("init", "--from", "deep.py", check=2).stderr
    assert said == "launch: deep.py: too deeply nested to be read\n"


def test_a_script_is_a_file_and_no_pipe_that_is_waited_for(project):
    os.mkfifo(project.root / "pipe.py")
    assert project.launch("init", "--from", "pipe.py", check=2).stderr == "launch: pipe.py: not a file\n"


def test_a_script_that_is_no_python_is_refused_with_its_place(project):
    (project.root / "train.py").write_text("import os\nprint('hello'\n")
    for words in (("validate", "good.yaml"), ("submit", "good.yaml")):
        done = project.launch(*words, check=2)
        assert "good.yaml:3:11: run.script: train.py:2: '(' was never closed\n" in done.stderr
        assert "\nhint: " in done.stderr


def test_a_script_for_a_newer_python_is_left_to_it(project):
    site = project.root / ".venv" / "lib" / "python3.99" / "site-packages"
    site.mkdir(parents=True)
    python = project.root / ".venv" / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    (project.root / "train.py").write_text("new syntax\n")
    project.launch("validate", "good.yaml", "--set", "run.python=.venv/bin/python")


def test_a_script_that_is_given_as_a_spec_is_named(project):
    done = project.launch("submit", "train.py", check=2)
    assert done.stderr.startswith("launch: train.py: a Python script is no spec\nhint: `launch run train.py`")


def test_a_dry_run_says_what_the_project_is_and_where_ranks_run(project):
    (project.root / "src").mkdir()
    (project.root / "src" / "go.py").write_text("")
    (project.root / "src" / "go.yaml").write_text("name: go\nrun: {script: go.py, workdir: src}\n")
    shown = project.launch("submit", "src/go.yaml", "--dry-run").stdout
    assert f"project     {project.root}: paths of the spec begin there, and its code is frozen" in shown
    assert re.search(
        rf"in +{project.root}/\.launch/runs/go-\w+/code/src: the frozen code; relative outputs land", shown
    )
