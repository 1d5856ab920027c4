"""The user's own ssh program: what its words mean, and what it is never asked to do."""

import os
import subprocess
import tempfile

import pytest

from launcher.errors import Unreachable
from launcher.remote import openssh
from launcher.remote.connect import connect
from launcher.remote.failures import Dropped, NoAccess
from launcher.remote.openssh import SshCommand
from launcher.remote.target import target_of
from launcher.spec.model import SshHost

KEX = "kex_exchange_identification: Connection closed by remote host"
CLOSED = "Connection closed by UNKNOWN port 65535"


def refused(monkeypatch, tmp_path, said, config=""):
    """Return the error for this output of ssh."""
    (tmp_path / "config").write_text(f"Host inner\n HostName 127.0.0.1\n User me\n{config}")
    monkeypatch.setenv("LAUNCH_SSH_CONFIG", str(tmp_path / "config"))

    class Master:
        def last_error_lines(self, most):
            return [f"  {line}" for line in said][-most:]

    return openssh._refused(target_of(SshHost("inner", transport="openssh")), Master())


@pytest.mark.parametrize(
    ("config", "said", "kind", "told"),
    [
        ("", [KEX, "Connection closed by 127.0.0.1 port 22"], Dropped, "hung up at once"),
        ("", ["load pubkey x: invalid format", KEX], Dropped, "load pubkey"),
        ("", ["me@inner: Permission denied (publickey)."], NoAccess, "no access\n"),
        (
            " ProxyJump a@jump\n",
            ["a@jump: Permission denied (publickey).", KEX],
            NoAccess,
            "no access by way of jump\n",
        ),
        (
            " ProxyJump jump\n",
            ["Host key verification failed.", KEX, CLOSED],
            Unreachable,
            "by way of jump: the key of",
        ),
        (" ProxyJump jump\n", [KEX, CLOSED], Unreachable, "cannot be reached by way of jump"),
        (
            " ProxyCommand nc x\n",
            ["sh: nc: not found", KEX, CLOSED],
            Unreachable,
            "by way of nc x\n  sh: nc: not found",
        ),
        ("", [], Unreachable, "cannot be reached"),
    ],
)
def test_why_there_is_no_connection(monkeypatch, tmp_path, config, said, kind, told):
    error = refused(monkeypatch, tmp_path, said, config)
    assert type(error) is kind, error
    assert told in str(error)
    assert not (CLOSED in str(error) and len(said) > 2)


def test_a_host_on_the_way_that_is_not_trusted(opened, tmp_path, monkeypatch):
    """Nobody is asked, not even where a window could be opened."""
    jump = opened("jump")
    ask = tmp_path / "ask"
    ask.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\necho yes\n")
    ask.chmod(0o755)
    (tmp_path / "config").write_text(
        f"Host jump\n HostName 127.0.0.1\n Port {jump.port}\n IdentityFile {jump.key}\n"
        "Host inner\n HostName 127.0.0.1\n ProxyJump jump\n"
        f"Host *\n User root\n UserKnownHostsFile {tmp_path}/known\n GlobalKnownHostsFile /dev/null\n"
    )
    environment = {"LAUNCH_SSH_CONFIG": str(tmp_path / "config"), "SSH_ASKPASS": str(ask), "DISPLAY": ":0"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Unreachable, match=r"by way of jump: the key of a host on the way"):
        connect(target_of(SshHost("inner", transport="openssh")))
    assert not (tmp_path / "asked").exists()


def test_a_master_that_does_not_answer_is_none(monkeypatch):
    def silent(*words, **more):
        raise subprocess.TimeoutExpired("ssh", 1)

    monkeypatch.setattr(subprocess, "run", silent)
    assert not openssh._has_master(SshCommand("inner"))


def test_without_ssh(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unreachable, match="no `ssh` on PATH"):
        openssh.connected(target_of(SshHost("inner", transport="openssh")), None)


def test_a_socket_fits_where_the_usual_folder_is_deep(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 80)))
    assert openssh._short_folder() == "/tmp"
    monkeypatch.setattr(tempfile, "tempdir", "/scratch")
    assert openssh._short_folder() == "/scratch"


def test_what_has_ended_is_not_signalled(monkeypatch):
    """Its number may be another's by then."""
    process = openssh.SshProcess(["sh", "-c", "exit 3"], (), lambda: True)
    assert process.code(150) == 3
    monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("somebody else was signalled"))
    process.close()
    process.close()
