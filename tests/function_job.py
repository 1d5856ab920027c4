"""A program of a user's that submits a function, wherever its runs go."""

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
run = launcher.submit(shares, [1, 2, 3], resources=resources, on=sys.argv[1])
found = [run.id, run.result()]
empty = launcher.submit(shares, [], resources=resources, recovery={"user_error": 0}, on=sys.argv[1])
try:
    empty.result()
except ValueError as error:
    found.append([str(error), error.__notes__[0].splitlines()[-1]])
print(json.dumps(found))
"""


def check_function(desk, cluster):
    """Submit a function with arguments on two nodes; return what it returned on the first rank, and its run."""
    desk.script("program.py", PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py", cluster],
        cwd=desk.project, env=desk.env, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run, found, raised = json.loads(done.stdout)
    assert (found["rank"], found["mine"]) == (0, [1, 3])
    assert raised == ["nothing to do", "ValueError: nothing to do"]
    return run, found
