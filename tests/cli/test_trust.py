"""`launch nodes trust`: who is asked what, and what is known afterwards."""

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
from doors import BOUND_S, MISSING, Door, keygen
from login_node import read_terminal

from launcher.cli.places.trust import trust_hosts
from launcher.errors import Exit
from launcher.remote.connect import connect
from tests.lab.requirements import skip_or_fail

ROOT = Path(__file__).parents[2]


@pytest.fixture
def door(tmp_path):
    if MISSING:
        skip_or_fail(MISSING)
    door = Door(tmp_path / "door").up()
    yield door
    door.close()


@pytest.fixture
def known(door):
    """The user's file of known hosts, with nothing in it."""
    (door.root / "known_hosts").write_text("")
    return door.root / "known_hosts"


def shown(door):
    done = subprocess.run(["ssh-keygen", "-lf", door.host_keys[0]], capture_output=True, text=True, check=True)
    return done.stdout.split()[1]


def on_terminal(door, answer):
    """Return the command's output on a terminal where this is typed, and its exit code."""
    program = (
        "import sys; from pathlib import Path\n"
        "from launcher.cli.places.trust import trust_hosts\nfrom launcher.remote.target import Target\n"
        f"sys.exit(trust_hosts([{repr(door.target()).replace('PosixPath', 'Path')}]))\n"
    )
    near, far = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdin=far, stdout=far, stderr=far)
    os.close(far)
    said, deadline = b"", time.monotonic() + BOUND_S
    while b"is it the right one?" not in said:
        assert time.monotonic() < deadline, said
        piece = read_terminal(near)
        assert piece, said
        said += piece
    os.write(near, f"{answer}\n".encode())
    while piece := read_terminal(near):
        said += piece
    os.close(near)
    return process.wait(BOUND_S), said.decode().replace("\r", "")


def openssh_agrees(door):
    done = subprocess.run(
        ["ssh", "-F", "none", "-o", "StrictHostKeyChecking=yes", "-o", f"UserKnownHostsFile={door.root}/known_hosts",
         "-o", "GlobalKnownHostsFile=/dev/null", "-o", "BatchMode=yes", "-i", door.key, "-p", str(door.port),
         "root@127.0.0.1", "true"],
        capture_output=True, text=True,
    )  # fmt: skip
    return done.returncode == 0, done.stderr


@pytest.mark.parametrize("answer", ["yes", "YES", "fingerprint"])
def test_who_says_yes_trusts(door, known, answer):
    assert not openssh_agrees(door)[0]
    code, said = on_terminal(door, shown(door) if answer == "fingerprint" else answer)
    assert code == 0, said
    assert f"shows a key that is not known:\n  ssh-ed25519 {shown(door)}\n" in said
    assert "Accepted" not in door.log
    assert "authenticating user" not in door.log
    assert openssh_agrees(door) == (True, "")
    connect(door.target()).close()


@pytest.mark.parametrize("answer", ["", "no", "y", "SHA256:0000"])
def test_whoever_says_something_else_does_not(door, known, answer):
    code, said = on_terminal(door, answer)
    assert code == Exit.REFUSED
    assert "not trusted" in said
    assert known.read_text() == ""


def test_a_changed_key_wants_more_than_yes(door, known, tmp_path):
    old = " ".join(keygen(tmp_path / "old").split()[:2])
    line = f"[127.0.0.1]:{door.port} {old}\n"
    known.write_text(line)
    code, said = on_terminal(door, "yes")
    assert (code, known.read_text()) == (Exit.REFUSED, line)
    assert "shows another key than the known one" in said
    assert f"({known}:1)" in said
    code, said = on_terminal(door, shown(door))
    assert code == 0, said
    assert known.read_text() == door.host_line
    assert openssh_agrees(door) == (True, "")


def test_without_a_terminal_nobody_is_trusted(door, known, capsys):
    assert trust_hosts([door.target()]) == Exit.REFUSED
    said = capsys.readouterr()
    assert said.out == ""
    assert shown(door) in said.err
    assert "no terminal here to ask on" in said.err
    assert "hint: `launch nodes trust door --yes FINGERPRINT`" in said.err
    assert known.read_text() == ""


def test_an_announced_key_needs_no_terminal(door, known, capsys):
    assert trust_hosts([door.target()], ["SHA256:another"]) == Exit.REFUSED
    assert trust_hosts([door.target()], ["SHA256:another", shown(door)]) == Exit.OK
    assert f"door: ssh-ed25519 {shown(door)} is known from now on, by {known}\n" in capsys.readouterr().out
    assert openssh_agrees(door) == (True, "")
    assert trust_hosts([door.target()]) == Exit.OK
    assert "known already" in capsys.readouterr().out


def test_hosts_on_the_way_come_first(door, known, tmp_path, capsys):
    jump = Door(tmp_path / "jump", "jump").up()
    try:
        (jump.root / "known_hosts").write_text("")
        targets = [door.target(name=name, jumps=(jump.target(),)) for name in ("gpu01", "gpu02")]
        assert trust_hosts(targets, [shown(door)]) == Exit.REFUSED
        assert known.read_text() == ""
        assert "Accepted" not in jump.log
        capsys.readouterr()
        assert trust_hosts(targets, [shown(jump), shown(door)]) == Exit.OK
        assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["jump", "gpu01"]
        connect(targets[1]).close()
    finally:
        jump.close()


def test_a_revoked_key_is_never_trusted(door, known, capsys):
    known.write_text(f"@revoked * {' '.join(door.host_line.split()[1:])}\n")
    before = known.read_text()
    assert trust_hosts([door.target()], [shown(door)]) == Exit.UNREACHABLE
    assert "was revoked" in capsys.readouterr().err
    assert known.read_text() == before


def test_one_that_is_away_does_not_hinder_the_others(door, known, capsys):
    away = door.target(name="away", port=1, known_as="[127.0.0.1]:1")
    assert trust_hosts([away, door.target()], [shown(door)]) == Exit.UNREACHABLE
    said = capsys.readouterr()
    assert "away" in said.err
    assert "door: ssh-ed25519" in said.out
