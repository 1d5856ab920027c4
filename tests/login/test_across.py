"""Runs of one cluster that follow those of another: carried here, brought back however it was killed, started once."""

import json
import os
import signal

import pytest
from ledger_job import job
from saved_checkpoints import save

from tests.waits import until

pytestmark = pytest.mark.nightly

WORK = """
import os, pathlib, sys, time
name, given = sys.argv[1], sys.argv[2:]
ledger = os.environ["LEDGER"]
while name == "train" and not os.path.exists(ledger + ".go"):
    time.sleep(0.05)
there = sorted(path.name for path in pathlib.Path(given[0]).parent.glob("*")) if given else []
with open(ledger, "a") as file:
    print(os.environ["LAUNCH_RUN_ID"], name, *given, *there, file=file)
sys.exit(3 if os.path.exists(f"{ledger}.{name}") else 0)
"""
STEPS = """\
steps:
  predict: {needs: train, on: local, run: {args: [predict, "${steps.train.best_checkpoint}"]}}
  train: {run: {args: [train]}}
"""


@pytest.fixture
def desk(laptop, login_node, tmp_path):
    laptop.ledger = tmp_path / "ledger"
    laptop.script("work.py", WORK)
    laptop.spec(job(laptop.ledger))
    yield laptop
    until("the end of its processes here", lambda: not laptop.processes())


def queued(desk, run, why):
    until(f"queued: {why}", lambda: desk.status(run)["state"] == "queued" and why in desk.status(run)["message"])


def carrier(desk, run):
    return json.loads((desk.folder(run) / "attempts/0001/handle.json").read_text())["keeper"]["pid"]


def test_a_run_follows_one_of_another_cluster_however_often_who_carries_it_is_killed(desk, login_node):
    first = desk.submit("--hold", on="local")
    done = desk.launch("submit", "job.yaml", "--on", "hpc", "--after", first)
    then = done.stdout.strip()
    assert f"hpc cannot wait for {first}: this machine does" in done.stderr
    queued(desk, then, f"waits for {first} to succeed (it is queued)")
    killed = carrier(desk, then)
    os.kill(killed, signal.SIGKILL)
    until("another carrier", lambda: desk.status(then)["state"] == "queued" and carrier(desk, then) != killed)
    assert login_node.runs() == []
    desk.launch("release", first)
    desk.launch("wait", then)
    assert [line.split()[0] for line in desk.ledger.read_text().splitlines()] == [first, then]
    assert (desk.status(then)["cluster"], login_node.runs()) == ("hpc", [then])


def test_who_follows_one_that_fails_is_cancelled_and_waits_again_when_it_is_resumed_so(desk, login_node):
    desk.ledger.with_name("ledger.work").touch()
    first = desk.submit("--hold", on="local")
    then, given_up = desk.submit("--after", first), desk.submit("--after", first)
    desk.launch("cancel", given_up)
    assert desk.status(given_up)["state"] == "cancelled"
    desk.launch("release", first)
    assert f"{first}, which it was to follow, is failed" in desk.launch("wait", then, check=20).stdout
    desk.ledger.with_name("ledger.work").unlink()
    desk.launch("resume", then)
    desk.launch("wait", then)
    assert login_node.runs() == [then]


def test_a_step_here_is_given_the_best_checkpoint_of_one_there(desk, login_node):
    desk.spec(job(desk.ledger) + STEPS)
    graph = desk.submit()
    train = f"{graph}-train"
    queued(desk, f"{graph}-predict", f"waits for {train} to succeed")
    until("it runs", lambda: desk.status(train)["state"] == "running")
    save(login_node.home / "launch" / "runs" / train / "checkpoints", 7)
    desk.ledger.with_name("ledger.go").touch()
    desk.launch("wait", graph)
    here = desk.folder(train) / "checkpoints"
    assert f"{graph}-predict predict {here}/best" in desk.ledger.read_text()
    assert "step-00000007" in desk.ledger.read_text().splitlines()[-1].split()


def test_what_cannot_be_brought_is_refused_before_there_is_anything(desk, login_node):
    desk.spec(job(desk.ledger) + STEPS.replace("on: local, ", "").replace("train: {", "train: {on: local, "))
    done = desk.launch("submit", "job.yaml", "--on", "hpc", check=2)
    assert "${steps.train.best_checkpoint}: hpc does not see this machine's disk" in done.stderr
    desk.spec(job(desk.ledger) + STEPS.replace("best_checkpoint", "run_dir"))
    done = desk.launch("submit", "job.yaml", "--on", "hpc", check=2)
    assert "${steps.train.run_dir}: of a run on hpc only checkpoints are brought here" in done.stderr
    assert (desk.launch("status").stdout, login_node.runs()) == ("", [])
