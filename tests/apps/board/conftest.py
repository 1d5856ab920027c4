import http.client
import json
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from run_folder import RunFolder

from launcher.apps.board.server import Board, BoardServer
from launcher.apps.web.keys import origin, page_address
from launcher.apps.web.listening import listen
from launcher.run import registry

BOUND_S = 60.0


class Answer:
    def __init__(self, response):
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    def json(self):
        return json.loads(self.body)


class OpenBoard:
    """A board on loopback, served by a thread of this process, and what a browser would say to it."""

    def __init__(self, board, port, server):
        self.board, self.port, self._server = board, port, server
        self.address = page_address(origin("127.0.0.1", port), board.keys)

    def pages(self):
        """Return the open pages that receive events."""
        return [*self._server._feed._pages]

    def end(self):
        self._server.stop()

    def ask(self, path, method="GET", body=None, **headers):
        """Send a request without the board's key, and return the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND_S)
        connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
        try:
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def get(self, path, **headers):
        return self.ask(path, Authorization=f"Bearer {self.board.keys.token}", **headers)

    def post(self, path, wish, **headers):
        keys = {"Authorization": f"Bearer {self.board.keys.token}", "X-Launch-Token": self.board.keys.post}
        return self.ask(path, "POST", json.dumps(wish), **(keys | headers))

    def rows(self, such):
        """The table, as soon as it is such."""
        bound = time.monotonic() + BOUND_S
        while not such(rows := self.get("/api/runs").json()["runs"]):
            assert time.monotonic() < bound, rows
            time.sleep(0.05)
        return rows

    @contextmanager
    def live(self, run=""):
        """Yield the events that a page receives, as (event, data)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND_S)
        connection.request("GET", f"/api/live?run={run}", headers={"Authorization": f"Bearer {self.board.keys.token}"})
        try:
            yield events(connection.getresponse())
        finally:
            connection.close()


def events(response):
    name = None
    while line := response.readline():
        key, _, text = line.decode().rstrip("\n").partition(": ")
        if key == "event":
            name = text
        elif key == "data":
            yield name, json.loads(text)


def until(told, wanted, such=lambda data: True):
    """The first event of this name that is so."""
    return next(data for name, data in told if name == wanted and such(data))


@contextmanager
def opened(limits=None, tls=None, **options):
    board = Board(**options)
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    server = BoardServer(listening, "127.0.0.1", board, limits=limits, tls=tls)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield OpenBoard(board, port, server)
    finally:
        server.stop()
        thread.join(BOUND_S)
    assert not thread.is_alive()


class House:
    """A user's runs."""

    def __init__(self, root):
        self.root = root

    def run(self, name="job-abcd"):
        folder = RunFolder(self.root / "runs" / name)
        registry.register(name, folder.path, fsync=False)
        return folder


@pytest.fixture
def house(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return House(tmp_path)


@pytest.fixture
def board(house, request):
    with opened(**getattr(request, "param", {})) as one:
        yield one
