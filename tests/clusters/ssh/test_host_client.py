"""Requests to a host over one process: one answer after the other, whoever asks."""

import io
import threading
from types import SimpleNamespace

import pytest

from launcher.clusters.ssh.host_client import HostClient, Place
from launcher.clusters.ssh.messages import HELLO, CodeTree, Failed, FileFollows, ListRuns, RunNames, SendFile
from launcher.errors import LaunchError
from launcher.hostlink.rpc.wire import encoded
from launcher.hostlink.shipping.tree import FileEntry
from launcher.spec.model import SshHost
from trainer.errors import CheckpointDamaged

FILE = SendFile("job-1a2b", "/w", "checkpoints", 3, "rank-0")


class _Host:
    """It gives a file of six bytes, and names runs."""

    def __init__(self):
        self.asked, self.closed, self._said = [], False, io.BytesIO(HELLO)

    def write(self, data, _limit_s):
        wants_file = b"give" in data
        self.asked.append("file" if wants_file else "runs")
        answer = encoded(FileFollows(6)) + b"abcdef" if wants_file else encoded(RunNames(("job-1a2b",)))
        if b"refused" in data:
            answer = encoded(Failed(("no",), 1))
        self._said = io.BytesIO(self._said.read() + answer)

    def readline(self, _limit_s):
        return self._said.readline()

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


def test_nobody_else_is_answered_while_a_file_is_still_coming(client, host):
    heard = []
    other = threading.Thread(target=lambda: heard.append(client.ask(ListRuns("/w"))))
    with client.stream(FILE) as pieces:
        came = [next(pieces)]
        other.start()
        other.join(0.2)
        assert other.is_alive()
        assert host.asked == ["file"]
        came += pieces
    other.join(10)
    assert b"".join(came) == b"abcdef"
    assert heard == [RunNames(("job-1a2b",))]


def test_what_nobody_takes_of_a_file_is_no_answer(client):
    def refuse(pieces):
        raise CheckpointDamaged(f"it begins with {next(pieces)}")

    with pytest.raises(CheckpointDamaged), client.stream(FILE) as pieces:
        refuse(pieces)
    assert client.ask(ListRuns("/w")) == RunNames(("job-1a2b",))
    assert not client._running.closed


def test_a_refusal_ends_nothing_but_that_of_code_does(client, host):
    """What was refused of code may be read to any place."""
    for request, closed in ((ListRuns("/refused"), False), (CodeTree((FileEntry("refused", 0, False),)), True)):
        with pytest.raises(LaunchError, match="no"):
            client.ask(request)
        assert host.closed == closed


def contents_that_fail():
    yield b"half"
    raise LaunchError("it has changed")


def fall_silent(client):
    with client.stream(FILE) as pieces:
        raise LaunchError(f"nobody wants what comes after {next(pieces)}")


@pytest.mark.parametrize(
    "fail", [lambda client: client.ask(ListRuns("/w"), contents_that_fail()), fall_silent], ids=["sent", "read"]
)
def test_who_was_not_told_or_heard_to_the_end_is_not_asked_again(client, host, fail):
    with pytest.raises(LaunchError):
        fail(client)
    assert host.closed
    assert client._running is None
