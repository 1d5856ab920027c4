"""A model that is trained here, and served: by a command, or by a job of `launch serve --on`, wherever that runs."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from lab import all_pids, command, environment, parent

from tests.docs.blocks import DOCS, block

TRAIN = """
import torch
from trainer.checkpoint import Checkpointer

torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
checkpoints = Checkpointer("checkpoints", model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
checkpoints.load()
checkpoints.finish(3)
print(model(torch.ones(4)).item())
"""


def trained(desk, *words, train=TRAIN):
    """A run by a script with a `Checkpointer`, and what its model makes of ones. `words`: of its submit."""
    desk.script("mine.py", train)
    run = desk.submit(desk.spec("name: mine\nrun:\n  script: mine.py\nresources:\n  ranks_per_node: 1\n"), *words)
    desk.wait(run)
    return run, float(desk.launch("logs", run).stdout.split()[-1])


def write_app(desk):
    """The file of the page, which serves that model."""
    desk.script("serving.py", block(DOCS / "own-service.md", "python", "def load"))


def asked(address, token=""):
    """Return the job's answer to ones, and the step of its checkpoint."""
    head = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(f"{address}/predict", json.dumps({"x": [1, 1, 1, 1]}).encode(), head)
    with urllib.request.urlopen(request, timeout=100) as answer:
        return json.loads(answer.read())["y"], answer.headers["x-launch-step"]


def kill_the_rank(job):
    """Which is forked from what imports for all ranks, and starts a process that loads the model."""
    name = f"LAUNCH_RUN_ID={job}".encode()
    [loads] = [
        pid
        for pid in all_pids()
        if b"\0trainer.serving\0" in command(pid)
        and name in environment(pid)
        and b"\0trainer.serving\0" not in command(parent(pid))
    ]
    os.kill(parent(loads), signal.SIGKILL)


def train_on(folder):
    """A newer checkpoint of that model, as its training would save it in this folder; what it makes of ones."""
    code = TRAIN.replace('"checkpoints"', repr(str(folder))).replace("finish(3)", "finish(9)")
    code = code.replace("checkpoints.load()", "checkpoints.load()\ntorch.nn.init.ones_(model.weight)")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LAUNCH_")}
    found = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    return float(found.stdout.split()[-1])


def check_watched(desk, saves, run, expected, *words):
    """Check that the job answers with the newest checkpoint, and with a newer one once that is in `saves`, the run's
    folder.
    """
    said = desk.launch("serve", run, "--app", "serving", "--workers", "1", "--watch", *words)
    job, token = said.stdout.strip(), re.search(r"Bearer (\S+)", said.stderr)[1]

    def address():
        found = re.search(r"serves (http://\S+)", desk.status(job)["message"])
        return found[1] if found else None

    where = desk.until("its address", address)
    assert asked(where, token) == (pytest.approx(expected, abs=1e-4), "3")
    newer = train_on(saves)

    def takes_over():
        found = asked(where, token)
        return found if found[1] != "3" else None

    assert desk.until("the newer checkpoint", takes_over) == (pytest.approx(newer, abs=1e-4), "9")
    assert newer != pytest.approx(expected, abs=1e-3)
    desk.launch("cancel", job)


def check_served(desk, *words):
    """Check that the job answers a client with the token at the address in its status, also after a kill, until it is
    cancelled.
    """
    write_app(desk)  # a part of the run's code
    run, expected = trained(desk)
    said = desk.launch("serve", run, "--app", "serving", "--workers", "1", *words)
    job, token = said.stdout.strip(), re.search(r"Bearer (\S+)", said.stderr)[1]
    assert job.startswith("mine-serve-")

    def address():
        found = re.search(r"serves (http://\S+)", desk.status(job)["message"])
        return found[1] if found else None

    where = desk.until("its address", address)
    assert asked(where, token) == (pytest.approx(expected, abs=1e-4), "3")
    with pytest.raises(urllib.error.HTTPError) as refused:
        asked(where, "")
    with refused.value:  # what came with it holds a connection
        assert refused.value.code == 401
    kill_the_rank(job)
    restarts = lambda: json.loads(desk.launch("status", job, "--json").stdout)["restarts"]["total"]  # noqa: E731
    desk.until("a restart", restarts)

    def answers():
        try:
            return asked(desk.until("its address", address), token)
        except OSError:
            return None

    assert desk.until("another answer", answers) == (pytest.approx(expected, abs=1e-4), "3")
    desk.launch("cancel", job)
    with pytest.raises(urllib.error.URLError):
        asked(where, token)
