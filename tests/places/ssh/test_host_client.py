"""Requests to a host over one process: one answer after the other, whoever asks."""

import io
import threading
from types import SimpleNamespace

import msgspec
import pytest

from launcher.errors import Exit, LaunchError
from launcher.ids import parse_run_id
from launcher.places.ssh import host_client
from launcher.places.ssh.host_client import HostClient, Place
from launcher.places.ssh.messages import ListRuns, SendFile
from launcher.remote.rpc.wire import Garbled, Reply, encoded, greeting
from launcher.spec.model import SshHost
from trainer.errors import CheckpointDamaged

FILE = SendFile(parse_run_id("job-1a2b"), "/w", "checkpoints", 3, "rank-0")
RUNS = msgspec.Raw(b'["job-1a2b"]')


class _Host:
    """A host that serves a file of six bytes, and names runs."""

    who = "node0"

    def __init__(self):
        self.asked, self.closed, self._said = [], False, io.BytesIO(greeting())

    def feed(self, data, _limit_s):
        wants_file = b"give" in data
        self.asked.append("file" if wants_file else "runs")
        answer = encoded(Reply(follows=6)) + b"abcdef" if wants_file else encoded(Reply(RUNS))
        if b"refused" in data:
            answer = encoded(Reply(error=("no", "hint: none"), exit_code=4))
        self._said = io.BytesIO(self._said.read() + answer)
        return True

    def read(self, size, _limit_s):
        return self._said.read(min(size, 2))

    def close(self):
        self.closed = True


@pytest.fixture
def host():
    return _Host()


@pytest.fixture
def client(host):
    return HostClient(SimpleNamespace(start=lambda argv: host), Place(SshHost("node0"), False, "python", "/w", "node0"))


def ask(client, workdir="/w", contents=()):
    return client.ask(ListRuns(workdir), list[str], contents)


class _OlderHost(_Host):
    """A host whose older launcher lacks the module."""

    def __init__(self, complaint):
        super().__init__()
        self._complaint = complaint

    def read(self, _size, _limit_s):
        return b""

    def last_error_lines(self):
        return [f"  python: {self._complaint}"]


@pytest.mark.parametrize(
    "complaint",
    [
        "Error while finding module specification for 'launcher.x.y' (No module named 'launcher.x')",
        "No module named launcher.x",
        "No module named launcher.x.__main__; 'launcher.x' is a package and cannot be directly executed",
    ],
)
def test_a_host_with_a_version_that_has_its_modules_elsewhere_gets_ours(host, monkeypatch, complaint):
    """A pool's run that 0.1.0 had begun could not be seen any more."""
    programs = {"python": _OlderHost(complaint), "ours": host}
    monkeypatch.setattr(host_client, "survey", lambda *_: None)
    monkeypatch.setattr(host_client, "settled_in", lambda *_: "ours")
    line = SimpleNamespace(start=lambda argv: programs[argv[0]])
    assert ask(HostClient(line, Place(SshHost("node0"), False, "python", "/w", "node0"))) == ["job-1a2b"]


def test_nobody_else_is_answered_while_a_file_is_still_coming(client, host):
    heard = []
    other = threading.Thread(target=lambda: heard.append(ask(client)))
    with client.stream(FILE, 6) as pieces:
        came = [next(pieces)]
        other.start()
        other.join(0.2)
        assert other.is_alive()
        assert host.asked == ["file"]
        came += pieces
    other.join(60)
    assert b"".join(came) == b"abcdef"
    assert heard == [["job-1a2b"]]


def test_what_nobody_takes_of_a_file_is_no_answer(client):
    def refuse(pieces):
        raise CheckpointDamaged(f"it begins with {next(pieces)}")

    with pytest.raises(CheckpointDamaged), client.stream(FILE, 6) as pieces:
        refuse(pieces)
    assert ask(client) == ["job-1a2b"]
    assert not client._server._running.closed


def test_a_refusal_ends_nothing_and_names_the_host(client, host):
    with pytest.raises(LaunchError) as raised:
        ask(client, "/refused")
    assert (raised.value.lines, raised.value.exit_code) == (("node0: no", "hint: none"), Exit.REFUSED)
    assert not host.closed and ask(client) == ["job-1a2b"]


def test_more_than_was_asked_for_is_not_read(client, host):
    with pytest.raises(Garbled, match=r"node0: expected at most 5 bytes behind the answer, got 6"):
        client.ask_with_bytes(FILE, type(None), 5)
    assert host.closed


def contents_that_fail():
    yield b"half"
    raise LaunchError("it has changed")


def fall_silent(client):
    with client.stream(FILE, 6) as pieces:
        raise LaunchError(f"nobody wants what comes after {next(pieces)}")


@pytest.mark.parametrize(
    "fail", [lambda client: ask(client, contents=contents_that_fail()), fall_silent], ids=["sent", "read"]
)
def test_who_was_not_told_or_heard_to_the_end_is_not_asked_again(client, host, fail):
    with pytest.raises(LaunchError):
        fail(client)
    assert host.closed
    assert client._server is None
