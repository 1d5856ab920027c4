"""`launch board --export`: what lies in the folder, and what does not."""

import base64
import hashlib
import json
import os
import re

import msgspec
import pytest
from run_folder import plan_of

from launcher import api
from launcher.apps.board.export import export_page, export_report
from launcher.errors import BadInput, Refused
from launcher.run.records import Failure, NotFinite
from launcher.states import Cause
from launcher.supervisor.notify.record import Notifying, Recipient
from tests.apps.board.test_server import reported

HOSTILE = "</script><script>alert(1)</script><!--\u2028"
DATA = re.compile(r'<script type="application/json" id="board-data">(.*?)</script>', re.DOTALL)


SECRET_PARTS = ("sk-un", "pass  word", "pass word", "of-two-lines")


def with_secret_arguments(run):
    """Give the run an undeclared secret argument, one declared in `secrets:`, and a long text that is cut."""
    declared = "pass  word\nof-two-lines"
    args = ("--api-key", "sk-undeclared", "--pad-token=<|endoftext|>", "--sort-key", "timestamp",
            f"--user=me:{declared}", f"--long={'x' * 1990}{declared}")  # fmt: skip
    plan = plan_of(run.path)
    run.write(run.run.plan, msgspec.structs.replace(plan, entry=msgspec.structs.replace(plan.entry, args=args)))
    run.write(run.run.secrets, {"TOKEN": declared})
    run.run.spec.write_text("args: {--api-key: sk-undeclared}\n")
    run.event("rank 0 said sk-undeclared", "failure", rank=0, cause=Cause.KILLED)
    return run.log(0, "called with sk-undeclared\n")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "deep" / "page"


def exported(folder, *ids):
    """Return the answers in an exported page."""
    index = export_page([api.run(one) for one in ids], folder)
    assert index == folder / "index.html"
    (data,) = DATA.findall(index.read_text())
    return json.loads(data)


def test_a_page_has_what_the_server_would_answer(board, house, folder):
    run = house.run().trained(for_s=300, starting_s=100).succeeded(metrics={"loss": 0.5})
    reported(run, [{"loss": 1.0}, {"loss": "nan"}, {"loss": 0.5, "acc": 0.1}])
    run.log(0, "one\ntwo\n")
    board.rows(lambda rows: [(row["state"], row["metrics"]) for row in rows] == [("succeeded", {"loss": 0.5})])
    board.rows(lambda rows: rows[0]["spark"])
    answers = exported(folder, "job-abcd")
    of_run = "/api/runs/job-abcd"
    parts = [f"{of_run}/{name}" for name in ("checkpoints", "curves", "curves?of=system", "life", "logs")]
    assert sorted(answers) == ["/api/runs", of_run, *parts]
    for path in parts:
        assert answers[path] == board.get(f"{path}&by=time" if "?" in path else path).json()
    assert answers["/api/runs"]["runs"] == board.get("/api/runs").json()["runs"]
    seen = board.get(of_run).json()
    assert answers[of_run]["sheet"] == seen["sheet"]
    assert answers[of_run]["head"] == {**seen["head"], "run_dir": ""}


def test_two_runs_are_compared(house, folder):
    house.run("lr1-aaaa").succeeded(metrics={"loss": 0.5})
    house.run("lr2-bbbb").succeeded(metrics={"loss": 0.25}, not_finite={"acc": NotFinite("NaN", 17)})
    answers = exported(folder, "lr1-aaaa", "lr2-bbbb")
    assert [row["id"] for row in answers["/api/runs"]["runs"]] == ["lr1-aaaa", "lr2-bbbb"]
    assert answers["/api/compare"]["runs"] == ["lr1-aaaa", "lr2-bbbb"]


def test_all_that_the_page_refers_to_is_there_and_nothing_is_a_module(house, folder):
    house.run().succeeded()
    exported(folder, "job-abcd")
    html = (folder / "index.html").read_text()
    named = re.findall(r'(?:src|href)="(page/[^"]+)"', html)
    assert "page/board.js" in named
    assert all((folder / one).is_file() for one in named)
    assert 'type="module"' not in html
    assert not re.findall(r"^(?:import|export) ", (folder / "page" / "board.js").read_text(), re.MULTILINE)
    assert (folder / "page" / "vendor" / "uplot" / "LICENSE").is_file()


def test_a_report_is_one_file_that_only_its_own_scripts_run_in(house, tmp_path):
    for name in ("lr1-aaaa", "lr2-bbbb"):
        house.run(name).succeeded(metrics={HOSTILE: 0.5}).log(0, f"{HOSTILE}\n")
    one = export_report([api.run("lr1-aaaa"), api.run("lr2-bbbb")], tmp_path / "report.html")
    html = one.read_text()
    assert [*tmp_path.glob("*.html")] == [one]
    assert not re.findall(r'(?:src|href)="(?!data:|#)', html)
    (data,) = DATA.findall(html)
    assert json.loads(data)["/api/compare"]["runs"] == ["lr1-aaaa", "lr2-bbbb"]
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert scripts[0] == 'if (!location.hash) location.hash = "#/compare/lr1-aaaa,lr2-bbbb";'
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    (policy,) = re.findall(r"script-src ([^;]*);", html)
    assert policy == " ".join(f"'sha256-{digest}'" for digest in digests)
    assert html.count("</script>") == 3 and "Permission is hereby granted" in html
    with pytest.raises(Refused, match="cannot write"):
        export_report([api.run("lr1-aaaa")], tmp_path / "nowhere" / "report.html")


