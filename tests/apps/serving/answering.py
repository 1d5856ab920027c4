"""A server of a service whose `predict` can be held, made to fail and made to die, in a thread of the test."""

import asyncio
import http.client
import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from launcher.apps.serving.engine import ServingOptions
from launcher.apps.serving.server import serve
from launcher.apps.serving.what_is_served import Served
from launcher.apps.web.listening import listen
from tests.waits import until

BOUND_S = 120.0
TOKEN = "t" * 32
APP = """
import json, os, signal, time
from pathlib import Path
from trainer.serving import Rejected

HERE = Path(__file__).parent
INPUT = {
    "type": "object",
    "required": ["text"],
    "properties": {
        "text": {"type": "string", "minLength": 1},
        "do": {"type": "string", "enum": ["answer", "raise", "reject", "die", "hold"], "default": "answer"},
    },
}
EXAMPLE = {"text": "warm", "do": "answer"}


def load(checkpoint):
    if (checkpoint / "damaged").exists():
        raise ValueError("this one is damaged")
    return checkpoint.name


def predict(model, inputs):
    with open(HERE / "batches", "a") as file:
        file.write(json.dumps([one["text"] for one in inputs]) + "\\n")
    wanted = {one["do"] for one in inputs}
    while "hold" in wanted and not (HERE / "go").exists():
        time.sleep(0.002)
    if "die" in wanted:
        os.kill(os.getpid(), signal.SIGKILL)
    if "raise" in wanted:
        raise RuntimeError("no answer to this")
    if "reject" in wanted:
        raise Rejected("text", "not this one")
    return [{"said": one["text"].upper(), "by": os.getpid(), "batch": len(inputs), "model": model} for one in inputs]
"""


class Answered:
    def __init__(self, response):
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    def json(self):
        return json.loads(self.body)


class OpenServer:
    """A running server, with calls for a client and the notes that its service has made."""

    def __init__(self, folder, port, engine, token):
        self.folder, self.port, self.engine, self.token = folder, port, engine, token

    def request(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND_S)
        try:
            known = {"authorization": f"Bearer {self.token}"} if self.token else {}
            told = known | {name.replace("_", "-"): text for name, text in headers.items()}
            connection.request(method, path, body, told)
            return Answered(connection.getresponse())
        finally:
            connection.close()

    def get(self, path, **headers):
        return self.request("GET", path, **headers)

    def post(self, path, value, **headers):
        body = value if isinstance(value, bytes) else json.dumps(value)
        return self.request("POST", path, body, **{"content_type": "application/json", **headers})

    def ask(self, text, do="answer"):
        return self.post("/predict", {"text": text, "do": do})

    @property
    def batches(self):
        path = self.folder / "batches"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def pids(self):
        return self.engine.pids

    def let_go(self):
        (self.folder / "go").touch()


def checkpoint(folder, step):
    """The server looks at names alone; what is in it is the service's affair."""
    path = folder / "checkpoints" / f"step-{step:08d}"
    path.mkdir(parents=True)
    return path


@contextmanager
def open_server(folder, *, app=APP, token=TOKEN, most_bytes=1 << 20, **options):
    """Serve the folder until the block ends; check afterwards that none of the server's processes is left."""
    (folder / "app.py").write_text(app)
    if not (folder / "checkpoints").exists():
        checkpoint(folder, 1)
    env = {name: value for name, value in os.environ.items() if not name.startswith("LAUNCH_")}
    served = Served(
        "mine-abcd", str(folder / "app.py"), (), sys.executable, str(folder), env, folder / "checkpoints", best=False
    )
    loop, began = asyncio.new_event_loop(), threading.Event()
    engines, errors = [], []

    def run(listening):
        def ready(engine):
            engines.append(engine)
            began.set()

        asyncio.set_event_loop(loop)
        options_ = ServingOptions(**{"workers": 1, "timeout_s": BOUND_S, **options})
        task = loop.create_task(
            serve(listening, served, options_, token=token, most_bytes=most_bytes, ready=ready, say=print)
        )
        engines.append(task)
        try:
            with suppress(asyncio.CancelledError):
                loop.run_until_complete(task)
        except Exception as error:
            errors.append(error)
        began.set()

    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=run, args=(listening,))
        thread.start()
        assert began.wait(BOUND_S)
        try:
            if errors:
                raise errors[0]
            yield OpenServer(folder, listening.getsockname()[1], engines[1], token)
        finally:
            loop.call_soon_threadsafe(engines[0].cancel)
            thread.join(BOUND_S)
            loop.close()
    until("the end of all processes", lambda: not processes_of(folder))


def processes_of(folder):
    """The pids of the processes of a server whose service lies there."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.readlink(path / "cwd") == str(folder) and b"trainer.serving" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


def at_once(calls):
    """Send all requests at the same time and return the answers."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(*call) for call in calls]]


def kill(pid):
    os.kill(pid, signal.SIGKILL)
