"""The job that trains and then serves: its server is a run as any other, started again when it dies, and cancelled."""

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

BOUND_S = 200.0
TINY = [
    "steps.train.run.args.model=shufflenet_v2_x0_5", "steps.train.run.args.pixels=16",
    "steps.train.run.args.validation-images=20", "steps.train.run.args.max-steps=4",
    "steps.train.run.args.train-images=48", "steps.train.run.args.validate-every=2",
    "steps.train.run.args.batch-size=8", "steps.train.checkpoint.every=2 steps",
    "steps.train.resources.ranks_per_node=1",
]  # fmt: skip


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def answered(address, within_s=BOUND_S):
    """The health that it tells, as soon as it tells any."""
    bound = time.monotonic() + within_s
    while True:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=30) as answer:
                return json.loads(answer.read())
        except OSError:
            assert time.monotonic() < bound, f"nothing answers at {address}"
            time.sleep(0.2)


def pasted(line):
    """Return the answer to the line in the log, pasted into a shell."""
    return json.loads(subprocess.run(line, shell=True, capture_output=True, check=True).stdout)


@pytest.mark.timeout(600)
@pytest.mark.nightly
def test_it_trains_and_then_serves_until_it_is_cancelled(checkout):
    args = f'steps.serve.run.args=[serve, "${{steps.train.run}}", --best, --port, "{free_port()}", --workers, "1"]'
    graph = checkout.submit("jobs/serve_resnet.yaml", *(word for one in [*TINY, args] for word in ("--set", one)))
    run = f"{graph}-serve"
    bound = time.monotonic() + BOUND_S
    while not (found := re.search(r"serves (http://127\.0\.0\.1:\d+)$", checkout.status(run)["message"])):
        assert time.monotonic() < bound, checkout.launch("logs", graph).stdout
        time.sleep(0.5)
    address = found[1]
    health = answered(address)
    assert (health["run"], health["workers"]) == (f"{graph}-train", 1)
    curl = re.search(r"curl .*", checkout.launch("logs", run).stdout)[0]
    answer = pasted(curl)
    assert "label" in answer
    (rank,) = json.loads(checkout.launch("status", run, "--json").stdout)["ranks"]
    os.kill(rank["pid"], signal.SIGKILL)
    bound = time.monotonic() + BOUND_S
    while json.loads(checkout.launch("status", run, "--json").stdout)["restarts"]["total"] < 1:
        assert time.monotonic() < bound
        time.sleep(0.2)
    assert answered(address)["step"] == health["step"]
    assert pasted(curl) == answer, "with the token that it had"
    checkout.launch("cancel", graph)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{address}/health", timeout=30)
