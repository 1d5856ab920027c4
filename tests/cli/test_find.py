"""Finding runs: by name, state, age and tag; columns and orders of one's own; what people say of runs."""

import ast
import json
import re
import subprocess
import sys
import time

import msgspec
import pytest
from run_folder import dead_process

from launcher.cli.shipped import shipped
from launcher.run.records import Origin
from launcher.states import State


@pytest.fixture
def many(desk):
    """Return three runs with different arguments, results and states."""
    now = time.time()
    for name, lr, loss, ago in (("lr-a", "0.1", 0.5, 60.0), ("lr-b", "0.01", 0.25, 3600.0), ("big-c", "1", 2.0, 9e5)):
        folder = desk.run(f"{name}-4ykr")
        folder.succeeded(submitted_at=now - ago, metrics={"val_loss": loss})
        plan = json.loads(folder.run.plan.read_text())
        plan["entry"]["args"] = ["--lr", lr, "--amp"] if name == "lr-a" else [f"--lr={lr}"]
        plan["spec"]["description"] = "the first\nof them"
        folder.run.plan.write_text(json.dumps(plan))
    folder.write(folder.run.origin, Origin("c0ffee" + "0" * 34, True))
    desk.run("lost-d").failed(submitted_at=now - 30)
    return desk


def names(desk, *words):
    return [line.split()[0] for line in desk.launch("status", *words).stdout.splitlines()[1:]]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--name", "lr*"), ["lr-a-4ykr", "lr-b-4ykr"]),
        (("--state", "failed"), ["lost-d"]),
        (("--state", "failed,succeeded", "--name", "*-4ykr"), ["lr-a-4ykr", "lr-b-4ykr", "big-c-4ykr"]),
        (("--state", "active"), []),
        (("--since", "2h"), ["lost-d", "lr-a-4ykr", "lr-b-4ykr"]),
        (("--limit", "2"), ["lost-d", "lr-a-4ykr"]),
        (("--sort", "val_loss"), ["lr-b-4ykr", "lr-a-4ykr", "big-c-4ykr", "lost-d"]),
        (("--sort", "lr", "--limit", "1"), ["lr-b-4ykr"]),
        (("--sort", "val_loss", "--reverse"), ["big-c-4ykr", "lr-a-4ykr", "lr-b-4ykr", "lost-d"]),
        (("--sort", "val_loss", "--reverse", "--limit", "1"), ["big-c-4ykr"]),
        (("--sort", "age", "--reverse", "--name", "lr*"), ["lr-b-4ykr", "lr-a-4ykr"]),
        (("--sort", "run"), ["big-c-4ykr", "lost-d", "lr-a-4ykr", "lr-b-4ykr"]),
    ],
)
def test_runs_are_found(many, words, found):
    assert names(many, *words) == found


def test_columns_of_ones_own(many):
    lines = many.launch(
        "status", "--columns", "lr,amp,val_loss,commit,description", "--name", "*-4ykr"
    ).stdout.splitlines()
    assert lines[0].split() == ["RUN", "STATE", "LR", "AMP", "VAL_LOSS", "COMMIT", "DESCRIPTION"]
    assert lines[1].split() == ["lr-a-4ykr", "succeeded", "0.1", "true", "0.5", "-", "the", "first", "of", "them"]
    assert lines[3].split()[2:6] == ["1", "-", "2", "c0ffee0000+changes"]


def test_programs_get_all_of_it(many):
    [status] = json.loads(many.launch("status", "--json", "--name", "big*").stdout)
    assert (status["args"], status["commit"][:6], status["dirty"]) == (["--lr=1"], "c0ffee", True)
    assert status["description"] == "the first\nof them"
    assert json.loads(many.launch("status", "big", "--json").stdout)["args"] == ["--lr=1"]


def test_tags_are_given_and_taken_away(many):
    assert many.launch("tag", "lr-a", "baseline", "paper").stdout == "baseline\npaper\n"
    assert many.launch("tag", "lr-b", "paper").stdout == "paper\n"
    assert names(many, "--tag", "paper") == ["lr-a-4ykr", "lr-b-4ykr"]
    assert names(many, "--tag", "paper", "--tag", "baseline") == ["lr-a-4ykr"]
    assert many.launch("tag", "lr-a", "--remove", "paper").stdout == "baseline\n"
    table = many.launch("status").stdout.splitlines()
    assert table[0].split()[-2:] == ["NAME", "TAGS"]
    assert [line.split()[-1] for line in table[1:]] == ["-", "baseline", "paper", "-"]


def test_a_note_is_written_read_and_taken_away(many):
    many.launch("note", "lr-a", "warm-up too short\x1b[31m")
    assert many.launch("note", "lr-a").stdout.startswith("warm-up too short")
    page = many.launch("status", "lr-a").stdout
    assert "note        warm-up too short" in page
    assert "arguments   --lr 0.1 --amp" in page
    assert "\x1b" not in page + many.launch("note", "lr-a").stdout
    many.launch("note", "lr-a", "")
    assert many.launch("note", "lr-a").stdout == ""


def test_a_run_answers_to_the_name_that_it_is_given(many):
    assert many.launch("rename", "lr-a", "baseline").stdout == "lr-a-4ykr is called baseline\n"
    assert many.launch("status", "baseline").stdout.startswith("lr-a-4ykr succeeded")
    assert names(many, "--name", "base*") == ["lr-a-4ykr"]
    assert "is what lr-a-4ykr answers to" in many.launch("rename", "lr-b", "baseline", check=2).stderr
    assert "expected a name" in many.launch("rename", "lr-b", "a/b", check=2).stderr
    assert "expected a name" in many.launch("rename", "lr-b", "last", check=2).stderr
    many.launch("rename", "baseline", "")
    many.launch("status", "baseline", check=3)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("status", "--state", "broken"), "expected one of queued, "),
        (("status", "--since", "yesterday"), "expected an age such as 2d, 12h or 2026-01-31"),
        (("status", "--limit", "0"), "expected a number of runs"),
        (("tag", "last", "a b"), "expected a tag"),
    ],
)
def test_what_cannot_be_looked_for(many, words, told):
    assert told in many.launch(*words, check=2).stderr


