"""Test that a run's supervisor sends notifications, with real runs and a server that accepts, fails or hangs."""

import json
import signal

import pytest
from lab import all_pids, command, kill
from listeners import Web, open_listener

pytestmark = pytest.mark.nightly

REPORTS = """
import json, os, sys
wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)
for step in range(1, 4):
    wire.write(json.dumps({"step": step, "total_steps": 3, "loss": step / 4}) + "\\n")
print("token", os.environ.get("TOKEN"))
if "fail" in sys.argv:
    raise KeyError(os.environ["TOKEN"])
"""
DIES = """
import os, pathlib, signal
if os.environ["LAUNCH_ATTEMPT"] + os.environ["LAUNCH_GENERATION"] != "13":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def web():
    with open_listener(Web) as listener:
        yield listener


@pytest.fixture
def messengers(lab):
    """Return the notifying processes of a run."""

    def of(run=""):
        words = (b"launcher.programs\0notify", str(lab.project / ".launch" / "runs" / run).encode())
        return [pid for pid in all_pids() if all(word in command(pid) for word in words)]

    yield of
    for pid in of():
        kill(pid)


def spec_of(lab, text, more="", args=""):
    lab.script("train.py", text)
    run = f"run: {{script: train.py, args: [{args}]}}\nresources: {{ranks_per_node: 1}}\n"
    return lab.spec(f"name: heard\n{run}notify: {{to: [{{json: HOOK}}], on: [started, restarted, ended]}}\n{more}")


@pytest.mark.daily
def test_a_failed_run_is_told_with_its_cause_and_no_secret_is_seen(lab, web, messengers):
    spec = spec_of(lab, REPORTS, "secrets: [TOKEN]\nrecovery: {user_error: 0}\n", "fail")
    env = {"HOOK": web.address, "TOKEN": "k3pt-to-us"}
    shown = lab.launch("submit", spec, "--dry-run", env=env).stdout
    assert ["tells", "json", "127.0.0.1"] in [line.split() for line in shown.splitlines()]
    run = lab.submit(spec, env=env)
    lab.wait(run, check=10)
    started, ended = web.wait_for(2)
    assert (started["kind"], started["run"]) == ("started", run)
    assert (ended["kind"], ended["state"], ended["cause"], ended["exit_code"]) == ("ended", "failed", "user_error", 10)
    assert (ended["step"], ended["metrics"]) == (3, {"loss": 0.75})
    assert ended["tail"][-1] == "KeyError: '(secret)'"
    assert ended["next"] == f"mend train.py:8, then launch resume {run} --code"
    lab.until("its messenger has left", lambda: not messengers(run))

    shown += lab.launch("status", run).stdout + lab.launch("status", run, "--json").stdout
    shown += (told := lab.launch("notify", run).stdout)
    assert [line.split("  ", 1)[1] for line in told.splitlines()] == [
        "started: told json 127.0.0.1",
        "ended: told json 127.0.0.1",
    ]
    assert "s3cr3t" not in shown and "k3pt" not in json.dumps(ended)
    files = [path for path in lab.run_dir(run).rglob("*") if path.is_file()]
    assert [path.name for path in files if b"s3cr3t" in path.read_bytes()] == ["notify.json"]
    assert (lab.run_dir(run) / "notify.json").stat().st_mode & 0o777 == 0o600


def test_who_is_down_is_told_once_it_is_back_and_once(lab, web, messengers):
    web.answers += [503, 500]
    run = lab.submit(spec_of(lab, REPORTS), env={"HOOK": web.address})
    lab.wait(run)
    web.wait_for(2)
    lab.until("its messenger has left", lambda: not messengers(run))
    assert [one["kind"] for one in web.taken] == ["started", "ended"]
    assert len(web.posts) == 4


def test_who_refuses_is_not_asked_again_and_the_run_says_so(lab, web, messengers):
    web.answers += [404, 404]
    run = lab.submit(spec_of(lab, REPORTS), env={"HOOK": web.address})
    lab.wait(run)
    lab.until("its messenger has left", lambda: len(lab.events(run, "not_notified")) == 2 and not messengers(run))
    assert web.taken == []
    assert "ended: json 127.0.0.1: it answers 404 Not Found, tried 1 times" in lab.launch("status", run).stdout


def test_who_hangs_holds_up_nobody(lab, web, messengers):
    """The run is over, all of it, while the messenger still waits for an answer."""
    web.hangs.set()
    run = lab.submit(spec_of(lab, REPORTS), env={"HOOK": web.address})
    assert lab.wait(run)["state"] == "succeeded"
    lab.until("no process of the run is left", lambda: not lab.processes())
    assert len(messengers(run)) == 1
    lab.launch("resume", run, "--set", "notify.to=[]", check=0)
    lab.wait(run)
    lab.until("a newer attempt sends it home", lambda: not messengers(run))


def test_restarts_over_attempts_and_generations_are_told_once(lab, web, messengers):
    more = "recovery: {killed: {restarts: 9, backoff: 100ms..100ms}, no_progress: off}\n"
    spec = spec_of(lab, DIES, more)
    lab.launch("submit", spec, "--set", "notify.restarts=1", "--follow", env={"HOOK": web.address})
    told = web.wait_for(3)
    lab.until("its messenger has left", lambda: not messengers())
    assert sorted(one["kind"] for one in web.taken) == ["ended", "restarted", "started"]
    [restarted] = [one for one in told if one["kind"] == "restarted"]
    assert restarted["restarts"] == {"killed": 2}


def test_an_agent_that_is_killed_takes_no_messenger_along(lab, web, messengers):
    """The next attempt tells what is left to tell, and nothing twice."""
    spec = lab.chain(args="steps: 400", more="notify: {to: {json: HOOK}, on: [started, ended]}\n", hold=399)
    run = lab.submit(spec, env={"HOOK": web.address})
    lab.until_step(run, 2)
    web.wait_for(1)
    lab.until("it is noted", lambda: lab.events(run, "notified"))
    assert kill(lab.agent_pid(run, 0), signal.SIGKILL)
    lab.until("another attempt", (lab.run_dir(run) / "attempts" / "0002" / "coordinator.json").exists)
    lab.launch("cancel", run)
    web.wait_for(2)
    lab.until("its messenger has left", lambda: not messengers(run))
    assert [(one["kind"], one["state"]) for one in web.taken][1:] == [("ended", "cancelled")]


def test_a_killed_supervisor_leaves_no_messenger(lab, web, messengers):
    spec = lab.chain(args="steps: 400", more="notify: {to: {json: HOOK}}\n", hold=399)
    run = lab.submit(spec, env={"HOOK": web.address})
    lab.until_step(run, 1)
    lab.until("its messenger is there", lambda: messengers(run))
    handle = json.loads((lab.run_dir(run) / "attempts" / "0001" / "handle.json").read_text())
    assert kill(handle["keeper"]["pid"], signal.SIGKILL)
    lab.until("its messenger has left", lambda: not messengers(run))
    lab.launch("cancel", run)


def test_a_test_message(lab, web, messengers, tmp_path):
    spec = spec_of(lab, REPORTS)
    env = {"HOOK": web.address}
    assert lab.launch("notify", spec, env=env).stdout == "json 127.0.0.1: started, restarted, ended\n"
    assert lab.launch("notify", "--test", spec, env=env).stdout == "json 127.0.0.1: delivered\n"
    assert [one["kind"] for one in web.taken] == ["test"]
    web.answers.append(403)
    assert lab.launch("notify", "--test", spec, env=env, check=5).stdout == "json 127.0.0.1: it answers 403 Forbidden\n"
    assert "nobody is to hear" in lab.launch("notify", "--test", check=2).stderr
    own = tmp_path / "config" / "launch" / "notify.yaml"
    own.parent.mkdir(parents=True)
    own.touch(0o600)
    own.write_text(f"to: {{slack: '{web.address}'}}\n")
    assert lab.launch("notify", "--test").stdout == "slack 127.0.0.1: delivered\n"
    assert "HOOK is not set" in lab.launch("submit", spec, check=2).stderr
