"""The lab of SSH hosts: what it promises to the tests that use it, and that it leaves nothing behind."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
