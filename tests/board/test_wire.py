"""What the board's server makes of bytes that no browser sends, and of those who do not go on."""

import gzip
import socket
import time
from contextlib import contextmanager

import pytest

from launcher.board.bundle import PAGE
from launcher.board.wire import connection, listener
from tests.board.conftest import BOUND_S, opened, until

LONG = 64 << 10


@contextmanager
def talking(board):
    with socket.create_connection(("127.0.0.1", board.port), timeout=BOUND_S) as one:
        yield one


def known(board, first="GET /api/board HTTP/1.1", *more):
    """A head that is let in."""
    key = f"Authorization: Bearer {board.board.keys.token}"
    return "\r\n".join([first, "Host: localhost", key, *more, "", ""]).encode()


def all_of(peer):
    """Until it is closed."""
    said = b""
    while data := peer.recv(LONG):
        said += data
    return said


def status_of(said):
    return int(said.split(b" ", 2)[1])


NONE = {
    "words": b"hello there, board\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 90 + b"\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "a name with a space": b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "NUL": b"GET / HTTP/1.1\r\nHost: local\0host\r\n\r\n",
    "no ASCII": b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("sent", NONE.values(), ids=NONE)
def test_what_is_no_request_is_refused_and_forbids_what_every_answer_does(board, sent):
    with talking(board) as peer:
        peer.sendall(sent)
        said = all_of(peer)
    assert status_of(said) == 400
    assert b"\r\ncontent-security-policy: default-src 'none'" in said
    assert b"launch_board" not in said
    assert board.get("/api/board").status == 200


def test_a_head_without_end_is_refused_before_it_takes_memory(board):
    with talking(board) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * LONG)
        assert status_of(all_of(peer)) == 431


@pytest.mark.parametrize("length", [f"Content-Length: {4 << 20}", "Transfer-Encoding: chunked"])
def test_a_body_that_is_too_long_is_not_kept(house, length):
    with opened(actions=True) as board, talking(board) as peer:
        key = f"X-Launch-Token: {board.board.keys.post}"
        peer.sendall(known(board, "POST /api/runs/job-abcd/note HTTP/1.1", key, length))
        part = b"x" * LONG
        for _ in range(connection._MOST_BODY // LONG + 1):
            peer.sendall(part if "Length" in length else b"%x\r\n%s\r\n" % (LONG, part))
        assert status_of(all_of(peer)) == 413


def test_a_body_of_who_is_refused_is_not_waited_for(board):
    with talking(board) as peer:
        peer.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
        assert status_of(all_of(peer)) == 401


def test_questions_follow_each_other_on_one_connection(board):
    icon = PAGE.joinpath("icon.svg").read_bytes()
    asked = known(board, "GET /page/icon.svg HTTP/1.1")
    with talking(board) as peer:
        peer.sendall(asked + asked)  # the second before the first is answered
        peer.sendall(known(board, "HEAD /page/icon.svg HTTP/1.1", "Connection: close"))
        first, second, third = all_of(peer).split(b"HTTP/1.1 200 ")[1:]
    assert [one.partition(b"\r\n\r\n")[2] for one in (first, second, third)] == [icon, icon, b""]
    assert b"\r\ncontent-length: %d\r\n" % len(icon) in third


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: local"])
def test_who_does_not_go_on_is_let_go(house, monkeypatch, begun):
    monkeypatch.setattr(connection, "_REQUEST_S", 0.2)
    with opened() as board, talking(board) as peer:
        peer.sendall(begun)
        assert all_of(peer) == b""


def test_who_takes_nothing_is_let_go(house, monkeypatch):
    monkeypatch.setattr(connection, "_TAKE_S", 0.2)
    house.run().succeeded().log(0, "x" * 60_000 + "\n")
    with opened() as board, socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.settimeout(BOUND_S)
        peer.connect(("127.0.0.1", board.port))
        asked = known(board, "GET /api/runs/job-abcd/logs HTTP/1.1")
        with pytest.raises(ConnectionError):
            ask_without_end(peer, asked)


def ask_without_end(peer, asked):
    while True:
        peer.sendall(asked)


def test_more_connections_than_may_be_are_closed_at_once(house, monkeypatch):
    monkeypatch.setattr(listener, "_MOST_CONNECTIONS", 2)
    with opened() as board, talking(board) as one, talking(board) as other:
        for peer in (one, other):
            peer.sendall(known(board))
            assert peer.recv(LONG).startswith(b"HTTP/1.1 200")
        with talking(board) as third:
            assert all_of(third) == b""
        one.sendall(known(board))
        assert one.recv(LONG).startswith(b"HTTP/1.1 200")


def test_a_page_that_has_gone_is_noticed_though_there_is_nothing_to_tell_it(house):
    with opened() as board:
        with board.live() as told:
            until(told, "hello")
            assert len(board.pages()) == 1
        bound = time.monotonic() + BOUND_S
        while board.pages():
            assert time.monotonic() < bound
            time.sleep(0.05)


def test_a_page_that_listens_does_not_hold_up_the_end(house):
    with opened() as board, talking(board) as idle:
        with board.live() as told:
            until(told, "hello")
            board.end()
            assert [*told] == []
        assert all_of(idle) == b""


def test_a_long_answer_is_packed_for_who_can_unpack_it(board):
    plain, packed = (board.get("/page/board.js", Accept_Encoding=kind) for kind in ("identity", "gzip, br"))
    assert "content-encoding" not in plain.headers
    assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "accept-encoding")
    assert gzip.decompress(packed.body) == plain.body


def test_a_route_that_fails_is_said_and_the_next_is_answered(board, monkeypatch, caplog):
    monkeypatch.setattr("launcher.board.server.exposition_now", lambda *_: 1 / 0)
    assert board.get("/metrics").status == 500
    assert "ZeroDivisionError" in caplog.text
    assert board.get("/api/board").status == 200
