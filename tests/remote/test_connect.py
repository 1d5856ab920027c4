"""Connections by paramiko to real sshds: who is let in, by which key, over which way, and how silence ends."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from doors import BOUND_S, attempts, keygen, listed

from launcher.errors import Unreachable
from launcher.remote import known_hosts
from launcher.remote import paramiko_library as transport
from launcher.remote.connect import connect
from launcher.remote.failures import NoAccess
from launcher.remote.known_hosts import UnknownKey
from launcher.remote.target import target_of
from launcher.spec.model import SshHost
from tests.waits import until

ROOT = Path(__file__).parents[2]
HASTY = {"asked_after_s": 0.5, "silence_limit_s": 3.0}  # a host that is only slow says something within that


@pytest.fixture
def line(door):
    with connect(door.target()) as line:
        yield line


# ---- the host's key


def test_a_known_host_lets_us_in(door):
    with connect(door.target()) as line:
        assert line.peer_address == "127.0.0.1"
        assert line.run(["id", "-un"]).out == b"root\n"
    assert attempts(door)


def test_without_the_check_we_would_have_said_who_we_are(door, monkeypatch):
    """What the test above sees is there to be seen."""
    (door.root / "known_hosts").write_text("")
    monkeypatch.setattr(known_hosts, "check", lambda target, key: None)
    connect(door.target()).close()
    assert attempts(door)


def test_the_kind_of_key_that_is_known_is_asked_for(opened):
    door = opened(host_kinds=("ed25519", "rsa", "ecdsa"))
    for path in door.host_keys:
        line = f"[127.0.0.1]:{door.port} {' '.join(Path(f'{path}.pub').read_text().split()[:2])}\n"
        (door.root / "known_hosts").write_text(line)
        connect(door.target()).close()


# ---- our keys


def test_who_has_no_key_for_it_gets_no_access(door, tmp_path):
    keygen(tmp_path / "stranger")
    with pytest.raises(NoAccess, match="no access as root") as caught:
        connect(door.target(keys=(tmp_path / "stranger",)))
    assert f"keys shown: {tmp_path}/stranger" in str(caught.value)
    with pytest.raises(NoAccess, match="there was no key to show"):
        connect(door.target(keys=()))


def test_a_key_with_a_passphrase_is_named(door, tmp_path):
    locked, old = tmp_path / "locked", tmp_path / "old"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", locked], check=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-m", "PEM", "-N", "secret", "-f", old], check=True)
    with pytest.raises(NoAccess) as caught:
        connect(door.target(keys=(locked, old, door.root / "sshd_config", tmp_path)))
    for path in (locked, old):
        assert f"{path} has a passphrase: `ssh-add {path}`" in str(caught.value)
    assert "sshd_config is not a private key" in str(caught.value)
    assert f"{tmp_path} cannot be read" in str(caught.value)
    connect(door.target(keys=(locked, door.key))).close()


def test_a_door_that_takes_no_keys_says_what_it_takes(opened):
    door = opened(settings="PubkeyAuthentication no\nPasswordAuthentication yes")
    with pytest.raises(NoAccess, match="it wants password"):
        connect(door.target())


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_keys_of_other_kinds(door, tmp_path, kind):
    (door.root / "authorized_keys").write_text(keygen(tmp_path / kind, kind=kind))
    connect(door.target(keys=(tmp_path / kind,))).close()


def test_more_keys_than_sshd_lets_one_try(door, tmp_path):
    strangers = [tmp_path / f"key{number}" for number in range(8)]
    for path in strangers:
        keygen(path)
    connect(door.target(keys=(*strangers, door.key))).close()
    assert "Too many authentication failures" not in door.log


def listens(path):
    """Wait until the socket accepts connections, a little after its file exists."""
    with socket.socket(socket.AF_UNIX) as caller:
        return caller.connect_ex(str(path)) == 0


@pytest.fixture
def agent(tmp_path, door):
    """An ssh-agent with eight keys, of which the last opens the door."""
    path = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    until("the agent listens", lambda: listens(path))
    for number in range(7):
        keygen(tmp_path / f"held{number}", comment=f"held{number}")
    for key in (*(tmp_path / f"held{number}" for number in range(7)), door.key):
        key.chmod(0o600)
        subprocess.run(["ssh-add", "-q", key], env={**os.environ, "SSH_AUTH_SOCK": str(path)}, check=True)
    yield path
    process.terminate()
    process.wait()


def test_an_agent_with_many_keys(door, agent, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with connect(door.target(keys=(), agent=True, agent_socket=str(agent))) as line:
        done = line.run(["sh", "-c", 'echo "[$SSH_AUTH_SOCK]"'])
        assert done.out == b"[]\n"  # it is not forwarded
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    connect(door.target(keys=(), agent=True)).close()
    assert "Too many authentication failures" not in door.log


def test_an_agent_is_asked_only_where_that_was_asked_for(door, agent, monkeypatch):
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    with pytest.raises(NoAccess, match="there was no key to show"):
        connect(door.target(keys=()))


def test_of_the_agents_keys_only_those_that_are_named(door, agent, tmp_path):
    with pytest.raises(NoAccess) as caught:
        connect(door.target(keys=(tmp_path / "held3.pub",), agent=True, agent_socket=str(agent), only_these_keys=True))
    assert "keys shown: held3 of the ssh-agent" in str(caught.value)
    public = Path(f"{door.key}.pub")
    connect(door.target(keys=(public,), agent=True, agent_socket=str(agent), only_these_keys=True)).close()


@pytest.mark.parametrize("path", ["", "/nowhere/agent"])
def test_an_agent_that_is_not_there_is_said(door, monkeypatch, path):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pytest.raises(NoAccess, match="the ssh-agent does not answer"):
        connect(door.target(keys=(), agent=True, agent_socket=path))
    connect(door.target(agent=True, agent_socket=path)).close()


# ---- commands


def test_death_of_the_shell_around_it_is_told(line):
    assert line.run(["sh", "-c", "kill -9 $PPID"]).code == 137


def test_ten_at_once_and_not_more(line):
    talks = [line.start(["cat"]) for _ in range(10)]  # MaxSessions of sshd
    with pytest.raises(Unreachable, match="no more commands at the same time"):
        line.start(["cat"])
    for number, talk in enumerate(talks):
        talk.write(b"%d" % number)
        assert talk.finish(BOUND_S).out == b"%d" % number


# ---- the end


def test_a_frozen_host_is_given_up(door):
    line = connect(door.target(**HASTY))
    talk = line.start(["sleep", "600"])
    serving = door.serving()
    for pid in serving:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert talk.finish(BOUND_S).code is None
    finally:
        for pid in serving:
            os.kill(pid, signal.SIGCONT)
    line.close()


def test_it_is_asked_for_a_word_and_given_up_after_ten_seconds_in_all(monkeypatch):
    now, questions = [0.0], []
    monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=lambda: now[0]))
    wire = SimpleNamespace(heard_at=100.0)
    side = SimpleNamespace(
        wire=wire, asked_after_s=3.0, silence_limit_s=10.0, _asked_at=0.0, _send_user_message=questions.append
    )

    def asked_by(moment):
        now[0] = moment
        transport.ParamikoConnection._on_quiet(side)
        return len(questions)

    assert [asked_by(moment) for moment in (102.9, 103.1, 109.9)] == [0, 1, 1]
    wire.heard_at = 110.0
    assert [asked_by(moment) for moment in (112.9, 113.1, 119.9)] == [1, 2, 2]
    with pytest.raises(EOFError):
        asked_by(120.2)


def test_silence_alone_ends_nothing(door, monkeypatch):
    asked, ask = [], transport.ParamikoConnection._send_user_message
    monkeypatch.setattr(
        transport.ParamikoConnection, "_send_user_message", lambda side, said: asked.append(1) or ask(side, said)
    )
    with connect(door.target(asked_after_s=0.1)) as line, line.start(["cat"]) as talk:
        began = len(asked)
        until("it was asked again and again, and answered", lambda: len(asked) > began + 5)
        assert talk.finish(BOUND_S).code == 0


@contextmanager
def listening(says=b"", hang_up=False):
    """A port that speaks no SSH."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = []

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                there.append(connection)
                connection.sendall(says)
                if hang_up:
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in there:
            connection.close()


