"""A Python function as a Slurm job: what rank 0 of two nodes returns comes back."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.nightly

PROGRAM = """
import json, os
import launcher

def where(factor):
    return {"rank": int(os.environ["RANK"]), "ranks": factor * int(os.environ["WORLD_SIZE"])}

run = launcher.submit(where, 10, resources={"nodes": 2, "ranks_per_node": 1}, on="slurm")
print(json.dumps([run.id, run.result()]))
"""


def test_a_function_on_two_nodes(desk):
    desk.script("program.py", PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=desk.project, env=desk.env, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    run, found = json.loads(done.stdout)
    assert found == {"rank": 0, "ranks": 20}
    assert len(desk.status(run)["nodes"]) == 2
