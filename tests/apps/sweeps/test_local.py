"""Sweeps on this machine: begun, watched, stopped, resumed, enlarged, and conducted anew where the conductor died."""

import json
import os
import signal

import pytest

import launcher
from launcher.errors import NoSuchRun, Refused

pytestmark = pytest.mark.nightly

SCRIPT = """
import argparse, json, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
parser.add_argument("--held")
x, held = parser.parse_args().x, parser.parse_args().held
with open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1) as wire:
    wire.write(json.dumps({"step": 1, "loss": (x - 2) ** 2}) + "\\n")
    while held and x > 1 and os.path.exists(held):
        time.sleep(0.02)
    if x == 3:
        raise KeyError("three")
    wire.write(json.dumps({"step": 2, "loss": (x - 2) ** 2}) + "\\n")
"""
SPEC = """
name: tiny
run: {{script: t.py, preload: [], args: {{held: {held}}}}}
resources: {{ranks_per_node: 1}}
recovery: {{user_error: 0}}
sweep:
  search: grid
  metric: loss
  mode: min
  parallel: {parallel}
  space:
    run.args.x: {points}
"""


def spec_of(lab, points, parallel=2):
    lab.script("t.py", SCRIPT)
    lab.held.write_text("")
    return lab.spec(SPEC.format(held=lab.held, points=points, parallel=parallel))


def status_of(lab, sweep):
    return json.loads(lab.launch("sweep", "status", sweep, "--json").stdout)["status"]


def until_over(lab, sweep):
    return lab.until("the end", lambda: (found := status_of(lab, sweep))["state"] != "running" and found)


def runs_of(lab):
    return sorted(path.name for path in (lab.project / ".launch" / "runs").glob("tiny-*"))


@pytest.mark.daily
def test_from_its_beginning_to_its_end(lab):
    spec = spec_of(lab, [0, 1, 2, 3])
    lab.let_go()
    done = lab.launch("sweep", spec, "--follow")
    sweep = done.stdout.splitlines()[0]
    failed = next(line for line in done.stdout.splitlines() if "failed" in line)
    assert failed.startswith("trial 3 failed: x 3 (") and "KeyError: 'three'" in failed
    assert f"{sweep} succeeded: all 4 trials are done (3 complete, 1 failed of 4)" in done.stderr
    assert runs_of(lab) == [f"{sweep}-t{number:04d}" for number in range(4)]
    best = json.loads(lab.launch("sweep", "best", "--json").stdout)
    assert (best["number"], best["value"], best["params"]) == (2, 0.0, {"run.args.x": 2})
    assert lab.status(best["run"])["state"] == "succeeded"
    assert lab.launch("sweep", "best").stderr == f"what it has said: launch logs {best['run']}\n", "no checkpoint"
    assert lab.launch("sweep", "status").stdout.splitlines()[1].split() == [
        "TRIAL",
        "STATE",
        "VALUE",
        "STEP",
        "X",
        "RUN",
        "WHY",
    ]
    shown = lab.launch("sweep", "plot").stdout
    assert "value by trial; the best is 0, of trial 2" in shown
    assert "how much each option explains\nx  100%" in shown
    told = json.loads(lab.launch("sweep", "plot", "--json").stdout)
    assert (len(told["values"]), told["importances"]) == (3, {"run.args.x": 1.0})
    assert lab.launch("sweep", "plot", "-o", "sweep.html", "--kind", "history").stdout == "sweep.html\n"
    assert (lab.project / "sweep.html").read_text().count("<svg") == 1
    assert "go with plot" in lab.launch("sweep", "status", "-o", "x.html", check=2).stderr
    assert "nothing to stop" in lab.launch("sweep", "stop", check=4).stderr
    assert "there are 4 points" in lab.launch("sweep", "add", "--trials", "1", check=2).stderr
    lab.until("the conductor to leave", lambda: not conductor(lab, sweep))


def conductor(lab, sweep):
    """Return the conductor's process id while it lives."""
    folder = lab.project / ".launch" / "runs" / ".sweeps" / sweep
    pids = lab.processes(below=folder)
    return pids[0] if pids else None