@pytest.mark.parametrize("says", [b"", b"SSH-2.0-slow\r\n"])
def test_a_black_hole_is_given_up_in_time(door, says):
    with listening(says) as port:
        began, threads = time.monotonic(), threading.active_count()
        with pytest.raises(Unreachable, match="does not answer"):
            connect(door.target(port=port, connect_timeout_s=0.7))
        with pytest.raises(Unreachable, match="does not answer"):
            connect(door.target(port=port), deadline=time.monotonic() + 0.7)
        assert time.monotonic() - began < BOUND_S
        assert threading.active_count() == threads


def test_who_is_not_there_is_said_at_once(door):
    door.down()
    with pytest.raises(Unreachable, match="Connection refused"):
        connect(door.target())
    with pytest.raises(Unreachable, match="cannot be found") as told:
        connect(door.target(hostname="no-such-host.invalid"))
    assert "HostName" in told.value.lines[1] and "address:" not in told.value.lines[1]


@pytest.mark.parametrize("says", [b"", b"SSH-2.0-slow\r\n"])
def test_a_program_that_ends_waits_for_nobody(door, says):
    """Neither a connection that is open nor one that never came holds the interpreter."""
    with listening(says) as port:
        program = (
            "import sys, threading, time\n"
            f"sys.path.insert(0, {str(ROOT)!r})\n"
            "from pathlib import Path\n"
            "from launcher.remote.target import Target\n"
            "from launcher.remote.connect import connect\n"
            f"open_ = connect(eval({repr_of(door.target())}))\n"
            f"hole = eval({repr_of(door.target(port=port, connect_timeout_s=600.0))})\n"
            "threading.Thread(target=connect, args=(hole,), daemon=True).start()\n"
            "def versions(): return [getattr(one, 'remote_version', None) for one in threading.enumerate()]\n"
            f"while versions().count({says.decode().strip()!r}) != 1: time.sleep(0.01)\n"
            "open_.start(['sleep', '600'])\n"
        )
        done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=BOUND_S)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_ctrl_c_ends_a_wait(door):
    with listening() as port:
        program = (
            "import sys\n"
            f"sys.path.insert(0, {str(ROOT)!r})\n"
            "from pathlib import Path\n"
            "from launcher.remote.target import Target\n"
            "from launcher.remote.connect import connect\n"
            "from launcher.remote.parallel import connect_all\n"
            f"hole = eval({repr_of(door.target(port=port, connect_timeout_s=600.0))})\n"
            "print('ready', flush=True)\n"
            "connect_all([hole], print) if sys.argv[1] == 'all' else connect(hole)\n"
        )
        for word in ("all", "one"):
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", program, word], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            assert process.stdout.readline() == "ready\n"
            until("it waits", lambda pid=process.pid: len(os.listdir(f"/proc/{pid}/task")) > 1)
            process.send_signal(signal.SIGINT)
            assert "KeyboardInterrupt" in process.communicate(timeout=BOUND_S)[1]


