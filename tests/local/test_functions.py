"""`launcher.submit(FUNCTION)`: real runs on this machine, started by a program of the user's."""

import json
import subprocess
import sys

WORK = """
import os
import json

class Diverged(Exception):
    pass

def train(lr, *, steps=3, data=None):
    if lr > 1:
        raise ValueError("diverged", lr)
    if data == "own":
        raise Diverged(lr)
    return {"lr": lr, "rank": int(os.environ["RANK"]), "world": int(os.environ["WORLD_SIZE"]), "data": data}
"""
PROGRAM = """
import json, os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import launcher, work
from launcher.errors import LaunchError

FACTOR = 3

def here(number):
    return number * FACTOR

class Thing:
    size = 5

found = {}

def note(name, run, **how):
    found[name] = {"run": run.id, "description": run.about().description}
    try:
        found[name]["result"] = run.result(**how)
    except Exception as error:
        said = [type(error).__name__, str(error), getattr(error, "__notes__", []), getattr(error, "exit_code", None)]
        found[name]["error"] = said

once = {"recovery": {"user_error": 0}}
runs = {
    "imported": launcher.submit(work.train, 0.1, data=(1, b"x", {2: None}), resources={"ranks_per_node": 2}),
    "own": launcher.submit(here, 14, name="mine", env={"A": "b"}),
    "raised": launcher.submit(work.train, 2.0, **once),
    "own exception": launcher.submit(work.train, 0.5, data="own", **once),
    "object": launcher.submit(lambda: Thing()),
    "exit": launcher.submit(sys.exit, 3, **once),
}
for name, run in runs.items():
    note(name, run)
try:
    runs["own exception"].result(unpickle=True)
except work.Diverged as error:
    found["unpickled"] = [error.args, runs["object"].result(unpickle=True).size]
print(json.dumps(found, default=str))
"""


def test_functions_as_jobs(lab):
    (lab.project / "lib").mkdir()
    (lab.project / "lib" / "work.py").write_text(WORK)
    lab.script("program.py", PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=lab.project, env=lab.env, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    imported, own = found["imported"], found["own"]
    assert imported["description"] == "train(0.1, data=…), imported from work"
    assert imported["result"] == {"lr": 0.1, "rank": 0, "world": 2, "data": [1, "b'x'", {"2": None}]}
    assert (own["result"], own["description"]) == (42, "here(14), the function is pickled by cloudpickle")
    assert own["run"].startswith("mine-")
    plan = json.loads((lab.run_dir(own["run"]) / "plan.json").read_text())
    assert plan["spec"]["env"] == {"A": "b"}

    kind, text, [note], _ = found["raised"]["error"]
    assert (kind, text) == ("ValueError", "('diverged', 2.0)")
    assert note.startswith(f"In {found['raised']['run']}:\nTraceback") and 'raise ValueError("diverged", lr)' in note
    kind, text, [note], code = found["own exception"]["error"]
    assert (kind, code) == ("RunFailed", 10)
    assert text.startswith(f"{found['own exception']['run']} has raised work.Diverged: 0.5") and "Traceback" in note
    kind, text, notes, _ = found["object"]["error"]
    assert kind == "Refused" and "has returned a __main__.Thing, which is pickled: loading it may run code" in text
    assert found["unpickled"] == [[0.5], 5]
    kind, text, notes, code = found["exit"]["error"]
    assert (kind, notes, code) == ("RunFailed", [], 10) and f"launch logs {found['exit']['run']}" in text

    refused = lab.launch("resume", imported["run"], "--code", check=4)
    assert "is of a function, which is frozen with its arguments" in refused.stderr
    lab.launch("resume", imported["run"], "--set", "resources.ranks_per_node=1")
    status = lab.wait(imported["run"])
    assert (status["attempt"], status["world_size"]) == (2, 1)
