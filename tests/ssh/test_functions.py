"""A Python function as a job on hosts with a disk each: its arguments go there, and its result comes home."""

import json
import subprocess
import sys

PROGRAM = """
import json, os, sys
import launcher

def shares(numbers):
    if not numbers:
        raise ValueError("nothing to do")
    return {"rank": int(os.environ["RANK"]), "mine": numbers[int(os.environ["RANK"])::2], "folder": os.getcwd()}

resources = {"nodes": 2, "ranks_per_node": 1}
run = launcher.submit(shares, [1, 2, 3], resources=resources, on="pool")
found = [run.id, run.result()]
empty = launcher.submit(shares, [], resources=resources, recovery={"user_error": 0}, on="pool")
try:
    empty.result()
except ValueError as error:
    found.append([str(error), error.__notes__[0].splitlines()[-1]])
print(json.dumps(found))
"""


def test_a_function_goes_to_hosts_and_its_result_comes_home(desk):
    desk.script("program.py", PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=desk.project, env=desk.env, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    run, found, raised = json.loads(done.stdout)
    assert (found["rank"], found["mine"]) == (0, [1, 3])
    assert found["folder"] != str(desk.run_dir(run) / "code"), "it ran on a host's own disk"
    assert raised == ["nothing to do", "ValueError: nothing to do"]
