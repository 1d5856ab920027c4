"""A local port that leads through a connection: what comes on either side, and how many may be open."""

import contextlib
import socket
import threading

import pytest

from launcher.apps.web.listening import listen
from launcher.errors import Unreachable
from launcher.remote.tunnel import Tunnel
from tests.waits import until

BOUND_S = 60.0


class ChannelOfSocket:
    """A channel that is one end of a pair of sockets."""

    def __init__(self, end):
        self._end = end

    @property
    def ready_fd(self):
        return self._end.fileno()

    def give(self, data, wait_s):
        return self._end.send(data)

    def end_input(self):
        self._end.shutdown(socket.SHUT_WR)

    def take(self, wait_s):
        data = self._end.recv(65536)
        return (data, b"") if data else None

    def close(self):
        self._end.close()


class Ended(Exception):
    pass


class Listening:
    """A socket that listens until it is told to end."""

    def __init__(self, inner):
        self._inner = inner

    def accept(self):
        peer, address = self._inner.accept()
        if peer.recv(1, socket.MSG_PEEK) == b"!":
            peer.close()
            raise Ended
        return peer, address

    def close(self):
        self._inner.close()


@pytest.fixture
def tunnelled():
    """Open a tunnel; yields a function that connects to it, and the far ends in the order of their connections."""
    with contextlib.ExitStack() as stack:

        def start(dial=None, most=64):
            far, ours = [], []

            def to_pair():
                mine, theirs = socket.socketpair()
                theirs.settimeout(BOUND_S)
                far.append(stack.enter_context(theirs))
                return ChannelOfSocket(mine)

            listening = listen("127.0.0.1", 0)
            port = listening.getsockname()[1]
            tunnel = Tunnel(Listening(listening), dial or to_pair, most=most)

            def run():
                with contextlib.suppress(Ended):
                    tunnel.run()

            thread = threading.Thread(target=run)
            thread.start()

            def talk(first):
                peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), BOUND_S))
                peer.sendall(first)
                ours.append(peer)
                return peer

            def end():
                talk(b"!")
                thread.join(BOUND_S)
                assert not thread.is_alive()
                for peer in ours:
                    peer.close()

            stack.callback(end)
            return talk, far

        yield start


def closed(peer):
    try:
        return peer.recv(10) == b""
    except ConnectionResetError:
        return True


def test_what_is_said_on_either_side_comes_to_the_other(tunnelled):
    talk, far = tunnelled()
    one = talk(b"hello")
    until("a connection there", lambda: far)
    assert far[0].recv(100) == b"hello"
    far[0].sendall(b"there")
    assert one.recv(100) == b"there"
    one.shutdown(socket.SHUT_WR)
    assert far[0].recv(100) == b""
    far[0].sendall(b"last words")
    far[0].close()
    assert one.recv(100) == b"last words"
    assert closed(one)


def test_of_too_many_the_one_that_was_silent_longest_is_closed(tunnelled):
    talk, far = tunnelled(most=2)
    one, other = talk(b"1"), talk(b"2")
    until("both connections there", lambda: len(far) == 2)
    by_word = {end.recv(1): end for end in far}
    by_word[b"1"].sendall(b"x")
    assert one.recv(1) == b"x"
    one.sendall(b"y")
    assert by_word[b"1"].recv(1) == b"y"
    talk(b"3")
    assert closed(other)
    one.sendall(b"z")
    assert by_word[b"1"].recv(1) == b"z"


def test_where_nobody_is_there_the_connection_ends_and_the_next_is_tried(tunnelled, caplog):
    def dial():
        raise Unreachable("it is not there")

    talk, _ = tunnelled(dial)
    for _ in range(2):
        assert closed(talk(b"x"))
    assert "it is not there" in caplog.text
    assert "Traceback" not in caplog.text
