"""Test what every transport must do, over real sshds: paramiko, and the user's own OpenSSH."""

import contextlib
import os
import select
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
from doors import BOUND_S, attempts, keygen, listed

from launcher.errors import Exit, Unreachable
from launcher.remote.connect import connect, host_key
from launcher.remote.failures import Lost, NoAccess, Silent
from launcher.remote.known_hosts import ChangedKey, RevokedKey, UnknownKey
from tests.waits import until

WORDS = ["a b", "'", '"', "$HOME", "`id`", "\\", "\\\\n", "!!", "%s%b", "new\nline", "\ttab", "*", "~", "ü€", "", "-n",
         "; touch canary", "\x07\x1b[0m", "\udcff"]  # fmt: skip


@pytest.fixture
def line(to, door):
    with connect(to(door)) as line:
        yield line


def test_the_key_that_a_host_shows(to, door):
    """Nobody says who we are, whether it is known or not."""
    for known in (door.host_line, ""):
        (door.root / "known_hosts").write_text(known)
        key = host_key(to(door))
        assert (f"{key.line}\n", key.fingerprint) == (door.host_line, listed(door.host_keys[0]))
    assert attempts(door) == []


def test_a_refused_login_is_said(to, door, tmp_path):
    keygen(tmp_path / "stranger")
    with pytest.raises(NoAccess, match="no access") as caught:
        connect(to(door, keys=(tmp_path / "stranger",)))
    assert caught.value.exit_code == Exit.UNREACHABLE


def test_nobody_is_there(to, door):
    door.down()
    with pytest.raises(Unreachable, match="cannot be reached") as caught:
        connect(to(door))
    assert "Connection refused" in str(caught.value)


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_words_arrive_as_they_are(to, opened, shell):
    door = opened(settings=f'ForceCommand exec {shell} -c "$SSH_ORIGINAL_COMMAND"')
    with connect(to(door)) as line:
        done = line.run([sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))", *WORDS])
    assert done.out.decode() == f"{WORDS!a}\n", done.err


def test_a_word_with_a_nul_is_never_sent(line):
    with pytest.raises(ValueError, match="NUL"):
        line.run(["echo", "a\0b"])


