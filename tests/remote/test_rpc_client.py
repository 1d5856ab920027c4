"""How ssh is called: what it is told, and that no text of anybody's becomes an option or a command."""

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.errors import Exit, Unreachable
from launcher.places.login.address import Address
from launcher.remote.openssh import SshCommand
from launcher.remote.rpc import client
from launcher.remote.rpc.client import RemoteLaunch, RpcClient, Silent, remote_error, remote_program
from launcher.remote.rpc.wire import Reply, encoded, greeting
from tests.lab.nodes import until

SHELLS = [name for name in ("sh", "bash", "zsh", "csh", "tcsh", "fish", "ksh") if shutil.which(name)]
HPC = Address("hpc", "me@hpc", "~/a b/launch", "~/launch", "slurm")


def options(argv):
    return [argv[index + 1] for index, word in enumerate(argv) if word == "-o"]


def test_what_ssh_is_told(monkeypatch):
    monkeypatch.delenv("LAUNCH_SSH_CONFIG", raising=False)
    argv = SshCommand("me@hpc").argv("launch _far")
    assert argv[0] == "ssh"
    assert argv[-3:] == ["--", "me@hpc", "launch _far"]
    assert {"BatchMode=yes", "ForwardAgent=no", "ForwardX11=no", "ClearAllForwardings=yes"} <= set(options(argv))
    assert not [option for option in options(argv) if "HostKey" in option or "KnownHosts" in option], "never weakened"
    assert "-F" not in argv
    assert "Compression=yes" in options(SshCommand("me@hpc", ("Compression=yes",)).argv("x"))
    monkeypatch.setenv("LAUNCH_SSH_CONFIG", "/some where")
    assert SshCommand("me@hpc").argv("x")[1:3] == ["-F", "/some where"]


@pytest.mark.parametrize(
    "path", ["launch", "~/bin/launch", '~/a b/it\'s "here" $(touch pwned) `x` ; & | * \\', "/opt/x y/launch", "~/-x"]
)
@pytest.mark.parametrize("shell", SHELLS)
def test_the_program_is_one_word_to_any_shell(path, shell, tmp_path):
    line = f"/usr/bin/printf '%s' {remote_program(path)}"
    done = subprocess.run([shell, "-c", line], env={"HOME": "/home/me"}, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == path.replace("~/", "/home/me/", 1) if path.startswith("~/") else done.stdout == path
    assert os.listdir(tmp_path) == []


def test_without_ssh(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unreachable, match="no `ssh` on PATH"):
        RemoteLaunch(HPC)


def fake_ssh(monkeypatch, tmp_path, body):
    path = tmp_path / "ssh"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("echo 'Host key verification failed.' >&2; exit 255", "hint: `ssh me@hpc` by hand shows the host's key"),
        ("echo 'me@hpc: Permission denied (publickey).' >&2; exit 255", "hint: `ssh me@hpc true` must work without"),
        ("echo 'ssh: connect to host hpc port 22: No route to host' >&2; exit 255", "No route to host"),
        ("echo 'sh: 1: launch: not found' >&2; exit 127", "there is no `~/a b/launch`"),
        ("exit 126", "there is no `~/a b/launch`"),
        ('case "$*" in *version) echo launch 0.0.9;; *) exit 2;; esac', "launch 0.0.9 there, "),
        ("""printf 'launch-far {"wire":99,"launch":"9.9"}\\n'; cat""", "launch 9.9 there, "),
        ("echo launch-far nonsense; cat", "expected launch there to answer, got something else"),
        ("kill -9 $$", "the connection ended before launch there answered"),
        ("exit 0", "the connection ended before launch there answered"),
    ],
)
def test_what_is_said_where_launch_does_not_answer(monkeypatch, tmp_path, body, told):
    fake_ssh(monkeypatch, tmp_path, body)
    with RemoteLaunch(HPC) as connection, pytest.raises(Unreachable) as raised:
        connection.greet()
    assert told in str(raised.value)
    assert "login node me@hpc of hpc" in raised.value.lines[0]


def test_ssh_has_none_of_the_variables_that_it_must_not_see(monkeypatch, tmp_path):
    fake_ssh(monkeypatch, tmp_path, f"env > {tmp_path}/seen; exit 255")
    monkeypatch.setenv("CANARY", "secret")
    monkeypatch.setenv("OTHER", "public")
    with RemoteLaunch(HPC, without={"CANARY"}) as connection, pytest.raises(Unreachable):
        connection.greet()
    seen = (tmp_path / "seen").read_text()
    assert "OTHER=public" in seen
    assert "secret" not in seen


def test_nothing_of_a_connection_is_left(monkeypatch, tmp_path):
    fake_ssh(monkeypatch, tmp_path, f"trap '' TERM; sleep 1000 & echo $! > {tmp_path}/child; echo up; wait; wait")
    connection = RemoteLaunch(HPC)
    assert connection._running._channel.process.stdout.read(3) == b"up\n"
    child = int((tmp_path / "child").read_text())
    connection.close()
    assert connection._running._channel.process.returncode is not None
    assert not lives(connection._running._channel.process.pid)
    until("the end of its child, which has its signal", lambda: not lives(child))


def lives(pid):
    """Return whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_error_there_is_the_same_error_here():
    error = remote_error(("no such run",), Exit.NO_SUCH_RUN)
    assert (error.lines, error.exit_code) == (("no such run",), Exit.NO_SUCH_RUN)
    assert remote_error(("x",), 77).exit_code == Exit.INTERNAL


class SlowLine:
    """A line that gives 64 KiB in each second of its clock, and nothing once it is to stop."""

    who = "node0"

    def __init__(self, size, ends_at):
        self.said, self.now, self.ends_at = greeting() + encoded(Reply(follows=size)) + bytes(size), 0.0, ends_at

    def feed(self, _data, _limit_s):
        return True

    def read(self, most, limit_s):
        if self.now + 1 > self.ends_at:
            self.now += limit_s
        if limit_s < 1 or self.now + 1 > self.ends_at:
            raise Silent("nothing more was said in time")
        self.now += 1
        piece, self.said = self.said[: min(most, 64 << 10)], self.said[min(most, 64 << 10) :]
        return piece


def test_a_slow_line_brings_all_of_a_long_answer(monkeypatch):
    """All that had come was thrown away, and the next try was as slow; who falls silent is not waited for."""
    line = SlowLine(12 << 20, ends_at=1e9)
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: line.now))
    assert len(RpcClient(line).ask_with_bytes({}, type(None), 12 << 20, timeout_s=10.0)[1]) == 12 << 20
    line = SlowLine(12 << 20, ends_at=30.0)
    with pytest.raises(Silent):
        RpcClient(line).ask_with_bytes({}, type(None), 12 << 20, timeout_s=10.0)
    assert line.now < 100
