"""What commands print for programs: each has --json or a reason, and prints what its schema says.

`desk.launch` and `lab.launch` compare every answer of every test with the schema; here are answers that no other test
asks for, and the check that all are asked for somewhere.
"""

import ast
import json
import time
from pathlib import Path

import jsonschema
import pytest
from run_folder import before_this_boot
from saved_checkpoints import save_model

from launcher.cli.answers import schema_of
from launcher.cli.arguments import arguments_of
from launcher.cli.commands import COMMANDS, INSTEAD, WITHOUT_JSON
from launcher.run.records import Exclusion, NodeState
from launcher.spec.fields import schema
from tests import documented

TESTS = Path(__file__).parents[1]
NODES = tuple(NodeState(node, f"10.0.0.{node}", "drained" if node == 1 else "up", (node,), "") for node in range(3))


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_each_command_has_json_or_a_reason_why_not(command):
    arguments = arguments_of(command)
    offered = any("--json" in action.option_strings for action in arguments.taken)
    assert offered is bool(arguments.answers()) is (command not in WITHOUT_JSON)
    if offered:
        jsonschema.Draft202012Validator.check_schema(schema_of(arguments.answers()))


def test_what_older_names_do_another_command_does_with_json():
    assert set(INSTEAD) <= set(WITHOUT_JSON)


def test_each_answer_is_asked_for_by_a_test():
    texts = [text for path in TESTS.rglob("test_*.py") if '"--json"' in (text := path.read_text())]
    calls = [call for text in texts for call in ast.walk(ast.parse(text)) if isinstance(call, ast.Call)]
    words = [[word.value for word in call.args if isinstance(word, ast.Constant)] for call in calls]
    asked = {documented.command_of([*map(str, said)]) for said in words if "--json" in said}
    assert set(COMMANDS) - set(WITHOUT_JSON) - asked <= {"scale", "prove"}, "their tests have a launch of their own"


def test_an_undocumented_field_and_a_missing_one_are_noticed():
    good = {"file": "a", "ok": True, "problems": []}
    documented.check(["spec", "validate", "--json"], json.dumps([good]))
    for wrong in ({**good, "more": 1}, {"file": "a", "ok": True}, {**good, "ok": "yes"}):
        with pytest.raises(jsonschema.ValidationError):
            documented.check(["validate", "x", "--json"], json.dumps([wrong]))


def test_the_schema_of_a_command_can_be_asked_for(desk):
    of_wait = json.loads(desk.launch("spec", "schema", "wait").stdout)
    assert of_wait == json.loads(json.dumps(schema_of(arguments_of("wait").answers())))
    assert desk.launch("schema", "hosts").stdout == desk.launch("spec", "schema", "nodes", "list").stdout
    assert json.loads(desk.launch("spec", "schema").stdout) == json.loads(json.dumps(schema({})))
    assert "no such command: 'wit'" in desk.launch("spec", "schema", "wit", check=2).stderr
    assert "is for a person at a terminal" in desk.launch("spec", "schema", "shell", check=2).stderr


def answer(desk, *words, check=0):
    return json.loads(desk.launch(*words, check=check).stdout)


@pytest.fixture
def three(desk):
    """Return three runs: one has succeeded, one has failed, one is running."""
    desk.run("good-aaaa").succeeded(metrics={"loss": 0.5})
    desk.run("bad-bbbb").failed()
    desk.run("live-cccc").running(nodes=NODES)
    return desk


def test_wait(three):
    done = three.launch("wait", "good", "bad", "--json", check=10)
    assert [(one["run"], one["state"]) for one in json.loads(done.stdout)] == [
        ("good-aaaa", "succeeded"), ("bad-bbbb", "failed"),
    ]  # fmt: skip
    late = three.launch("wait", "good", "live", "--timeout", "0", "--json", check=4)
    assert [one["run"] for one in json.loads(late.stdout)] == ["good-aaaa"]
    assert late.stderr == "launch: live-cccc is still running after 0 s\nhint: launch status live-cccc\n"


def test_wait_for_any_returns_with_those_that_have_ended(three):
    [over] = answer(three, "wait", "live", "good", "--any", "--json")
    assert (over["run"], over["metrics"]) == ("good-aaaa", {"loss": 0.5})
    assert three.launch("wait", "live", "bad", "good", "--any", check=10).stdout.splitlines() == [
        "bad-bbbb failed (user_error)", "good-aaaa succeeded",
    ]  # fmt: skip
    late = three.launch("wait", "live", "--any", "--timeout", "0", check=4)
    assert late.stderr == "launch: none of 1 runs has ended after 0 s\nhint: launch status live-cccc\n"


