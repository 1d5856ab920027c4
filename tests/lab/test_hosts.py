"""The lab of SSH hosts: what it promises to the tests that use it, and that it leaves nothing behind."""

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import claims
from tests.lab.fixtures import open_folder
from tests.lab.hosts import HostLab
from tests.lab.nodes import BOUND_S, Cut, LabError, command_of, until

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
HOLD = "nohup setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $!"


# -- it works


def test_a_session_has_what_sshd_gives_and_nothing_of_the_tests(hosts, monkeypatch):
    monkeypatch.setenv("OF_THE_TESTS", "1")
    said = dict(line.split("=", 1) for line in hosts.ssh(2, "env").splitlines())
    known = {"HOME", "LOGNAME", "MAIL", "PATH", "PWD", "SHELL", "SHLVL", "SSH_CLIENT", "SSH_CONNECTION", "USER", "_"}
    assert said.keys() <= known
    assert said["HOME"] == said["PWD"] == str(hosts.place / "home")
    assert hosts.ssh(2, "hostname; command -v python3") == "node2\n/usr/bin/python3\n"
    with pytest.raises(LabError, match="No module named 'msgspec'"):
        hosts.ssh(2, "python3 -c 'import msgspec'")


def test_each_host_has_its_own_disk_memory_processes_and_boot(hosts):
    for index in range(4):
        hosts.ssh(index, f"echo {index} > {hosts.place}/mine; echo {index} > /dev/shm/mine; {HOLD}")
    for node in hosts.nodes:
        until("its process", lambda node=node: "sleep" in map(command_of, node.started()))
    assert [(hosts.disk(index) / "mine").read_text() for index in range(4)] == ["0\n", "1\n", "2\n", "3\n"]
    assert not list(hosts.place.iterdir())  # here nobody has a disk
    see = f"cat {hosts.place}/mine /dev/shm/mine; pgrep -c sleep; ls {hosts.disk(0).parent}"
    assert [hosts.ssh(index, see) for index in range(4)] == [f"{index}\n{index}\n1\n" for index in range(4)]
    boots = [hosts.ssh(index, "cat /proc/sys/kernel/random/boot_id") for index in range(4)]
    assert len(set(boots)) == 4
    hosts.nodes[3].power_off()
    hosts.nodes[3].power_on()
    boot, mine = hosts.ssh(3, f"cat /proc/sys/kernel/random/boot_id {hosts.place}/mine").splitlines()
    assert f"{boot}\n" not in boots and mine == "3"  # a disk outlives the power


@pytest.mark.daily
def test_hosts_reach_each_other_by_name(hosts):
    caller, called = hosts.nodes[0], hosts.nodes[1]
    said = caller.exec("ssh-keyscan", "-t", "ed25519", called.name).stdout
    assert said.split()[1:3] == hosts.known_hosts.read_text().splitlines()[1].split()[1:3]


def test_two_more_users_have_homes_and_rights_of_their_own(hosts):
    assert hosts.ssh(1, "id -un; id -u; pwd; echo hers > secret", user="ann") == f"ann\n20001\n{hosts.place}/ann\n"
    with pytest.raises(LabError, match="Permission denied"):
        hosts.ssh(1, f"cat {hosts.place}/ann/secret", user="ben")
    assert (hosts.home(1, "ann") / "secret").stat().st_uid == 20001


def test_one_disk_for_all(lab_possible):
    with open_folder() as folder, HostLab(folder, hosts=2, shared=True) as lab:
        lab.ssh(0, "echo seen > ~/file")
        assert lab.ssh(1, "cat ~/file") == "seen\n"
        assert (lab.home(0) / "file").samefile(lab.home(1) / "file")
        assert "shared: true" in lab.clusters_yaml()


def test_behind_a_jump_host_nothing_else_is_reached(lab_possible):
    with open_folder() as folder, HostLab(folder, hosts=1, jump=True) as lab:
        assert lab.ssh(0, "echo $SSH_CLIENT").startswith(f"{lab.gate.address} ")
        assert (lab.gate.connections(), lab.nodes[0].connections()) == (1, 1)
        direct = lab.run("ssh", "-F", str(lab.config), "-o", "ProxyJump=none", "node0", "true")
        assert direct.returncode == 255 and "refused" in direct.stderr
        lab.nodes[0].power_off()
        lab.nodes[0].power_on()
        direct = lab.run("ssh", "-F", str(lab.config), "-o", "ProxyJump=none", "node0", "true")
        assert direct.returncode == 255


