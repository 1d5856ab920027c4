"""`launch serve` as a user starts it: the address answers, and SIGTERM ends all of it."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "serving"))

from answering import processes_of, until

from tests.docs.blocks import DOCS, block

pytestmark = pytest.mark.dealt(2)

MINE = """
import torch
from trainer.checkpoint import Checkpointer

torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
checkpoints = Checkpointer("checkpoints", model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
checkpoints.load()
checkpoints.finish(3)
print(model(torch.ones(4)).item())
"""


def asked(address, value):
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/predict", json.dumps(value).encode(), head)
    with urllib.request.urlopen(request, timeout=100) as answer:
        return json.loads(answer.read()), answer.headers["x-launch-step"]


def test_a_model_of_ones_own_as_the_page_shows_it(lab):
    """Trained by a script with a `Checkpointer`, and served by the file of the page."""
    lab.script("mine.py", MINE)
    run = lab.submit(lab.spec("name: mine\nrun:\n  script: mine.py\nresources:\n  ranks_per_node: 1\n"))
    lab.wait(run)
    expected = float(lab.launch("logs", run).stdout.split()[-1])
    (lab.project / "serving.py").write_text(block(DOCS / "serving.md", "python", "def load"))
    command = [sys.executable, "-m", "launcher.cli.main", "serve", run, "--app", "serving.py", "--port", "0"]
    with subprocess.Popen(
        command, env=lab.env, cwd=lab.project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            address = server.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), server.stderr.read()
            answer, step = asked(address, {"x": [1, 1, 1, 1]})
            assert answer["y"] == pytest.approx(expected, abs=1e-4)
            assert step == "3"
            workers = processes_of(os.path.realpath(lab.run_dir(run) / "code"))
            assert len(workers) == 3, "a nursery and two workers"
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(60) in (0, -signal.SIGTERM)
        said = server.stderr.read()
    assert f"{run}: 2 workers have the checkpoint of step 3" in said
    assert "Traceback" not in said
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "the end of all processes")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "expected --app: the run's own program is no module that says how it is asked"),
        (("--app", "nothing.py"), "--app: expected a Python file, found none at nothing.py"),
        (("--app", "app.py", "--best"), "has kept no checkpoint apart as the best"),
        (("--app", "app.py", "--wait", "5"), "expected a duration such as"),
        (("--app", "app.py", "--port", "70000"), "expected a port, 0 to 65535, got '70000'"),
        (("--app", "app.py", "--workers", "0"), "expected at least 1"),
        (("--app", "app.py", "--token-file", "app.py"), "--token-file: expected at least 16 characters"),
        (("--app", "app.py", "--checkpoint", "nowhere"), "has no checkpoints here"),
    ],
)
def test_what_cannot_be_served_is_said_before_anything_is_started(desk, words, why):
    folder = desk.run().succeeded()
    (folder.path / "code").mkdir(exist_ok=True)
    (folder.path / "checkpoints").mkdir(exist_ok=True)
    (desk.root / "app.py").write_text("")
    said = desk.launch("serve", "job-abcd", *words, check=None)
    assert said.returncode in (2, 4)
    assert why in said.stderr
