"""The owner is served whatever strangers leave open, and what these hold is bounded."""

import logging
import os
import socket
import ssl
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from serving_web import BOUND_S, answer, ask, connect, head, open_web

from launcher.apps.web.limits import Limits
from launcher.apps.web.listening import tls_context
from launcher.errors import BadInput

SERVED_S, GROWS_BYTES = 2.0, 50 << 20
MANY = 300
HALF = {
    "idle": b"",
    "half a head": b"GET / HTTP/1.1\r\nHost: local",
    "half a body": head("POST / HTTP/1.1", "Content-Length: 9000000", token="") + b"x" * 1000,
}


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("sent", HALF.values(), ids=HALF)
@pytest.mark.parametrize("public", [False, True], ids=["token", "public"])
def test_the_owner_is_served_beside_strangers_on_the_same_address(sent, public, caplog):
    with ExitStack() as stack, open_web(Limits(body_bytes=16 << 20), public=public) as port:
        strangers = [connect(stack, port, sent) for _ in range(MANY)]
        began = time.monotonic()
        assert ask(port) == 200
        assert time.monotonic() - began < SERVED_S
        for one in strangers:
            one.setblocking(False)
        assert sum(_is_open(one) for one in strangers) <= Limits().per_address
    assert "Traceback" not in caplog.text


def _is_open(peer):
    try:
        while peer.recv(65536):
            continue
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    return False


def test_strangers_from_many_addresses_drop_each_other_and_not_the_owner():
    with ExitStack() as stack, open_web(Limits(connections=32, per_address=8)) as port:
        mine = connect(stack, port, head())
        assert answer(mine) == 200
        for number in range(MANY):
            connect(stack, port, source=f"127.0.1.{number % 50 + 1}")
        mine.sendall(head())
        assert answer(mine) == 200
        assert ask(port) == 200


def test_who_has_asked_is_heard_though_many_came_before_it_could_be_read():
    """A queue of strangers behind the owner is accepted faster than the owner's request is read."""
    peers = []
    with ExitStack() as stack:

        def queue(port):
            peers.append(connect(stack, port, head()))
            peers.extend(connect(stack, port) for _ in range(50))

        with open_web(Limits(connections=4, per_address=2), before=queue):
            assert answer(peers[0]) == 200


def test_a_connection_that_carried_the_token_is_kept_however_many_come(caplog):
    with ExitStack() as stack, open_web(Limits(connections=8, per_address=4)) as port:
        mine = []
        for _ in range(20):
            mine.append(connect(stack, port, head()))
            assert answer(mine[-1]) == 200
        for _ in range(50):
            connect(stack, port)
        for one in mine:
            one.sendall(head())
        assert [answer(one) for one in mine] == [200] * 20
    assert caplog.text == ""


@pytest.mark.parametrize("public", [False, True], ids=["token", "public"])
def test_half_sent_bodies_take_little_memory(public, caplog):
    limits = Limits(body_bytes=16 << 20, bodies_bytes=24 << 20)
    with ExitStack() as stack, open_web(limits, public=public) as port:
        assert ask(port) == 200
        before = resident()
        piece = b"x" * (1 << 20)
        peers = [
            connect(stack, port, head("POST / HTTP/1.1", f"Content-Length: {16 << 20}", token="")) for _ in range(60)
        ]
        for peer in peers:
            try:
                for _ in range(15):
                    peer.sendall(piece)
            except OSError:  # it has been dropped
                continue
        began = time.monotonic()
        with ExitStack() as own:
            mine = connect(own, port, head("POST / HTTP/1.1", f"Content-Length: {1 << 20}") + piece)
            assert answer(mine) == 200
        assert time.monotonic() - began < SERVED_S
        assert resident() - before < GROWS_BYTES
    assert "Traceback" not in caplog.text


def test_who_is_refused_hears_why_before_a_long_body_ends_it():
    with ExitStack() as stack, open_web(Limits(drained_bytes=100_000)) as port:
        short = connect(stack, port, head("POST / HTTP/1.1", "Content-Length: 90000", token="") + b"x" * 90_000)
        assert answer(short) == 401
        long = connect(stack, port, head("POST / HTTP/1.1", "Content-Length: 9000000", token=""))
        assert answer(long) == 401
        with pytest.raises(ConnectionError):
            _say_until_nobody_listens(long)


