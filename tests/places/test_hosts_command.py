"""Hosts of a pool from a command: what it may print, its limits, what is said where it fails, and who asks it."""

import os
import sys

import pytest

from launcher.errors import BadInput, Exit, LaunchError
from launcher.places.clusters_file import as_reached_now, entry, named_clusters, pool_of
from launcher.places.hosts_command import HostsCommand, ask, read_hosts
from launcher.spec.model import SshHost

ABOUT = "lab: ./hosts.py, which names its hosts"


@pytest.fixture
def pool(tmp_path, monkeypatch):
    """Write a clusters file with such a pool, and its command beside it as a shell script."""
    file = tmp_path / "config" / "clusters.yaml"
    file.parent.mkdir()
    file.write_text("lab:\n  kind: ssh\n  hosts: {command: [./hosts.py]}\n  user: me\n")
    file.chmod(0o600)
    monkeypatch.setenv("LAUNCH_CLUSTERS", str(file))

    def write(script):
        (file.parent / "hosts.py").write_text(f"#!/bin/sh\n{script}\n")
        (file.parent / "hosts.py").chmod(0o700)
        return file.parent

    return write


def command(script):
    return HostsCommand(("/bin/sh", "-c", script))


def refused(script, limit_s=60.0):
    with pytest.raises(LaunchError) as raised:
        ask("lab", command(script), limit_s)
    return raised.value


def test_one_host_a_line(pool):
    pool("printf 'gpu01\\n\\n  10.0.0.7 \\n'")
    found = pool_of(named_clusters()["lab"])
    assert found.hosts == (SshHost("gpu01"), SshHost("10.0.0.7"))
    assert found.user == "me"


def test_json_with_gpus(pool):
    pool("""echo '["gpu01", {"name": "gpu02",\t"gpus": 2, "address": "10.0.0.2"}]'""")
    assert pool_of(entry("lab")).hosts == (SshHost("gpu01"), SshHost("gpu02", "10.0.0.2", gpus=2))


def test_it_runs_beside_the_clusters_file_and_only_when_hosts_are_wanted(pool):
    folder = pool("pwd > ran; echo gpu01")
    assert named_clusters()["lab"].kind == "ssh"
    assert not (folder / "ran").exists()
    assert dict(entry("lab").defaults)["ssh.hosts"] == '["gpu01"]'
    assert (folder / "ran").read_text() == f"{folder}\n"


def test_a_resumed_run_gets_the_hosts_of_now_and_else_what_it_had(pool):
    folder = pool("cat listed")
    (folder / "listed").write_text("gpu01\n")
    before = entry("lab")
    (folder / "hosts.py").write_text("#!/bin/sh\n\ncat listed\n")
    clusters = folder / "clusters.yaml"
    clusters.write_text(clusters.read_text().replace("me", "you").replace("[./hosts.py]", "[./hosts.py, anew]"))
    (folder / "listed").write_text("gpu02\n")
    now = pool_of(as_reached_now(before))
    assert ([host.name for host in now.hosts], now.user) == (["gpu02"], "me")


@pytest.mark.parametrize(
    ("output", "lines"),
    [
        (b"", [f"{ABOUT}: expected 1 to 1000 hosts, got none"]),
        (b"[]", [f"{ABOUT}: expected 1 to 1000 hosts, got none"]),
        (b"h1\nh1\n", [f"{ABOUT}:2:1: [1]: 'h1' is in the list already"]),
        (b"h1\nnot a host\n", [f"{ABOUT}:2:1: [1]: expected a host name, got 'not a host'"]),
        (b"\xff\n", [f"{ABOUT}: expected text in UTF-8"]),
        (b'["h1", {"name": "h2", "gpus": "two"}]', [f"{ABOUT}:1:31: [1].gpus: expected an integer, got 'two'"]),
        (b'["h1"', [f"{ABOUT}: expected one host a line, or a JSON list: "]),
        ("\n".join(f"h{number}" for number in range(1001)).encode(), [f"{ABOUT}: expected 1 to 1000 hosts, got 1001"]),
    ],
)
def test_output_that_names_no_hosts(output, lines):
    with pytest.raises(BadInput) as raised:
        read_hosts(output, ABOUT)
    told = [line for line in raised.value.lines if not line.startswith("hint: ")]
    assert [got.startswith(line) for got, line in zip(told, lines, strict=True)] == [True], told


def test_a_thousand_hosts_with_gpus_are_read_back(pool):
    pool(f"{sys.executable} -c 'import json; print(json.dumps([dict(name=f\"h{{n}}\", gpus=8) for n in range(1000)]))'")
    assert len(pool_of(entry("lab")).hosts) == 1000


def test_a_command_that_fails_is_shown_with_its_last_words():
    error = refused("echo one >&2; echo two >&2; echo three >&2; printf 'four\\033[1m' >&2; exit 3")
    assert error.exit_code == Exit.UNREACHABLE
    assert error.lines == ("lab: /bin/sh, which names its hosts: exit code 3", "two", "three", "four\\x1b[1m")
    assert refused("kill -9 $$").lines == ("lab: /bin/sh, which names its hosts: killed by SIGKILL",)


def test_one_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path):
    os.mkfifo(tmp_path / "held")
    held = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    error = refused(f"echo logging in >&2; sleep 600 > {tmp_path}/held & wait", limit_s=1.0)
    assert error.exit_code == Exit.UNREACHABLE
    assert error.lines == ("lab: /bin/sh, which names its hosts: still running after 1 s", "logging in")
    os.set_blocking(held, True)
    assert os.read(held, 1) == b"", "it ends when nothing has it open any more"
    os.close(held)


def test_one_that_prints_without_end_is_ended():
    error = refused("yes")
    assert (error.exit_code, error.lines) == (
        Exit.BAD_INPUT, ("lab: /bin/sh, which names its hosts: printed more than 1,048,576 bytes",),
    )  # fmt: skip


def test_one_that_is_not_there_or_no_program(pool):
    folder = pool("echo gpu01")
    os.chmod(folder / "hosts.py", 0o600)
    with pytest.raises(BadInput, match=r"lab: \./hosts\.py, which names its hosts: permission denied"):
        entry("lab")
    (folder / "hosts.py").unlink()
    with pytest.raises(BadInput, match="no such file or directory"):
        entry("lab")


@pytest.mark.parametrize(
    ("hosts", "line"),
    [
        ("{}", "lab.hosts.command: missing"),
        ("{command: []}", "lab.hosts.command: "),
        ("{comand: [x], command: [x]}", "lab.hosts.comand: unknown option"),
        ("{command: [x]}\n  gpu: 2", "lab.gpu: unknown option"),
    ],
)
def test_a_clusters_file_with_a_wrong_command(pool, hosts, line):
    folder = pool("true")
    (folder / "clusters.yaml").write_text(f"lab:\n  kind: ssh\n  hosts: {hosts}\n")
    with pytest.raises(BadInput) as raised:
        named_clusters()
    assert line in raised.value.lines[0]
