"""Cancel: graceful first, then sure. Nothing of the run survives, no stranger is touched."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from lab import kill

pytestmark = pytest.mark.nightly


def descendants(pid):
    found, stack = [], [pid]
    while stack:
        out = subprocess.run(["ps", "-o", "pid=", "--ppid", str(stack.pop())], capture_output=True, text=True)
        children = [int(word) for word in out.stdout.split()]
        found += children
        stack += children
    return found


@pytest.mark.daily
def test_nothing_is_left_of_stubborn_ranks(lab):
    lab.script("stay.py")
    spec = "name: stay\nrun: {script: stay.py}\nresources: {ranks_per_node: 2}\nrecovery: {grace: 1s}\n"
    run = lab.submit(lab.spec(spec))
    lab.until_step(run, 3)
    supervisor = json.loads((lab.run_dir(run) / "attempts" / "0001" / "handle.json").read_text())["keeper"]["pid"]
    everyone = [supervisor, *descendants(supervisor)]
    started = subprocess.run(["ps", "-o", "args=", *map(str, everyone)], capture_output=True, text=True).stdout
    assert all(started.count(f"sleep {seconds}") == 2 for seconds in (601, 602)), started
    assert len(everyone) >= 2 + 2 * 5, started
    stranger = subprocess.Popen(["sleep", "600"])
    began = time.monotonic()
    report = lab.launch("cancel", run)
    assert time.monotonic() - began < 1 + 10 + 30  # what a starved command itself takes
    left = [pid for pid in everyone if os.path.exists(f"/proc/{pid}") and state_of(pid) not in "ZX"]
    assert left == []
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()
    assert lab.status(run)["state"] == "cancelled"
    assert report.stdout or report.stderr
    again = lab.launch("cancel", run)
    assert "already" in (again.stdout + again.stderr) or "nothing" in (again.stdout + again.stderr)
    assert lab.status(run)["state"] == "cancelled"
    lab.launch("wait", run, check=20)


def state_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def test_ranks_are_asked_first_and_may_save(lab):
    lab.script(
        "save.py",
        """
import json, os, signal, sys, time
wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)
def save(*_):
    open("saved-" + os.environ["RANK"], "w").write("x")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
step = 0
while True:
    step += 1
    wire.write(json.dumps({"step": step}) + "\\n")
    time.sleep(0.05)
""",
    )
    run = lab.submit(lab.spec("name: save\nrun:\n  script: save.py\nresources:\n  ranks_per_node: 2\n"))
    lab.until_step(run, 2)
    lab.until("handlers of both", lambda: all(rank["step"] for rank in lab.read_state(run)["ranks"]))
    lab.launch("cancel", run)
    assert sorted(path.name for path in (lab.run_dir(run) / "code").glob("saved-*")) == ["saved-0", "saved-1"]


def test_while_the_agents_are_still_starting(lab):
    run = lab.submit(lab.chain(args="steps: 100000", resources="nodes: 3\nranks_per_node: 1"))
    lab.launch("cancel", run)
    assert lab.status(run)["state"] == "cancelled"
    assert lab.processes() == []


def test_with_the_supervisor_killed_before(lab):
    run = lab.submit(lab.chain(args="steps: 5000"))
    lab.until_step(run, 2)
    assert kill(json.loads((lab.run_dir(run) / "attempts" / "0001" / "handle.json").read_text())["keeper"]["pid"])
    lab.launch("cancel", run)
    assert lab.processes() == []
    assert lab.status(run)["state"] == "cancelled"


def test_with_a_frozen_agent(lab):
    run = lab.submit(lab.chain(args="steps: 5000", more="recovery:\n  grace: 1s\n"))
    lab.until_step(run, 2)
    assert kill(lab.agent_pid(run, 0), signal.SIGSTOP)
    lab.launch("cancel", run)
    assert lab.processes() == []
    assert lab.status(run)["state"] == "cancelled"


@pytest.mark.daily
def test_a_pid_that_was_given_to_a_stranger_is_left_alone(lab):
    run = lab.submit(lab.chain(args="steps: 3"))
    lab.wait(run)
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    handle = lab.run_dir(run) / "attempts" / "0001" / "handle.json"
    record = json.loads(handle.read_text())
    record["keeper"]["pid"] = stranger.pid
    handle.write_text(json.dumps(record))
    end = handle.with_name("exit.json")
    end.unlink()
    lab.launch("cancel", run)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()
