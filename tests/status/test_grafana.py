"""The dashboard that ships, asked of a real Prometheus that has read what launch tells it."""

import json
import re
import subprocess
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import msgspec
import pytest

from launcher.cli.shipped import shipped
from launcher.run.records import GpuLoad, NodeLoad, NodeState, RankState
from launcher.status.derive import Restarts, derive
from launcher.status.facts import read_facts
from launcher.status.openmetrics import exposition_now
from tests.waits import until

BOUND_S = 120.0
CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs: [{{job_name: launch, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}]
"""


@pytest.fixture
def metrics_text(folder):
    """Return runs with everything that metrics can show."""
    folder.trained(for_s=3000, starting_s=1000).running(metrics={"loss": 0.25})
    load = NodeLoad(0, 1.0, 8, 1.5, 20, 40, gpus=(GpuLoad(3, memory=5, memory_total=10, busy=25),))
    ranks = (RankState(0, 0, 98, "running", step=12), RankState(1, 0, 99, "running", step=10))
    status = msgspec.structs.replace(
        derive(read_facts(folder.path)), loads=(load,), nodes=(NodeState(0, "10.0.0.1", "up"),), ranks=ranks,
        step=40, total_steps=100, rate=2.0, eta_s=30.0, checkpoint=30, restarts=Restarts(1, {"hang": 1}),
    )  # fmt: skip
    return exposition_now([status], time.time())


def queries():
    """Return (panel's title, query) of the dashboard's queries, with variables replaced by `.*`."""
    dashboard = json.loads((shipped("templates") / "grafana.json").read_text())
    panels = {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in dashboard["panels"]}
    return {(title, re.sub(r"\$(run|metric)\b", ".*", question)) for title, asks in panels.items() for question in asks}


def test_all_that_the_dashboard_asks_for_is_told(metrics_text):
    named = {name for _, question in queries() for name in re.findall(r"\blaunch_[a-z_]+", question)}
    samples = {line.partition("{")[0] for line in metrics_text.splitlines() if not line.startswith("#")}
    assert named and named <= samples


@pytest.mark.needs("prometheus")
def test_a_prometheus_that_has_read_it_answers_the_dashboard(metrics_text, tmp_path):
    with serving(metrics_text) as port, prometheus(tmp_path, port) as ask:
        until("the first sample", lambda: ask("up == 1"))
        unanswered = [title for title, question in queries() if not ask(question) and "increase(" not in question]
        assert not unanswered
        assert ask("launch_run_goodput_ratio")[0]["value"][1].startswith("0.7")


@contextmanager
def serving(text):
    class Telling(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Telling) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@contextmanager
def prometheus(folder, port):
    """A function that asks it, and gives the samples."""
    (folder / "prometheus.yml").write_text(CONFIG.format(port=port))
    places = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(["prometheus", *places, "--web.listen-address=127.0.0.1:0"], stderr=log)
    try:
        address = until("its address", lambda: address_of(server.pid))
        until("its readiness", lambda: is_ready(address))

        def ask(question):
            with urlopen(f"http://{address}/api/v1/query?{urlencode({'query': question})}", timeout=BOUND_S) as answer:
                return json.load(answer)["data"]["result"]

        yield ask
    finally:
        server.terminate()
        server.wait(BOUND_S)


def is_ready(address):
    """Wait until Grafana answers; it listens and answers 503 before it has opened its database."""
    try:
        with urlopen(f"http://{address}/-/ready", timeout=BOUND_S) as answer:
            return answer.status == 200
    except HTTPError:
        return False


def address_of(pid):
    found = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout.splitlines()
    return next((line.split()[3] for line in found if f"pid={pid}," in line), None)
