"""What a user has on any place, in Slurm jobs: a function, a sweep, `launch scale`, and a run that is followed."""

import json

import pytest
from function_job import check_function
from scaled_training import check_on_nodes

pytestmark = pytest.mark.nightly

TRIAL = """
import argparse, json, os
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
with open(os.environ["LAUNCH_PROGRESS"], "w") as wire:
    wire.write(json.dumps({"step": 1, "loss": (parser.parse_args().x - 2) ** 2}) + "\\n")
"""
SWEEP = """
name: tiny
run: {script: trial.py, preload: []}
resources: {ranks_per_node: 1, cpus_per_rank: 1}
sweep: {search: grid, metric: loss, mode: min, parallel: 2, space: {run.args.x: [0, 2]}}
"""


@pytest.mark.daily
def test_a_function_returns_its_result(desk, slurm):
    run, found = check_function(desk, "slurm")
    assert found["folder"] == str(desk.run_dir(run) / "code"), "all nodes see this disk"


@pytest.mark.daily
def test_follow_gives_the_exit_code_of_the_run(desk, slurm):
    desk.script("bad.py", "print('so long', flush=True)\nraise ValueError('bad shape')\n")
    spec = desk.spec("name: bad\nrun: {script: bad.py, preload: []}\nrecovery: {user_error: 0}\n")
    done = desk.launch("submit", spec, "--on", "slurm", "--follow", check=10)
    assert "so long" in done.stdout and "ValueError: bad shape" in done.stderr


@pytest.mark.daily
def test_a_sweep_ends_with_the_value_of_each_trial(desk, slurm):
    desk.script("trial.py", TRIAL)
    sweep = desk.launch("sweep", desk.spec(SWEEP, "sweep.yaml"), "--on", "slurm", "--follow").stdout.split()[0]
    status = json.loads(desk.launch("sweep", "status", sweep, "--json").stdout)["status"]
    assert (status["state"], [one["value"] for one in status["trials"]]) == ("succeeded", [4.0, 0.0])


@pytest.mark.timeout(600)
def test_scale_measures_one_node_and_two(desk, slurm):
    check_on_nodes(desk, "--on", "slurm")