def test_a_narrow_terminal_gets_fewer_columns(many):
    usual = many.on_terminal("status")[1]
    assert "DURATION" in usual
    narrow = many.on_terminal("status", columns=50)[1]
    assert "STATE" in narrow
    assert "RATE" not in narrow
    lines = [line for line in narrow.replace("\x1b[0m", "\x1b[m").split("\r\n") if line]
    assert max(len(line.partition("m")[2].partition("\x1b")[0]) for line in lines) <= 50


def test_a_thousand_runs_at_once(desk):
    """By the processor's time of the command alone; the plan and the labels of each are read."""
    dead = dead_process()
    for number in range(1000):
        folder = desk.run(f"job-{number:04d}").plan().attempt(supervisor=dead)
        folder.state(State.SUCCEEDED, submitted_at=1000.0 + number, metrics={"val_loss": number / 7})
    folder.run.labels.write_bytes(msgspec.json.encode({"tags": ["x"]}))
    assert min(sum(used(desk)) for _ in range(3)) < 1.0


MEASURED = """
import resource, sys
from launcher.cli.main import main
main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF)[:2], file=sys.stderr)
"""


def used(desk):
    words = ["status", "--columns", "lr,val_loss,tags", "--sort", "val_loss", "--limit", "20"]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *words], env=desk.env, capture_output=True, text=True, check=True
    )
    assert len(done.stdout.splitlines()) == 21
    return ast.literal_eval(done.stderr)


def test_what_the_page_shows(desk):
    page = (shipped("jobs").parent / "launcher" / "docs" / "many-runs.md").read_text()
    [block] = re.findall(r"^```console\n(\$ launch status --name.*?)^```$", page, re.MULTILINE | re.DOTALL)
    now = time.time()
    for name, lr, loss in (("lr-a-9x2d", "0.1", 0.5), ("lr-b-4ykr", "0.01", 0.25)):
        folder = desk.run(name)
        folder.succeeded(submitted_at=now - 60, metrics={"val_loss": loss})
        folder.run.plan.write_text(folder.run.plan.read_text().replace('"--lr","0.1"', f'"--lr","{lr}"'))
        folder.write(folder.run.origin, Origin("1a2b3c4d5e" + "0" * 30, dirty=False))
    desk.launch("tag", "lr-a", "paper")
    desk.run("gpt-7k3f").failed(submitted_at=now - 9 * 86400 - 1, ended_at=now - 9 * 86400 - 1)
    for part in block.split("$ launch ")[1:]:
        command, *shown = part.strip().splitlines()
        words = [word.strip("'") for word in command.split()]
        said = desk.launch(*words).stdout.splitlines()
        sized = [re.sub(r"[\d.]+ k?B", "N B", " ".join(line.split())) for line in said]
        assert [line for line in shown if re.sub(r"[\d.]+ k?B", "N B", " ".join(line.split())) not in sized] == []


def test_edit_changes_all_that_people_say_of_runs(many):
    many.launch("edit", "lr-*", "--tag", "paper", "--tag", "old", "--note", "warm-up was too short")
    many.launch("edit", "lr-a", "--name", "baseline", "--untag", "old")
    [one] = json.loads(many.launch("status", "--json", "--name", "baseline").stdout)
    assert (one["called"], one["tags"], one["note"]) == ("baseline", ["paper"], "warm-up was too short")
    assert names(many, "--tag", "old") == ["lr-b-4ykr"]
    assert "  note  warm-up was too short" in many.launch("edit", "baseline").stdout
    assert "is what lr-a-4ykr answers to" in many.launch("edit", "lr-b", "--name", "baseline", check=2).stderr
    assert "--name is the name of one run" in many.launch("edit", "lr-*", "--name", "x", check=2).stderr


def test_patterns_of_runs(many):
    assert "has already ended" in many.launch("cancel", "lr-*").stdout
    assert many.launch("tag", "lr-*", "x").stdout == "x\nx\n"
    assert "no such runs" in many.launch("rm", "zz*", check=3).stderr
    assert len(many.launch("rm", "lr-*").stdout.splitlines()) == 2
    assert names(many) == ["lost-d", "big-c-4ykr"]


@pytest.mark.parametrize("words", [("--columns", "los,lr"), ("--sort", "los")])
def test_a_column_that_no_run_has_is_refused(many, words):
    said = many.launch("status", *words, check=2).stderr
    assert said.startswith("launch: no run has los, as a metric or as an argument of its script\n")
    assert said.endswith("hint: metrics are val_loss; `launch status --help` names the other columns\n")


@pytest.mark.parametrize(
    ("typed", "meant"), [("val_los", "val_loss"), ("restart", "restarts"), ("description_", "description")]
)
def test_a_misspelt_column_names_the_near_one(many, typed, meant):
    for option in ("--columns", "--sort"):
        assert many.launch("status", option, typed, check=2).stderr.endswith(f"hint: did you mean {meant}?\n")


def test_a_metric_that_an_active_run_may_still_report_is_no_error(many):
    many.run("new-d").running(metrics={})
    assert many.launch("status", "--columns", "perplexity").stderr == ""


def test_a_column_that_some_run_has_is_not(many):
    words = ("--columns", "lr,val_loss,tags,checkpoint", "--sort", "age")
    assert many.launch("status", *words).stderr == ""