def test_what_runs_say_ends_no_script(house, folder):
    failure = Failure(Cause.USER_ERROR, HOSTILE, 1, 1, rank=0, tail=(HOSTILE,))
    run = house.run().failed(failure, metrics={HOSTILE: 1.0})
    reported(run, [{HOSTILE: 1.0, "__proto__": 2.0}])
    run.log(0, f"{HOSTILE}\n")
    answers = exported(folder, "job-abcd")
    (line,) = answers["/api/runs/job-abcd/logs"]["lines"]
    assert line["text"] == HOSTILE.rstrip("\u2028")
    assert HOSTILE in answers["/api/runs/job-abcd/curves"]["names"]
    html = (folder / "index.html").read_text()
    assert html.count("</script>") == 2  # the data, ours
    assert "alert(1)</script>" not in html


def test_no_secret_is_in_it(house, folder):
    run = house.run().succeeded(message="with s3cret-of-the-file")
    plan = plan_of(run.path)
    spelled = {"WANDB_API_KEY": "key-spelled-out", "MODE": "plain-word"}
    run.write(run.run.plan, msgspec.structs.replace(plan, spec=msgspec.structs.replace(plan.spec, env=spelled)))
    run.write(run.run.secrets, {"TOKEN": "s3cret-of-the-file", "PEM": "first-line-of-it\nsecond-line-of-it"})
    hook = "https://hooks.example.org/services/T0/B0/xyz"
    run.write(run.run.notify, Notifying((Recipient("slack-1", "slack", hook),), ("ended",)))
    run.run.spec.write_text("env: {WANDB_API_KEY: key-spelled-out, MODE: plain-word}\n")
    reported(run, [{"s3cret-of-the-file": 1.0}])
    run.log(0, f"s3cret-of-the-file\nsecond-line-of-it\nkey-spelled-out plain-word\nto {hook}\n")
    answers = exported(folder, "job-abcd")
    texts = [line["text"] for line in answers["/api/runs/job-abcd/logs"]["lines"]]
    assert texts == ["(secret)", "(secret)", "(secret) plain-word", "to (secret)"]
    token = "0" * 64  # of the attempt, as RunFolder writes it
    assert token in run.run.attempt(1).intent.read_text()
    written = "\n".join(path.read_text() for path in folder.rglob("*") if path.is_file())
    for one in ("s3cret", "second-line", "key-spelled-out", "hooks.example.org", token, os.fspath(run.run.secrets)):
        assert one not in written


def test_no_secret_of_the_arguments_is_in_it(house, folder):
    run = with_secret_arguments(house.run().succeeded())
    house.run("lr2-bbbb").succeeded()
    answers = exported(folder, "job-abcd", "lr2-bbbb")
    assert answers["/api/runs"]["runs"][0]["args"] == {
        "--api-key": "(secret)", "--pad-token": "<|endoftext|>", "--sort-key": "timestamp", "--user": "me:(secret)",
        "--long": "x" * 1990 + "(secret)",
    }  # fmt: skip
    assert run.path.exists()
    written = "\n".join(path.read_text() for path in folder.rglob("*") if path.is_file())
    assert not [part for part in SECRET_PARTS if part in written]


def test_a_secret_that_cannot_be_known_keeps_the_run_here(house, folder):
    run = house.run().succeeded()
    run.run.secrets.write_text("{")
    with pytest.raises(Exception, match="not a record"):
        exported(folder, "job-abcd")
    assert not folder.exists()


def test_of_a_long_log_the_last_part(house, folder):
    house.run().succeeded().log(0, "".join(f"{number} {'x' * 60_000}\n" for number in range(60)))
    page = exported(folder, "job-abcd")["/api/runs/job-abcd/logs"]
    assert page["before"] is None
    assert page["lines"][-1]["text"].startswith("59 ")
    assert 0 < sum(len(line["text"]) for line in page["lines"]) <= 2_000_000


def test_a_folder_with_other_things_is_left_alone(house, folder):
    house.run().succeeded()
    folder.mkdir(parents=True)
    (folder / "index.html").write_text("somebody's")
    with pytest.raises(Refused, match="holds other things"):
        exported(folder, "job-abcd")
    assert [path.name for path in folder.iterdir()] == ["index.html"]
    assert (folder / "index.html").read_text() == "somebody's"
    with pytest.raises(Refused, match="is no folder"):
        exported(folder / "index.html", "job-abcd")


def test_an_older_export_is_written_over(house, folder):
    run = house.run().succeeded().log(0, "one\n")
    exported(folder, "job-abcd")
    run.log(0, "two\n")
    lines = exported(folder, "job-abcd")["/api/runs/job-abcd/logs"]["lines"]
    assert [line["text"] for line in lines] == ["one", "two"]


def test_a_page_has_a_bounded_number_of_runs(folder):
    with pytest.raises(BadInput, match="1 to 20 runs"):
        export_page([], folder)