def repr_of(target):
    return repr(repr(target).replace("PosixPath", "Path"))


# ---- jump hosts


@pytest.fixture
def behind(opened, tmp_path, monkeypatch):
    """A door, and one that is meant to be reached through it; the SSH configuration says so."""
    jump, inner = opened("jump"), opened("inner")
    (tmp_path / "known").write_text(jump.host_line + inner.host_line)
    (tmp_path / "config").write_text(
        f"Host jump\n HostName 127.0.0.1\n Port {jump.port}\n IdentityFile {jump.key}\n"
        f"Host inner\n HostName 127.0.0.1\n Port {inner.port}\n IdentityFile {inner.key}\n ProxyJump jump\n"
        f"Host *\n User root\n UserKnownHostsFile {tmp_path}/known\n GlobalKnownHostsFile /dev/null\n"
    )
    monkeypatch.setenv("LAUNCH_SSH_CONFIG", str(tmp_path / "config"))
    return jump, inner, tmp_path / "known"


def test_a_host_behind_another_one(behind):
    jump, inner, _ = behind
    with connect(target_of(SshHost("inner"))) as line:
        assert line.peer_address == ""
        assert line.run(["cat"], stdin=b"x" * 5_000_000).out == b"x" * 5_000_000
    assert "Accepted publickey" in jump.log
    assert "Accepted publickey" in inner.log
    until("nobody is served", lambda: not jump.serving() and not inner.serving())


def test_each_host_on_the_way_has_its_key_checked(behind):
    jump, inner, known = behind
    known.write_text(inner.host_line)
    with pytest.raises(UnknownKey, match=r"^jump ") as caught:
        connect(target_of(SshHost("inner")))
    assert caught.value.key.fingerprint == listed(jump.host_keys[0])
    assert attempts(jump) == []
    known.write_text(jump.host_line)
    with pytest.raises(UnknownKey, match=r"^inner ") as caught:
        connect(target_of(SshHost("inner")))
    assert caught.value.key.fingerprint == listed(inner.host_keys[0])
    assert attempts(inner) == []
    until("nobody is served", lambda: not jump.serving())


def test_a_host_that_the_one_before_cannot_reach(behind):
    jump, inner, _ = behind
    inner.down()
    with pytest.raises(Unreachable, match=r"inner .* cannot be reached from jump"):
        connect(target_of(SshHost("inner")))
    jump.down()
    with pytest.raises(Unreachable, match=r"jump .* cannot be reached: Connection refused"):
        connect(target_of(SshHost("inner")))


def test_a_cut_behind_the_jump_is_noticed(behind):
    jump, inner, _ = behind
    with connect(replace(target_of(SshHost("inner")), **HASTY)) as line, line.start(["sleep", "600"]) as talk:
        serving = inner.serving()
        for pid in serving:
            os.kill(pid, signal.SIGSTOP)
        try:
            assert talk.finish(BOUND_S).code is None
        finally:
            for pid in serving:
                os.kill(pid, signal.SIGCONT)
    assert jump.log.count("Accepted publickey") == 1


# ---- what the rest of launch has to do with it


def test_local_runs_never_meet_paramiko():
    program = (
        "import sys, launcher.cli.main\n"
        "import launcher.cli.looking.logs, launcher.cli.looking.status, launcher.cli.starting.submit\n"
        "sys.exit('paramiko' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_a_login_is_quick(door):
    """Once imported: a process, a key exchange and a signature; a few round trips."""
    spent = []
    for _ in range(5):
        began = time.monotonic()
        connect(door.target()).close()
        spent.append(time.monotonic() - began)
    assert min(spent) < 10, spent