def test_bodies_of_the_owner_share_the_bound_and_one_too_many_is_told_so():
    limits = Limits(body_bytes=4 << 20, bodies_bytes=6 << 20)
    with ExitStack() as stack, open_web(limits) as port:
        first, second = (connect(stack, port, head("POST / HTTP/1.1", f"Content-Length: {4 << 20}")) for _ in range(2))
        part = b"x" * (3 << 20)
        first.sendall(part)
        assert ask(port) == 200
        second.sendall(part + b"x" * 1000)
        assert answer(second) == 503
        first.sendall(b"x" * (1 << 20))
        assert answer(first) == 200


@pytest.mark.parametrize("sent", [*HALF.values(), head()[:20] + b"\r\n"], ids=[*HALF, "a bad start"])
def test_who_does_not_go_on_is_let_go(sent):
    with ExitStack() as stack, open_web(Limits(head_s=0.2, body_s=0.2), public=True) as port:
        peer = connect(stack, port, sent)
        assert answer(peer) in (0, 400)
        assert ask(port) == 200


def test_a_head_on_a_kept_connection_has_its_time_too():
    with ExitStack() as stack, open_web(Limits(head_s=0.2)) as port:
        peer = connect(stack, port, head())
        assert answer(peer) == 200
        time.sleep(0.4)  # to wait between requests is no fault
        peer.sendall(head())
        assert answer(peer) == 200
        peer.sendall(b"GET / HT")
        assert answer(peer) == 0


def test_who_takes_nothing_is_let_go():
    with ExitStack() as stack, open_web(Limits(take_s=0.2)) as port:
        peer = stack.enter_context(socket.socket())
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.settimeout(BOUND_S)
        peer.connect(("127.0.0.1", port))
        peer.sendall(head("GET /long HTTP/1.1"))
        with pytest.raises(ConnectionError):
            _say_until_nobody_listens(peer)


def _say_until_nobody_listens(peer):
    bound = time.monotonic() + BOUND_S
    while time.monotonic() < bound:
        peer.sendall(b"x" * 1000)
        time.sleep(0.01)


def test_requests_that_run_ahead_of_their_answers_are_bounded():
    with ExitStack() as stack, open_web(Limits(pipelined=4)) as port:
        few, many = connect(stack, port, 4 * head()), connect(stack, port, 100 * head())
        assert answer(few) == 200
        said = b""
        while data := many.recv(65536):
            said += data
        assert said.count(b" 200 OK") < 100


def test_a_client_that_leaves_in_the_middle_of_a_body_is_no_fault_of_ours(caplog):
    with open_web(Limits(), public=True) as port:
        with ExitStack() as gone:
            connect(gone, port, HALF["half a body"])
        assert ask(port) == 200
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_the_end_does_not_wait_for_who_has_not_asked_yet(caplog):
    with ExitStack() as stack:
        with open_web(Limits(), public=True) as port:
            for sent in HALF.values():
                connect(stack, port, sent)
            assert ask(port) == 200
            began = time.monotonic()
        assert time.monotonic() - began < SERVED_S
    assert "Traceback" not in caplog.text


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of this machine by its address, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    where = ["-keyout", key, "-out", cert, "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*made, *where], check=True, capture_output=True)
    return cert, key


def test_over_tls_the_owner_is_served_beside_strangers_who_never_shake_hands(certificate, caplog):
    limits = Limits(connections=16, per_address=8, head_s=1.0)
    client = ssl.create_default_context(cafile=certificate[0])
    with ExitStack() as stack, open_web(limits, tls=tls_context(*certificate)) as port:
        for number in range(100):
            connect(stack, port, b"" if number % 2 else b"GET / HTTP/1.1\r\n\r\n")
        began = time.monotonic()
        with client.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost") as mine:
            mine.sendall(head())
            assert answer(mine) == 200
            assert time.monotonic() - began < SERVED_S
            silent = connect(stack, port)
            assert answer(silent) == 0  # after its time for the handshake
            mine.sendall(head())
            assert answer(mine) == 200
    assert "Traceback" not in caplog.text


def test_a_certificate_that_cannot_be_read_is_said(tmp_path, certificate):
    with pytest.raises(BadInput, match=r"--tls-cert .*missing\.pem"):
        tls_context(tmp_path / "missing.pem", certificate[1])
    with pytest.raises(BadInput, match="in PEM"):
        tls_context(certificate[1], certificate[1])
