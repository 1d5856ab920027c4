"""validate, schema, init and dry runs: what starts nothing."""

import json
import os
import re

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


def test_schema_is_json(desk):
    assert json.loads(desk.launch("schema").stdout)["type"] == "object"


@pytest.mark.parametrize("template", ["minimal", "ddp", "slurm", "gridengine", "ssh"])
def test_init_writes_a_spec_that_is_valid_and_names_its_schema(desk, template):
    assert desk.launch("init", template, "--output", "new.yaml").stdout == "new.yaml\n"
    text = (desk.root / "new.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=.launch/job.schema.json\n")
    assert json.loads((desk.root / ".launch" / "job.schema.json").read_text())["type"] == "object"
    missing = desk.launch("validate", "new.yaml", check=2)
    assert re.search(r"^new.yaml:\d+:11: run.script: no file 'train.py'", missing.stderr)
    (desk.root / "train.py").write_text("")
    desk.launch("validate", "new.yaml")


def test_init_writes_over_nothing(desk):
    (desk.root / "job.yaml").write_text("precious")
    done = desk.launch("init", check=2)
    assert "job.yaml exists already" in done.stderr
    assert (desk.root / "job.yaml").read_text() == "precious"
    assert entries(desk.root) == ["job.yaml"]


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
                 "files", str(project.root / ".launch" / "runs")):  # fmt: skip
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
