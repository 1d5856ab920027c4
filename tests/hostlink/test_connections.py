"""One connection to a host for a whole process, whoever asks for it and however many at once."""

import threading

import pytest
from doors import until

from launcher.errors import Unreachable
from launcher.hostlink import connections


def quiet(name, words):
    """Nobody listens."""


@pytest.fixture(autouse=True)
def closed():
    yield
    connections.close()


def test_those_who_ask_at_once_share_one(door):
    barrier, got = threading.Barrier(6), []

    def ask():
        barrier.wait()
        got.append(connections.lines_to([door.target()], quiet)["door"])

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(line) for line in got}) == 1, got
    assert door.log.count("Accepted publickey") == 1
    connections.close()
    until("none is lost", lambda: not door.serving())


def test_one_that_has_ended_is_made_anew(door):
    first = connections.lines_to([door.target()], quiet)["door"]
    door.cut()
    until("it is noticed", lambda: not first.alive)
    second = connections.lines_to([door.target()], quiet)["door"]
    assert second.run(["echo", "here"]).out == b"here\n"


def test_a_failure_is_not_kept(door):
    door.down()
    assert isinstance(connections.lines_to([door.target()], quiet)["door"], Unreachable)
    door.up()
    assert connections.lines_to([door.target()], quiet)["door"].alive