@pytest.mark.parametrize(
    ("command", "code"),
    [("true", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("/nowhere", 127)],
)
def test_how_it_ended_is_told(line, command, code):
    assert line.run(["sh", "-c", command]).code == code


def test_both_streams_at_once(line):
    script = "head -c 8000000 /dev/zero >&2 & head -c 8000000 /dev/zero; wait"
    done = line.run(["sh", "-c", script])
    assert (done.code, len(done.out), len(done.err)) == (0, 8_000_000, 8_000_000)
    done = line.run(["sh", "-c", "head -c 8000000 /dev/zero >&2; head -c 8000000 /dev/zero"])
    assert (done.code, len(done.out), len(done.err)) == (0, 8_000_000, 8_000_000)


def test_much_goes_in_and_comes_out(line):
    data = os.urandom(1_000_000) * 20
    done = line.run(["cat"], stdin=data)
    assert done.code == 0
    assert done.out == data
    pieces = (data[at : at + 300_000] for at in range(0, len(data), 300_000))
    assert line.run(["wc", "-c"], stdin=pieces).out == b"20000000\n"


def test_a_command_that_wants_no_more_ends_as_it_likes(line):
    done = line.run(["sh", "-c", "head -c 3; exit 7"], stdin=b"x" * 20_000_000)
    assert (done.code, done.out) == (7, b"xxx")


def test_what_gives_the_input_may_fail(line):
    def pieces():
        yield b"one"
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        line.run(["cat"], stdin=pieces())
    assert line.run(["echo", "still here"]).out == b"still here\n"


def test_a_talk(line):
    with line.start(["sh", "-c", 'while read -r word; do echo "got $word"; echo noise >&2; done; printf rest']) as talk:
        for word in ("one", "two"):
            talk.write(f"{word}\n".encode())
            assert talk.readline(BOUND_S) == f"got {word}\n".encode()
        talk.write(b"three\n")
        assert talk.read(4, BOUND_S) == b"got "
        done = talk.finish(BOUND_S)
    assert (done.code, done.out, done.err) == (0, b"three\nrest", b"noise\n" * 3)


def test_a_port_of_the_host_is_reached_through_the_connection(line):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        channel = line.to_port(listening.getsockname()[1])
        try:
            there, _ = listening.accept()
            with there:
                given = 0
                while given < len(b"hello"):
                    given += channel.give(b"hello"[given:], BOUND_S)
                assert there.recv(5, socket.MSG_WAITALL) == b"hello"
                there.sendall(b"back")
                said = b""
                while len(said) < 4:
                    said += channel.take(BOUND_S)[0]
                assert said == b"back"
            while channel.take(BOUND_S) is not None:
                continue
        finally:
            channel.close()
    assert line.run(["echo", "still here"]).out == b"still here\n"


def test_a_port_where_nobody_listens_is_no_end_of_the_connection(line):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    try:
        channel = line.to_port(port)
    except Unreachable as error:
        assert str(port) in str(error)
    else:
        while channel.take(BOUND_S) is not None:
            continue
        channel.close()
    assert line.run(["echo", "still here"]).out == b"still here\n"


def test_reading_to_the_end(line):
    with line.start(["printf", "one\\ntwo"]) as talk:
        assert [talk.readline(BOUND_S) for _ in range(3)] == [b"one\n", b"two", b""]
        assert talk.read(10, BOUND_S) == b""


def test_one_that_never_answers_is_given_up_in_time(line):
    began = time.monotonic()
    with pytest.raises(Lost, match="no answer in time"):
        line.run(["sleep", "600"], limit_s=0.5)
    with line.start(["sleep", "600"]) as talk, pytest.raises(Lost):
        talk.readline(0.5)
    with line.start(["sleep", "600"]) as talk, pytest.raises(Lost):
        talk.write(b"x" * 20_000_000, limit_s=0.5)
    assert time.monotonic() - began < BOUND_S
    assert line.run(["echo", "still here"]).out == b"still here\n"


def test_a_process_outlives_its_connection(to, door, tmp_path):
    with connect(to(door)) as line:
        waits = f"touch {tmp_path}/begun; until [ -e {tmp_path}/go ]; do sleep 0.1; done; touch {tmp_path}/done"
        script = f"exec </dev/null >/dev/null 2>&1; {waits}"
        talk = line.start(["setsid", "sh", "-c", script])
        until("it has begun", (tmp_path / "begun").exists)
        talk.close()
    (tmp_path / "go").touch()
    until("it has ended", (tmp_path / "done").exists)


def test_a_connection_that_is_killed_is_never_success(to, door, tmp_path):
    line = connect(to(door))
    begun = tmp_path / "begun"

    def cut_it():
        until("the command is there", begun.exists)
        door.cut()

    cutter = threading.Thread(target=cut_it)
    cutter.start()
    began = time.monotonic()
    with pytest.raises(Lost, match="the connection broke"):
        line.run(["sh", "-c", f"touch {begun}; exec sleep 600"], limit_s=2 * BOUND_S)
    assert time.monotonic() - began < BOUND_S
    cutter.join()
    assert not line.alive
    with pytest.raises(Lost):
        line.start(["true"])
    line.close()


def test_what_came_before_the_end_is_there(to, door):
    with connect(to(door)) as line, line.start(["sh", "-c", "echo early; exec sleep 600"]) as talk:
        assert talk.readline(BOUND_S) == b"early\n"
        door.cut()
        assert talk.finish(BOUND_S).code is None
        with pytest.raises(Lost):
            talk.write(b"more")


def test_who_looks_only_when_there_may_be_something_hears_of_the_end(to, door):
    with connect(to(door)) as line, line.start(["sh", "-c", "echo early; read line"]) as talk:
        assert talk.readline(BOUND_S) == b"early\n"
        door.cut()
        assert said_next(talk) == b""


def said_next(talk):
    while select.select([talk.ready_fd], [], [], BOUND_S)[0]:
        with contextlib.suppress(Silent):
            return talk.read(100, 0.0)
    pytest.fail("it was never ready")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", UnknownKey),
        ("[127.0.0.1]:{port} {other}\n", ChangedKey),
        ("{line}@revoked * {key}\n", RevokedKey),
    ],
)
def test_a_key_that_is_not_trusted_is_refused_before_we_say_who_we_are(to, door, tmp_path, text, error):
    host_key = " ".join(Path(f"{door.host_keys[0]}.pub").read_text().split()[:2])
    other = " ".join(keygen(tmp_path / "other").split()[:2])
    (door.root / "known_hosts").write_text(text.format(port=door.port, other=other, line=door.host_line, key=host_key))
    before = door.log.count("[preauth]")
    with pytest.raises(error) as caught:
        connect(to(door))
    assert caught.value.key.fingerprint == listed(door.host_keys[0])
    assert caught.value.key.fingerprint in str(caught.value)
    assert caught.value.exit_code == Exit.UNREACHABLE
    until("sshd noticed that we left", lambda: door.log.count("[preauth]") > before)
    assert attempts(door) == []


def test_nothing_is_left_of_a_closed_connection(to, door):
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(3):
        with connect(to(door)) as line:
            line.run(["true"])
        with pytest.raises(NoAccess):
            connect(to(door, keys=()))
        with pytest.raises(UnknownKey):
            connect(to(door, known_hosts=()))
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == files
    until("sshd has nobody to serve", lambda: not door.serving())
