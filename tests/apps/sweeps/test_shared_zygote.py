"""Trials on one machine that share what they import: who is whose child, what is seen of which run, and who dies."""

import json
import os
import signal

import pytest
from lab import kill, parent

from launcher.run.identity import alive, process_id
from launcher.run.processes import tagged

pytestmark = pytest.mark.nightly

IMPORTED = """
import os
with open({log!r}, "a") as log:
    print(os.getpid(), file=log)
"""
SCRIPT = """
import argparse, json, os, sys, time
assert "imported" in sys.modules
assert not {"LAUNCH_AGENT_PLACE", "LAUNCH_TAG_ROOM", "LAUNCH_ZYGOTE"} & set(os.environ)
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
parser.add_argument("--held")
args = parser.parse_args()
with open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1) as wire:
    wire.write(json.dumps({"step": 1, "loss": args.x}) + "\\n")
    while args.x > 1 and os.path.exists(args.held):
        time.sleep(0.02)
    here = os.environ["LAUNCH_RUN_ID"], os.path.basename(os.getcwd()), os.environ.get("FLAVOUR"), os.getppid()
    print("here", *here, flush=True)
    wire.write(json.dumps({"step": 2, "loss": args.x}) + "\\n")
"""
SPEC = """
name: warm
run: {{script: t.py, preload: [imported], args: {{held: {held}}}}}
resources: {{ranks_per_node: 1}}
sweep: {{search: grid, metric: loss, mode: min, parallel: 2, space: {{{space}}}}}
"""


class Warmth:
    """A project whose ranks import a module that counts by how many processes it was imported."""

    def __init__(self, lab, tmp_path):
        self.lab, self.log = lab, tmp_path / "imports"
        folder = tmp_path / "modules"
        folder.mkdir()
        (folder / "imported.py").write_text(IMPORTED.format(log=str(self.log)))
        lab.env["PYTHONPATH"] = str(folder)
        lab.script("t.py", SCRIPT)
        lab.held.write_text("")

    def sweep(self, space, *words):
        return self.lab.launch("sweep", self.lab.spec(SPEC.format(held=self.lab.held, space=space)), *words)

    def importers(self):
        return [int(line) for line in self.log.read_text().split()]

    def said(self, run):
        line = next(line for line in self.lab.launch("logs", run).stdout.splitlines() if "here " in line)
        return line.split("here ", 1)[1].split()

    def zygote_log(self, run):
        return (self.lab.run_dir(run) / "attempts" / "0001" / "node-00" / "zygote.log").read_text()


@pytest.fixture
def warm(lab, tmp_path):
    return Warmth(lab, tmp_path)


def words_of(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().decode().split("\0")


def chain(lab, run):
    """A rank that runs, its zygote, its agent, and the supervisor."""
    rank = lab.status(run)["ranks"][0]["pid"]
    agent = parent(rank)
    return rank, lab.zygotes(agent)[0], agent, parent(agent)


def living(found):
    return [pid for pid in found if (process := process_id(pid)) is not None and alive(process)]


def running(lab, run):
    state = lab.run_dir(run) / "state.json"
    return state.exists() and lab.status(run)["state"] == "running" and bool(lab.status(run)["ranks"])


def test_one_import_for_all_and_each_run_is_as_it_would_be_alone(warm):
    warm.lab.let_go()
    done = warm.sweep("run.args.x: [0, 1, 2, 3, 4]", "--follow")
    sweep = done.stdout.splitlines()[0]
    assert "succeeded: all 5 trials are done (5 complete of 5)" in done.stderr
    assert len(warm.importers()) == 1
    runs = [f"{sweep}-t{number:04d}" for number in range(5)]
    assert [warm.said(run)[:3] for run in runs] == [[run, "code", "None"] for run in runs]
    assert len({warm.said(run)[3] for run in runs}) == 5, "a zygote serves the agent of one run"
    warm.lab.until("all to leave", lambda: not warm.lab.processes())


def test_an_environment_that_imports_might_see_is_no_shared_one(warm):
    warm.lab.let_go()
    done = warm.sweep("env.FLAVOUR: [sweet, sour]", "--follow", "--set", "run.args.x=0")
    sweep = done.stdout.splitlines()[0]
    assert "(2 complete of 2)" in done.stderr
    assert [warm.said(f"{sweep}-t000{number}")[2] for number in (0, 1)] == ["sweet", "sour"]
    assert len(warm.importers()) == 2
    assert warm.zygote_log(f"{sweep}-t0000") == ""
    assert "FLAVOUR is not what it was when modules were imported" in warm.zygote_log(f"{sweep}-t0001")


def test_whoever_is_killed_takes_its_own_along_and_nobody_elses(warm):
    lab = warm.lab
    sweep = warm.sweep("run.args.x: [2, 3, 4, 5]").stdout.strip()
    first, second, third = (f"{sweep}-t{number:04d}" for number in range(3))
    lab.until("two runs", lambda: running(lab, first) and running(lab, second))
    (shared,) = warm.importers()
    rank, zygote, agent, supervisor = chain(lab, first)
    assert words_of(agent)[3:4] == ["launcher.node"] and words_of(supervisor)[3:4] == ["launcher.supervisor"]
    assert {rank, zygote, agent, supervisor} <= set(tagged(str(lab.run_dir(first)), os.getuid()))
    assert shared not in tagged(str(lab.run_dir(first)), os.getuid())

    os.kill(agent, signal.SIGKILL)
    lab.until("its own to die", lambda: not living([rank, zygote, agent]))
    lab.until("another attempt", lambda: lab.status(first)["attempt"] == 2 and running(lab, first))
    os.kill(shared, signal.SIGKILL)
    others = chain(lab, second)
    lab.launch("cancel", second)
    assert lab.status(second)["state"] == "cancelled"
    assert not living(others) and not tagged(str(lab.run_dir(second)), os.getuid())

    lab.until("the next one", lambda: running(lab, third))
    assert len(warm.importers()) == 2, "one for the trials that follow; a standby became the next agent without one"
    lab.let_go()
    found = lab.until("the end", lambda: ended(lab, sweep))
    assert [one["state"] for one in found] == ["complete", "failed", "complete", "complete"]
    lab.until("all to leave", lambda: not lab.processes())


def test_the_zygote_of_a_trial_ends_a_stopped_agent_whose_watchdog_and_supervisor_are_stopped_too(warm):
    lab = warm.lab
    first = f"{warm.sweep('run.args.x: [2]').stdout.strip()}-t0000"
    lab.until("the run", lambda: running(lab, first))
    rank, _, agent, supervisor = chain(lab, first)
    frozen = [supervisor, agent, *lab.children(agent, b"launcher.node"), *lab.zygotes(agent)[1:]]  # its standby, too
    assert len(frozen) == 4 and all(kill(pid, signal.SIGSTOP) for pid in frozen)
    lab.until("the end of the rank", lambda: not living([rank]))
    kill(supervisor, signal.SIGCONT)
    lab.until("another attempt", lambda: lab.status(first)["attempt"] == 2 and running(lab, first))
    lab.let_go()
    lab.until("all to leave", lambda: not lab.processes())


def ended(lab, sweep):
    status = json.loads(lab.launch("sweep", "status", sweep, "--json").stdout)["status"]
    return status["trials"] if status["state"] != "running" else None
