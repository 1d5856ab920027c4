"""Test how the board's server handles bytes that no browser sends."""

import gzip
import socket
import time
from contextlib import contextmanager

import pytest

from launcher.apps.board.bundle import PAGE
from tests.apps.board.conftest import BOUND_S, opened, until

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
    """Return what comes until it is closed."""
    said = b""
    while data := peer.recv(LONG):
        said += data
    return said


def head_of(peer):
    """Return what comes until the end of the answer's head."""
    said = b""
    while b"\r\n\r\n" not in said and (data := peer.recv(LONG)):
        said += data
    return said


def status_of(said):
    return int(said.split(b" ", 2)[1])


NONE = {
    "words": b"hello there, board\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 90 + b"\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "a name with a space": b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "NUL": b"GET / HTTP/1.1\r\nHost: local\0host\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a:b\r\n" * 200,
    "a head without end": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * LONG,
    "no ASCII": b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("sent", NONE.values(), ids=NONE)
def test_what_is_no_request_is_refused_in_plain_text(board, sent):
    with talking(board) as peer:
        peer.sendall(sent)
        said = all_of(peer)
    assert status_of(said) == 400
    assert b"\r\nx-content-type-options: nosniff" in said and b"\r\ncontent-type: text/plain" in said
    assert b"launch_board" not in said
    assert board.get("/api/board").status == 200


@pytest.mark.parametrize("hosts", [[], ["localhost", "evil.example"]], ids=["no host", "two hosts"])
def test_a_request_is_for_one_host(board, hosts):
    with talking(board) as peer:
        key = f"Authorization: Bearer {board.board.keys.token}"
        peer.sendall("\r\n".join(["GET / HTTP/1.1", key, *(f"Host: {one}" for one in hosts), "", ""]).encode())
        assert status_of(head_of(peer)) == 421


def test_questions_follow_each_other_on_one_connection(board):
    icon = PAGE.joinpath("icon.svg").read_bytes()
    asked = known(board, "GET /page/icon.svg HTTP/1.1")
    with talking(board) as peer:
        peer.sendall(asked + asked)  # the second before the first is answered
        peer.sendall(known(board, "HEAD /page/icon.svg HTTP/1.1", "Connection: close"))
        first, second, third = all_of(peer).split(b"HTTP/1.1 200 ")[1:]
    assert [one.partition(b"\r\n\r\n")[2] for one in (first, second, third)] == [icon, icon, b""]
    assert b"\r\ncontent-length: %d\r\n" % len(icon) in third


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
    assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "Accept-Encoding")
    assert gzip.decompress(packed.body) == plain.body


def test_a_route_that_fails_is_said_and_the_next_is_answered(board, monkeypatch, caplog):
    monkeypatch.setattr("launcher.apps.board.server.exposition_now", lambda *_: 1 / 0)
    assert board.get("/metrics").status == 500
    bound = time.monotonic() + BOUND_S
    while "ZeroDivisionError" not in caplog.text:
        assert time.monotonic() < bound
        time.sleep(0.01)
    assert board.get("/api/board").status == 200