def test_sshd_is_as_openssh_has_it_unless_told_otherwise(hosts):
    def setting(lab, name):
        done = subprocess.run(
            [*lab.nodes[0].programs["sshd"].argv, "-T"], capture_output=True, text=True, check=True, timeout=BOUND_S
        )
        return re.search(rf"^{name} (.*)$", done.stdout, re.MULTILINE)[1]

    assert [setting(hosts, name) for name in ("maxstartups", "maxsessions", "maxauthtries")] == ["10:30:100", "10", "6"]
    with open_folder() as folder, HostLab(folder, hosts=1, sshd=["MaxSessions 1", "LogLevel DEBUG2"]) as other:
        assert [setting(other, name) for name in ("maxsessions", "loglevel")] == ["1", "DEBUG2"]


def test_a_key_that_is_not_known_is_refused(hosts):
    lines = hosts.known_hosts.read_text().splitlines(keepends=True)
    swapped = hosts.files / "swapped"
    swapped.write_text(lines[0].split()[0] + " " + " ".join(lines[1].split()[1:]) + "\n")
    words = ["-o", f"UserKnownHostsFile={swapped}", "-o", "BatchMode=yes", "node0", "true"]
    done = hosts.run("ssh", "-F", str(hosts.config), *words)
    assert done.returncode == 255 and "IDENTIFICATION HAS CHANGED" in done.stderr


# -- faults


def test_power_cable_and_sshd(hosts):
    node = hosts.nodes[1]
    call = ("-F", str(hosts.config), "node1", "echo here")
    quick = ("-o", "ConnectTimeout=1", *call)
    held = int(hosts.ssh(1, HOLD))
    inside = node.pids()
    assert len(inside) >= 3  # the first process, sshd, and what the session left
    node.cut(Cut.BOTH)
    assert "timed out" in hosts.run("ssh", *quick).stderr
    node.mend()
    assert hosts.run("ssh", *call).stdout == "here\n"
    node.kill_sshd()
    assert "refused" in hosts.run("ssh", *call).stderr
    node.start_sshd()
    assert hosts.ssh(1, f"kill -0 {held} && echo lives") == "lives\n"
    node.power_off()
    assert not [pid for pid in inside if Path(f"/proc/{pid}").exists()]
    assert hosts.run("ssh", *quick).returncode == 255
    node.power_on()
    assert hosts.run("ssh", *call).stdout == "here\n"  # at once: it comes back with a sshd that listens


def test_cards_are_the_same_after_every_boot(hosts):
    """Else who has just talked to a host, or to the submitter, would call in vain until its neighbour is forgotten."""

    def cards():
        said = [hosts.run("ip", "-j", "link", "show", hosts.claim.bridge)]
        said += [node.exec("ip", "-j", "link", "show", "eth0") for node in hosts.nodes]
        return [json.loads(each.stdout)[0]["address"] for each in said]

    before = cards()
    assert len(set(before)) == 5
    for node in hosts.nodes:
        node.power_off()
    for node in reversed(hosts.nodes):
        node.power_on()
    assert cards() == before


