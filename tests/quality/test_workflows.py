"""The workflows, forms and pages in .github name commands, files and options that exist."""

import itertools
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from launcher.cli.commands import ALSO, COMMANDS, GROUPS

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml"))
PAGES = [*sorted(GITHUB.glob("*.md")), ROOT / "launcher" / "docs" / "releasing.md"]
HOOKS = ROOT / ".pre-commit-config.yaml"
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")
# What a runner has; the rest is looked for in this environment.
ON_THE_RUNNER = {"apt-get", "cd", "echo", "gh", "git", "mkdir", "sha256sum", "uv"}


def steps():
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text())["jobs"].items():
            for step in job.get("steps", []):
                yield f"{path.name}: {name}", step


def commands_of(path):
    """Yield each command line in a file of .github."""
    if path == HOOKS:
        return [hook["entry"] for repo in yaml.safe_load(path.read_text())["repos"] for hook in repo["hooks"]]
    if path in WORKFLOWS:
        runs = [step["run"] for where, step in steps() if where.startswith(path.name) and "run" in step]
        lines = [line for text in runs for line in text.splitlines()]
        return [line.replace('"$LAUNCH"', "launch").replace('"$PYTHON"', "python") for line in lines]
    text = path.read_text()
    blocks = re.findall(r"^ *\$ (.+)$", text, re.MULTILINE)
    inline = re.findall(r"`((?:launch|uv|git|gh|sha256sum) [^`\n]+)`", text)
    return [part for line in [*blocks, *inline] for part in line.split(" && ")]


@pytest.fixture(scope="module")
def options_of_pytest():
    words = [sys.executable, "-m", "pytest", "--help", "-p", "no:cacheprovider"]
    said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {*re.findall(r"^ +(?:-\w, )?(--[\w-]+)", said, re.MULTILINE)}


def fault_of(line, options_of_pytest):
    """Return what a command line names that does not exist, or None."""
    words = shlex.split(line, comments=True)
    if words[:2] == ["uv", "run"]:
        words = list(itertools.dropwhile(lambda word: word.startswith("-"), words[2:]))
    program, *arguments = words
    if program in {"pytest", ".ci/run"}:
        lost = [word for word in arguments if word.startswith("--") and word not in options_of_pytest]
        if lost:
            return f"no option {lost[0]} of pytest"
    elif program == "launch":
        known = {*COMMANDS, *ALSO, *GROUPS, "help", "--version"}
        return None if arguments[0] in known else f"no command {arguments[0]}"
    elif program == "python":
        return fault_of_program(*arguments)
    elif program not in ON_THE_RUNNER and not (Path(sys.executable).parent / program).exists():
        return f"no program {program}"
    paths = [word for word in words if word.startswith(("tests/", "jobs/", ".ci/"))]
    return next((f"no file {name}" for name in paths if not (ROOT / name).exists()), None)


def fault_of_program(how, *named):
    if how == "-c":
        return None
    there = find_spec(named[0]) is not None if how == "-m" else (ROOT / how).is_file()
    return None if there else f"no program {named[0] if how == '-m' else how}"


@pytest.mark.parametrize("path", [*WORKFLOWS, *FORMS, *PAGES, HOOKS], ids=lambda path: path.name)
def test_every_command_that_is_named_exists(path, options_of_pytest):
    faults = {line: fault_of(line, options_of_pytest) for line in commands_of(path) if line.strip()}
    assert {line: fault for line, fault in faults.items() if fault} == {}
    if path in {*WORKFLOWS, HOOKS} or path.name in {"CONTRIBUTING.md", "bug.yml", "releasing.md"}:
        assert faults


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("uv run pytest --nightli", "no option --nightli of pytest"),
        ("uv run pytest --shard 3/8 tests/nowhere", "no file tests/nowhere"),
        ("launch frobnicate RUN", "no command frobnicate"),
        ("uv run python -m tests.nowhere", "no program tests.nowhere"),
        ("uv run --no-sync rough check", "no program rough"),
        ("uv pip install --constraint tests/pins.txt ruff", "no file tests/pins.txt"),
    ],
)
def test_one_that_does_not_exist_is_noticed(line, fault, options_of_pytest):
    assert fault_of(line, options_of_pytest) == fault


def test_zizmor_has_nothing_to_say(tool):
    code, said = tool("zizmor", "--offline", "--quiet", "--no-progress", ".github")
    assert code == 0, said


def test_every_action_is_pinned_and_every_job_has_a_limit():
    used = [(where, step["uses"]) for where, step in steps() if "uses" in step]
    assert len(used) > 10
    assert [one for one in used if not PINNED.fullmatch(one[1])] == []
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}, path.name
        for name, job in workflow["jobs"].items():
            assert "uses" in job or job["timeout-minutes"] <= 350, f"{path.name}: {name}"


def test_the_suite_runs_on_every_python_that_the_package_says():
    text = (ROOT / "pyproject.toml").read_text()
    said = set(re.findall(r"Programming Language :: Python :: (3\.\d+)", text))
    matrix = yaml.safe_load((GITHUB / "workflows" / "ci.yml").read_text())["jobs"]["suite"]["strategy"]["matrix"]
    assert said <= {*matrix["python"]}


def test_the_forms_ask_for_what_is_looked_at_first():
    form = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / "bug.yml").read_text())
    required = {one["id"]: one["attributes"] for one in form["body"] if one.get("validations", {}).get("required")}
    assert "`launch --version`" in required["version"]["description"]
    assert "`launch doctor`" in required["doctor"]["description"]
