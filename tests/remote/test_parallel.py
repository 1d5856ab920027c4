"""Many hosts at once, against sshds with OpenSSH's own limits."""

import threading
import time

import pytest
from doors import BOUND_S, keygen

from launcher.errors import Unreachable
from launcher.remote import connect as connecting
from launcher.remote import parallel
from launcher.remote import paramiko_library as transport
from launcher.remote.connect import Line
from launcher.remote.failures import Dropped, Lost, NoAccess
from launcher.remote.known_hosts import UnknownKey
from launcher.remote.parallel import answers, connect_all, for_all
from tests.waits import until


def close_all(lines):
    for line in answers(lines).values():
        line.close()


def quiet(name, words):
    """Do nothing: a listener for news that ignores it."""


def targets(door, count, **changes):
    return [door.target(name=f"gpu{number:02}", **changes) for number in range(count)]


def test_sixteen_at_once_with_sshds_own_limits(door):
    told = []
    lines = connect_all(targets(door, 16), lambda name, words: told.append((name, words)))
    try:
        assert [type(line) for line in lines.values()] == [Line] * 16, lines
        assert list(lines) == [target.name for target in targets(door, 16)]
        assert sorted(told) == [(name, "connected") for name in lines]
        said = for_all(lines, lambda name, line: line.run(["echo", name]).out.decode().strip())
        assert said == {name: name for name in lines}
    finally:
        close_all(lines)
    until("nobody is served", lambda: not door.serving())


def test_a_key_is_read_once_for_all_hosts(door, tmp_path, monkeypatch):
    (door.root / "authorized_keys").write_text(keygen(tmp_path / "rsa", kind="rsa"))
    read, from_path = [], transport.Key.from_path
    monkeypatch.setattr(transport.Key, "from_path", lambda path: read.append(path) or from_path(path))
    lines = connect_all(targets(door, 8, keys=(tmp_path / "rsa",)), quiet)
    close_all(lines)
    assert [type(line) for line in lines.values()] == [Line] * 8, lines
    assert read == [tmp_path / "rsa"]


def test_who_is_dropped_comes_again(opened):
    """With room for two logins at a time, and more than that trying."""
    door = opened(settings="MaxStartups 2:100:2")
    lines = connect_all(targets(door, 12), quiet)
    close_all(lines)
    assert [type(line) for line in lines.values()] == [Line] * 12, lines
    assert "MaxStartups throttling" in door.log  # else nothing was shown


def test_who_is_always_dropped_is_said_to_be(opened, monkeypatch):
    tried = []

    def dropped(target):
        tried.append(target.name)
        raise Dropped(f"{target.name} hung up at once", "hint: more")

    monkeypatch.setattr(parallel, "connect", dropped)
    (result,) = connect_all([opened().target()], quiet, patience_s=0.3).values()
    assert isinstance(result, Dropped)
    assert len(tried) >= 2
    assert result.lines[0].startswith(f"{tried[0]} hung up at once, {len(tried)} times in ")
    assert result.lines[1:] == ("hint: more",)


@pytest.mark.parametrize("error", [UnknownKey, NoAccess])
def test_a_refusal_is_final(door, monkeypatch, error):
    tried = []
    changes = {"known_hosts": ()} if error is UnknownKey else {"keys": ()}

    def counted(target):
        tried.append(target.name)
        return connecting.connect(target)

    monkeypatch.setattr(parallel, "connect", counted)
    told = []
    (result,) = connect_all([door.target(**changes)], lambda name, words: told.append(words)).values()
    assert isinstance(result, error)
    assert len(tried) == 1
    assert told == [result.lines[0]]


def test_never_more_than_eight_at_once(door, monkeypatch):
    busy, most, lock = 0, 0, threading.Lock()

    def watched(target):
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        try:
            return connecting.connect(target)
        finally:
            with lock:
                busy -= 1

    monkeypatch.setattr(parallel, "connect", watched)
    close_all(connect_all(targets(door, 20), quiet))
    assert 1 < most <= 8


@pytest.mark.parametrize("through", ["each host itself", "one jump host"])
def test_hosts_of_their_own_do_not_wait_for_each_other(opened, monkeypatch, through):
    door = opened()
    jumps = (door.target(name="jump", hostname="jump"),) if through == "one jump host" else ()
    busy, most, lock, all_there = 0, 0, threading.Lock(), threading.Event()

    def watched(target):
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
            if most == (8 if jumps else 20):
                all_there.set()
        came = all_there.wait(BOUND_S)
        with lock:
            busy -= 1
        raise NoAccess(f"{target.name}: {'refused' if came else 'the others did not come'}")

    monkeypatch.setattr(parallel, "connect", watched)
    hosts = [door.target(name=f"gpu{number}", hostname=f"gpu{number}", jumps=jumps) for number in range(20)]
    results = connect_all(hosts, quiet)
    assert [one.lines[0] for one in results.values()] == [f"{host.name}: refused" for host in hosts]
    assert most == (8 if jumps else 20)


def test_one_that_does_not_answer_holds_nobody_else(door):
    away = door.target(name="away", hostname="192.0.2.1", connect_timeout_s=1.0)  # an address that nobody has
    began = time.monotonic()
    lines = connect_all([away, *targets(door, 3)], quiet)
    close_all(lines)
    assert isinstance(lines["away"], Unreachable)
    assert [type(line) for line in lines.values()][1:] == [Line] * 3
    assert time.monotonic() - began < BOUND_S


def test_what_is_done_with_each_fails_for_each(door):
    lines = connect_all(targets(door, 3), quiet)
    try:

        def work(name, line):
            if name == "gpu01":
                return line.run(["sleep", "600"], limit_s=0.2)
            return line.run(["true"]).code

        results = for_all(lines, work)
        assert isinstance(results.pop("gpu01"), Lost)
        assert results == {"gpu00": 0, "gpu02": 0}
        with pytest.raises(ZeroDivisionError):
            for_all(lines, lambda name, line: 1 / 0)
    finally:
        close_all(lines)


def test_nobody_and_nothing():
    assert connect_all([], quiet) == {}
    assert for_all({}, lambda name, line: 1) == {}


def test_lines_that_nobody_takes_are_closed(door):
    """Whoever is told may fail, or be interrupted, when some are connected and others are about to be."""

    def interrupted(name, words):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        connect_all(targets(door, 8), interrupted)
    until("sshd has nobody to serve", lambda: not door.serving())