def test_clear_undoes_everything(hosts):
    hosts.empty()  # of libraries that other tests have brought
    for index in range(4):
        library = hosts.home(index) / "launch" / "lib" / "digest"
        library.mkdir(parents=True)
        (hosts.home(index) / "launch" / "runs" / "old").mkdir(parents=True)
        (hosts.home(index) / "link").symlink_to("/etc")
        hosts.ssh(index, f"touch /dev/shm/left ~/.bashrc; {HOLD}")
        hosts.ssh(index, f"umask 0; touch file; {HOLD}", user="ann")
    busy = subprocess.Popen(["ssh", "-F", hosts.config, "node2", "trap '' HUP TERM; while :; do sleep 0.1; done"])
    try:
        until("the busy session", lambda: len(hosts.nodes[2].started()) >= 5)
        hosts.nodes[0].power_off()
        hosts.nodes[1].kill_sshd()
        hosts.nodes[3].cut(Cut.IN)
        hosts.clear()
        assert busy.wait(timeout=BOUND_S) == 255
    finally:
        busy.kill()
        busy.wait()
    for index, node in enumerate(hosts.nodes):
        assert node.started() == []
        found = {str(path.relative_to(hosts.disk(index))) for path in hosts.disk(index).rglob("*")}
        assert found == {"ann", "ben", "home", "home/launch", "home/launch/lib", "home/launch/lib/digest"}
        assert hosts.ssh(index, "ls /dev/shm") == ""
    assert Path("/etc/passwd").exists()  # what a link in a home led to
    hosts.empty()
    assert not list(hosts.home(0).iterdir())


def test_what_the_last_test_left_does_not_reach_the_next(hosts, capfd):
    hosts.nodes[0].signal("sshd", signal.SIGKILL)
    until("its end", lambda: "sshd" not in hosts.nodes[0].running())
    hosts.well()
    assert "sshd in node0 has ended" in capfd.readouterr().err
    hosts.ssh(3, HOLD)
    hosts.well()
    assert [node.started() for node in hosts.nodes] == [[]] * 4


NEW_USER = """
mount --bind "$1" /etc && exec "$2" -c '
import os, shutil
from tests.lab.fixtures import open_folder
from tests.lab.hosts import HostLab

with open_folder() as folder, HostLab(folder, hosts=1) as lab:
    assert "disk/home" in lab.ssh(0, "echo ~"), lab.ssh(0, "echo ~")
    for name in ("passwd", "hosts"):
        shutil.copy(f"/etc/{name}", f"/etc/{name}+")
        os.rename(f"/etc/{name}+", f"/etc/{name}")
    print(lab.ssh(0, "echo ~; cat /etc/hosts"))
'
"""


def test_a_host_keeps_its_home_while_a_package_adds_a_user_to_this_machine(lab_possible, tmp_path):
    """Its /etc/passwd was mounted on this machine's file, and gone when that was replaced: then all hosts had the real
    home of root, and so one disk."""
    etc = shutil.copytree("/etc", tmp_path / "etc", symlinks=True)  # seen by what runs below alone
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", NEW_USER, "sh", etc, sys.executable]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=BOUND_S)
    assert done.returncode == 0, done.stderr
    home, *hosts_file = done.stdout.splitlines()
    assert home.endswith("/disk/home")
    assert any(line.endswith(" node0") for line in hosts_file)


# -- it leaves nothing


def test_up_and_down_leave_nothing(lab_possible):
    with open_folder() as folder:
        lab = HostLab(folder)
        lab.up()
        lab.ssh(0, HOLD)
        assert lab.traces()
        lab.down()
        assert lab.traces() == []
        assert sorted(path.name for path in folder.iterdir()) == ["log", "own-etc"]


def test_what_cannot_come_up_says_why_and_leaves_nothing(lab_possible):
    with open_folder() as folder:
        lab = HostLab(folder, hosts=2, sshd=["Nonsense yes"])
        with pytest.raises(RuntimeError, match=r"(?s)sshd in node0 has ended.*Nonsense"):
            lab.up()
        assert lab.traces() == []


def test_by_hand(lab_possible):
    def command(*words):
        done = subprocess.run(
            [sys.executable, "-m", "tests.lab", *words], cwd=ROOT, capture_output=True, text=True, timeout=BOUND_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    with open_folder() as parent:
        folder = parent / "by-hand"
        try:
            said = command("up", "--kind", "hosts", "--nodes", "1", "--jump", "--at", folder)
            shell = f'{said.strip()}; ssh -F "$LAUNCH_SSH_CONFIG" node0 hostname; head -1 "$LAUNCH_CLUSTERS"'
            asked = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=BOUND_S)
            assert asked.stdout == "node0\npool:\n", asked.stderr
        finally:
            command("down", "--at", folder)
        assert not folder.exists()
        assert claims.tagged(str(folder)) == []
