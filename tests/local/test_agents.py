"""Test what a program does with `launch` alone: submit, wait for any run, choose, continue."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRAIN = """
import argparse, json, math, os
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
lr = parser.parse_args().lr
with open(os.environ["LAUNCH_PROGRESS"], "w") as wire:
    wire.write(json.dumps({"step": 1, "loss": (math.log10(lr) + 2) ** 2}) + chr(10))
assert lr < 2, "diverged"
print("trained with", lr)
open("weights", "w").write(str(lr))
"""
SPEC = """
name: climb
run: {script: train.py, args: {lr: 0.1}}
resources: {ranks_per_node: 1}
recovery: {user_error: 0}
"""


def test_a_script_climbs_to_a_better_learning_rate(lab):
    lab.script("train.py", TRAIN)
    shutil.copy(ROOT / "templates" / "hill_climb.py", lab.project)
    assert len((lab.project / "hill_climb.py").read_text().splitlines()) <= 60
    words = [sys.executable, "hill_climb.py", lab.spec(SPEC), "--lr", "1", "--rounds", "2"]
    env = {**lab.env, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(words, cwd=lab.project, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["lr"], round(found["loss"], 3)) == (0.0625, 0.633)
    runs = json.loads(lab.launch("status", "--json", "--tag", "hill-climb").stdout)
    assert sorted((one["args"], one["state"]) for one in runs) == [
        (["--lr", "0.0625"], "succeeded"), (["--lr", "0.25"], "succeeded"), (["--lr", "1"], "succeeded"),
        (["--lr", "4"], "failed"),
    ]  # fmt: skip
    assert next(one["run"] for one in runs if one["args"] == ["--lr", "0.0625"]) == found["run"]


def test_a_run_from_submit_to_its_outputs_by_json_alone(lab):
    lab.script("train.py", TRAIN)
    run = json.loads(lab.launch("submit", lab.spec(SPEC), "--hold", "--json").stdout)["run"]
    assert json.loads(lab.launch("release", run, "--json").stdout)[0]["run"] == run
    [over] = json.loads(lab.launch("wait", run, "--json").stdout)
    assert (over["state"], over["run_dir"]) == ("succeeded", str(lab.run_dir(run)))
    assert json.loads(lab.launch("fetch", run, "--outputs", "--json").stdout)["fetched"]
    again = json.loads(lab.launch("resume", run, "--set", "run.args.lr=4", "--json").stdout)
    assert again == {"run": run, "run_dir": str(lab.run_dir(run))}
    [over] = json.loads(lab.launch("wait", run, "--json", check=10).stdout)
    assert (over["attempt"], over["cause"]) == (2, "user_error")
    other = json.loads(lab.launch("run", "--detach", "--json", "train.py", "--lr", "0.1").stdout)["run"]
    assert json.loads(lab.launch("wait", run, other, "--any", "--json", check=10).stdout)[0]["run"] == run
    lab.wait(other)
