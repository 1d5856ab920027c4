"""The page is answered while the server is imported, to whom the server would answer it, with the same bytes."""

import contextlib
import http.client
import socket

import pytest

from launcher.board.address import Keys
from launcher.board.admission import Admission, Asked
from launcher.board.bundle import page_files
from launcher.board.door import Door, asked_in
from launcher.listening import listen
from tests.board.conftest import opened

KEYS = Keys()


def head(*lines):
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


def test_a_plain_request_is_read():
    asked = asked_in(head("GET /page/board.js?x=1 HTTP/1.1", "Host: localhost:1", "COOKIE:  a=b; c=d "))
    assert asked == Asked("GET", "/page/board.js", "x=1", {"host": "localhost:1", "cookie": "a=b; c=d"})


@pytest.mark.parametrize(
    "unsure",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: localhost",
        head("GET / HTTP/1.1", "Host: a", "Host: localhost"),
        head("GET / HTTP/1.1", "Host: localhost", "Content-Length: 3"),
        head("GET / HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked"),
        head("GET / HTTP/1.1", "Host: localhost", "Upgrade: websocket"),
        head("GET / HTTP/1.1", "Host : localhost"),
        head("GET / HTTP/1.1", " folded"),
        head("GET / HTTP/1.0", "Host: localhost"),
        head("GET http://localhost/ HTTP/1.1", "Host: localhost"),
        head("GET /page/%2e%2e/server.py HTTP/1.1", "Host: localhost"),
        head("GET  / HTTP/1.1", "Host: localhost"),
        head("GET / HTTP/1.1", "Host: localhost") + b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: caf\xe9\r\n\r\n",
    ],
)
def test_what_is_not_so_plain_is_left_to_the_server(unsure):
    assert asked_in(unsure) is None


@pytest.fixture
def listening():
    with listen("127.0.0.1", 0) as one:
        yield one


def asks(listening, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", listening.getsockname()[1], timeout=60)
    connection.request("GET", path, headers=headers)
    return connection


def answered(connection):
    with contextlib.closing(connection), connection.getresponse() as answer:
        same = {name: value for name, value in answer.getheaders() if name not in ("connection", "date", "server")}
        return answer.status, same, answer.read()


def test_its_answers_are_those_of_the_server(house, listening):
    come = []
    admission = Admission(KEYS, listening.getsockname()[1], "127.0.0.1")
    paths = [f"/?token={KEYS.token}", *(f"/page/{name}" for name in ("board.js", "icon.svg", "base.css"))]
    known = {"Authorization": f"Bearer {KEYS.token}"}
    with Door(listening, admission, lambda: come.append(1)) as door:
        early = [answered(asks(listening, path, **known)) for path in paths]
    assert (door.aside, come) == ([], [1])
    with opened(listening, keys=KEYS) as _:
        late = [answered(asks(listening, path, **known, **{"Accept-Encoding": "identity"})) for path in paths]
    for one in (*early, *late):
        one[1].pop("vary", None)  # the server may compress
    assert early == late
    assert early[1][2] == page_files()["board.js"]


def test_whoever_else_comes_gets_the_servers_own_answer(house, listening):
    admission = Admission(KEYS, listening.getsockname()[1], "127.0.0.1")
    known = {"Authorization": f"Bearer {KEYS.token}"}
    with Door(listening, admission, lambda: None) as door:
        waiting = [
            asks(listening, "/?token=wrong"),
            asks(listening, "/page/board.js"),
            asks(listening, f"/?token={KEYS.token}", Host="evil.example"),
            asks(listening, "/api/board", **known),
            asks(listening, "/page/../server.py", **known),
        ]
        silent = socket.create_connection(listening.getsockname())
        answered(asks(listening, f"/?token={KEYS.token}"))  # behind them: so they have been seen
    assert len(door.aside) == 6
    with opened(listening, door.aside, keys=KEYS):
        assert [answered(one)[0] for one in waiting] == [401, 401, 421, 200, 404]
        silent.sendall(head("GET /page/icon.svg HTTP/1.1", "Host: localhost"))
        assert silent.recv(100).startswith(b"HTTP/1.1 401 ")
    silent.close()


def test_one_that_is_gone_holds_nobody_up(listening):
    admission = Admission(KEYS, listening.getsockname()[1], "127.0.0.1")
    with Door(listening, admission, lambda: None) as door:
        socket.create_connection(listening.getsockname()).close()
        assert answered(asks(listening, f"/?token={KEYS.token}"))[0] == 200
    for one in door.aside:
        one.close()