def test_stopped_and_resumed(lab):
    sweep = lab.launch("sweep", spec_of(lab, [0, 2, 4])).stdout.strip()
    lab.until("a run that waits", lambda: running(lab, sweep, 1) and running(lab, sweep, 2))
    assert json.loads(lab.launch("sweep", "stop", sweep, "--json").stdout)["status"]["state"] == "stopped"
    lab.until("all of it to leave", lambda: not lab.processes())
    assert [one["state"] for one in status_of(lab, sweep)["trials"]] == ["complete", "running", "running"]
    lab.let_go()
    lab.launch("sweep", "resume", sweep)
    found = until_over(lab, sweep)
    assert (found["state"], [one["value"] for one in found["trials"]]) == ("succeeded", [4.0, 0.0, 4.0])
    assert [lab.status(f"{sweep}-t{number:04d}")["attempt"] for number in range(3)] == [1, 2, 2]


def running(lab, sweep, number):
    path = lab.run_dir(f"{sweep}-t{number:04d}") / "state.json"
    return path.exists() and json.loads(path.read_text())["state"] == "running"


def test_a_conductor_that_was_killed(lab):
    sweep = lab.launch("sweep", spec_of(lab, [0, 2, 4, 5])).stdout.strip()
    lab.until("a run that waits", lambda: running(lab, sweep, 1) and running(lab, sweep, 2))
    os.kill(conductor(lab, sweep), signal.SIGKILL)
    found = until_over(lab, sweep)
    assert found["state"] == "lost"
    assert f"launch sweep resume {sweep}" in found["message"]
    lab.let_go()
    lab.launch("sweep", "resume", sweep)
    found = until_over(lab, sweep)
    assert (found["state"], [one["value"] for one in found["trials"]]) == ("succeeded", [4.0, 0.0, 4.0, 9.0])
    assert runs_of(lab) == [f"{sweep}-t{number:04d}" for number in range(4)]
    assert all(lab.status(run)["attempt"] == 1 for run in runs_of(lab))


def test_more_trials_and_other_code_meanwhile(lab):
    lab.script("t.py", SCRIPT)
    lab.held.write_text("")
    text = SPEC.format(held="''", points="{from: 0.0, to: 1.0}", parallel=2).replace("grid", "random\n  trials: 2")
    sweep = lab.launch("sweep", lab.spec(text), "--set", "sweep.seed=5").stdout.strip()
    (lab.project / "t.py").write_text("raise SystemExit(9)")  # every trial is of the code as it was
    first = until_over(lab, sweep)
    assert json.loads(lab.launch("sweep", "add", sweep, "--trials", "2", "--json").stdout)["wanted"] == 4
    found = until_over(lab, sweep)
    assert [one["state"] for one in found["trials"]] == ["complete"] * 4
    assert found["trials"][:2] == first["trials"]


def test_from_python_with_runs_elsewhere(lab, tmp_path, monkeypatch):
    for name, value in {**lab.env, "LAUNCH_RUNS": str(tmp_path / "elsewhere")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(lab.project)
    with pytest.raises(NoSuchRun, match="no sweep yet"):
        launcher.Sweep.get("last")
    spec = spec_of(lab, [0, 1])
    lab.let_go()
    sweep = launcher.sweep(spec, overrides=["run.args.held=''"])
    assert launcher.Sweep.get("last") == launcher.Sweep.get(sweep.id[:6]) == sweep
    assert sweep.wait(150).state == "succeeded"
    assert sweep.best().params == {"run.args.x": 1}
    assert launcher.Run.get(sweep.best().run).path.parent == tmp_path / "elsewhere"
    assert runs_of(lab) == []
    with pytest.raises(Refused, match="nothing to resume"):
        sweep.resume()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("run.args.x", "run.argz.x"), "sweep.space.run.argz.x: unknown option"),
        (("search: grid", "search: tpe"), "sweep.trials: missing: tpe has no end of its own"),
        (("run.args.x: [1]", "resources.nodes: [1, two]"), "--set resources.nodes: expected an integer or a range"),
        (("t.py", "gone.py"), "gone.py"),
        (("[1]", "{values: [1], when: run.args.y == 2}"), "nothing is written at run.args.y"),
    ],
)
def test_what_cannot_work_begins_nothing(lab, change, said):
    name = spec_of(lab, [1])
    text = (lab.project / name).read_text()
    assert change[0] in text
    done = lab.launch("sweep", lab.spec(text.replace(*change)), check=2)
    assert said in done.stderr
    assert runs_of(lab) == []
    assert "there is no sweep yet" in lab.launch("sweep", "status", check=3).stderr
