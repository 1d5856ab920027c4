"""One connection to a host for a whole process, whoever asks for it and however many at once."""

import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from doors import BOUND_S

from launcher.errors import LaunchError, Unreachable
from launcher.remote import connections
from launcher.remote.connect import Line
from launcher.remote.target import target_of
from launcher.spec.model import SshHost
from tests.waits import until


def quiet(name, words):
    """Do nothing: a listener for news that ignores it."""


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
    connections.close()
    until("none is lost", lambda: not door.serving())
    assert door.log.count("Accepted publickey") == 1  # now that sshd has written down all that it knows


def test_one_that_has_ended_is_made_anew(door):
    first = connections.lines_to([door.target()], quiet)["door"]
    door.cut()
    until("it is noticed", lambda: not first.alive)
    second = connections.lines_to([door.target()], quiet)["door"]
    assert second.run(["echo", "here"]).out == b"here\n"


def test_one_that_has_ended_is_closed_once_another_takes_its_place(monkeypatch):
    gone, closed, known = target_of(SshHost("gone", transport="openssh")), [], Future()
    known.set_result(Line(gone, SimpleNamespace(alive=lambda: False, close=lambda: closed.append("gone"))))
    monkeypatch.setitem(connections._ways, gone, known)
    monkeypatch.setattr(connections, "connect_all", lambda targets, tell: {"gone": LaunchError("made")})
    assert connections.lines_to([gone], quiet)["gone"].lines == ("made",)
    assert closed == ["gone"]


def test_a_failure_is_not_kept(door):
    door.down()
    assert isinstance(connections.lines_to([door.target()], quiet)["door"], Unreachable)
    door.up()
    assert connections.lines_to([door.target()], quiet)["door"].alive


def test_nobody_waits_while_it_is_seen_whether_anothers_lives(monkeypatch):
    """That may take a program of its own."""
    looked, go_on = threading.Event(), threading.Event()

    class Slow(Line):
        @property
        def alive(self):
            looked.set()
            return go_on.wait(BOUND_S)

    slow, quick = (target_of(SshHost(name, transport="openssh")) for name in ("slow", "quick"))
    known = Future()
    known.set_result(Slow(slow, SimpleNamespace(close=lambda: None)))
    monkeypatch.setitem(connections._ways, slow, known)
    monkeypatch.setattr(connections, "connect_all", lambda targets, tell: {"quick": LaunchError("made")})
    got = []
    thread = threading.Thread(target=lambda: got.append(connections.lines_to([slow], quiet)["slow"]))
    thread.start()
    assert looked.wait(BOUND_S)
    assert connections.lines_to([quick], quiet)["quick"].lines == ("made",)
    go_on.set()
    thread.join(BOUND_S)
    assert got == [known.result()]