def test_what_is_changed_of_runs(three):
    [labels] = answer(three, "edit", "good", "--tag", "x", "--note", "short", "--json")
    assert labels == {"run": "good-aaaa", "name": "", "tags": ["x"], "note": "short"}
    [over] = answer(three, "cancel", "good", "--json")
    assert (over["state"], over["already_ended"], over["ended"]) == ("succeeded", True, [])
    assert answer(three, "notify", "good", "--json") == []
    exclusion = Exclusion("gpu07", "it burns", 1, time.time(), time.time() + 900)
    three.run("lost-dddd").plan().attempt(supervisor=before_this_boot()).state().write(
        (three.root / "runs" / "lost-dddd" / "avoided.json"), [exclusion]
    )
    assert answer(three, "nodes", "include", "lost", "--json")["included"][0]["host"] == "gpu07"
    assert answer(three, "nodes", "include", "lost", "--json")["included"] == []


def test_a_drained_node(three):
    drained = answer(three, "nodes", "drain", "live", "1", "--json")
    assert drained == {"run": "live-cccc", "node": 1, "ranks_on": [0, 1, 2]}


def test_what_is_deleted(three):
    shown = answer(three, "prune", "--state", "failed", "--dry-run", "--json")
    assert (shown["done"], [one["run"] for one in shown["runs"]]) == (False, ["bad-bbbb"])
    assert "one of --yes and --dry-run" in three.launch("prune", "--state", "failed", "--json", check=2).stderr
    assert answer(three, "prune", "--state", "failed", "--yes", "--json") == {**shown, "done": True}
    [gone] = answer(three, "rm", "good", "--json")
    assert (gone["run"], gone["gone"]) == ("good-aaaa", True)
    assert {path.name for path in (three.root / "runs").iterdir() if path.name[0] != "."} == {"live-cccc"}


def test_what_is_written(three):
    save_model(three.root / "runs" / "good-aaaa" / "checkpoints", 100)
    found = answer(three, "export", "good", "-o", "m.safetensors", "--json")
    assert (found["file"], found["step"]) == ("m.safetensors", 100)
    page = answer(three, "report", "good", "bad", "--json")
    assert (page["file"], page["runs"]) == ("report.html", ["good-aaaa", "bad-bbbb"])
    assert answer(three, "fetch", "good", "--json")["fetched"] == []


def test_problems_of_specs(desk):
    (desk.root / "train.py").write_text("")
    (desk.root / "good.yaml").write_text("name: x\nrun: {script: train.py}\n")
    (desk.root / "bad.yaml").write_text("name: x\nrun: {scrpt: train.py}\n")
    good, bad = answer(desk, "spec", "validate", "good.yaml", "bad.yaml", "--json", check=2)
    assert good == {"file": "good.yaml", "ok": True, "problems": []}
    assert bad["problems"][0].startswith("bad.yaml:2:6: ")


def test_what_json_does_not_go_with(desk):
    for words in (("run", "--json", "x.py"), ("resume", "x", "-f", "--json"), ("sweep", "status", "-f", "--json")):
        assert "--json" in desk.launch(*words, check=2).stderr


def test_a_skill_for_agents_is_written_and_nothing_is_overwritten(desk):
    (desk.root / "pyproject.toml").write_text("")
    inside = desk.root / "inside"
    inside.mkdir()
    done = desk.launch("init", "--agents", cwd=inside)
    names = ("SKILL.md", "scripts/hill_climb.py")
    files = [desk.root / home / "skills" / "launch" / name for home in (".claude", ".agents") for name in names]
    assert done.stdout.splitlines() == [*map(str, files)]
    skill = files[0].read_text()
    assert skill.startswith("---\nname: launch\ndescription: Start, ")
    assert "](" not in skill and "exit codes (`launch help exit-codes`)" in skill
    compile(files[1].read_text(), "hill_climb.py", "exec")
    desk.launch("init", "--agents", cwd=inside)
    files[2].write_text("mine\n")
    refused = desk.launch("spec", "init", "--agents", check=2)
    assert refused.stderr == f"launch: {files[2]} exists already, and is different\nhint: --force writes over it\n"
    assert files[2].read_text() == "mine\n"
    desk.launch("init", "--agents", "--force")
    assert files[2].read_text() == skill
