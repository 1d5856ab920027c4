"""Test why a run cannot get to a login node: reported in one place, with a hint, and nothing is started or left."""

import os
import socket
import time

import pytest
from login_node import Laptop, LoginNode, all_pids, keygen, read, read_terminal

from tests.waits import until

pytestmark = pytest.mark.nightly

JOB = "name: job\nrun:\n  script: train.py\n  preload: []\nresources: {ranks_per_node: 1}\n"


@pytest.fixture
def refused(laptop, login_node):
    """Submits and gives what was said; nothing may have come of it."""
    laptop.script("train.py", "print('up')\n")
    laptop.spec(JOB)

    def refused(*words, check=5, spec="job.yaml", on="hpc", env=None):
        done = laptop.launch("submit", spec, "--on", on, *words, check=check, env=env)
        assert done.stdout == ""
        assert login_node.runs() == []
        assert laptop.runs() == []
        return done.stderr

    return refused


@pytest.mark.daily
def test_a_host_that_nobody_knows_or_that_is_another(laptop, login_node, refused, tmp_path):
    laptop.configure(known_hosts="")
    told = refused()
    assert told.splitlines()[0] == "launch: login node hpc of hpc cannot be reached"
    assert "Host key verification failed" in told
    assert "hint: `ssh hpc` by hand shows the host's key" in told
    assert (laptop.root / "known_hosts").read_text() == "", "and it is not learnt either"
    other = " ".join(keygen(tmp_path / "other").split()[:2])
    laptop.configure(known_hosts=f"[127.0.0.1]:{login_node.port} {other}\n")
    assert "Host key verification failed" in refused()
    assert login_node.asked() == []


def test_what_the_user_says_of_hosts_holds(laptop, login_node):
    laptop.configure("StrictHostKeyChecking accept-new", known_hosts="")
    laptop.script("train.py", "")
    laptop.spec(JOB)
    run = laptop.submit()
    assert login_node.runs() == [run]


@pytest.mark.daily
def test_a_key_that_does_not_open_and_a_port_where_nobody_listens(login_node, refused, tmp_path):
    (login_node.root / "authorized_keys").write_text(keygen(tmp_path / "other"))
    told = refused()
    assert "Permission denied (publickey" in told
    assert "hint: `ssh hpc true` must work without a password" in told
    login_node.down()
    assert "Connection refused" in refused()


@pytest.mark.daily
def test_a_launch_there_that_is_missing_too_old_or_too_new(laptop, login_node, refused):
    old = 'case "$1" in --version) echo launch 0.0.9;; *) echo "launch: no such command" >&2; exit 2;; esac'
    login_node.program(old)
    told = refused()
    assert "launch 0.0.9 there, " in told and "hint: install version " in told
    login_node.program("""printf 'launch-far {"wire":99,"launch":"9.9"}\\n'; cat > /dev/null""")
    assert "launch 9.9 there, " in refused()
    (login_node.bin / "launch").unlink()
    told = refused()
    assert "launch: login node hpc of hpc: there is no `launch`" in told
    assert "hint: `launch: ~/path/to/launch` of hpc in the clusters file says where it is" in told


def test_a_shell_that_talks_is_listened_past_and_launch_may_lie_in_a_folder_of_its_own(laptop, login_node):
    login_node.shell("echo Welcome to HPC; echo; printf 'no line end'; echo noise >&2; echo")
    folder = login_node.home / 'it\'s "a" $(touch pwned) folder'
    folder.mkdir()
    (login_node.bin / "launch").rename(folder / "launch")
    laptop.clusters(f"hpc:\n  kind: slurm\n  cluster: local\n  login: hpc\n  launch: |-\n    ~/{folder.name}/launch\n")
    laptop.script("train.py", "print('up')\n")
    laptop.spec(JOB)
    run = laptop.submit()
    assert laptop.launch("wait", run).stdout.startswith(f"{run} succeeded")
    assert laptop.launch("logs", run).stdout.endswith(" up\n")
    assert not (login_node.home / "pwned").exists()


@pytest.mark.daily
def test_problems_name_the_files_that_are_here(laptop, login_node, refused):
    laptop.spec("name: job\nrun:\n  script: trian.py\n  preload: []\n", "wrong.yaml")
    told = refused(spec="wrong.yaml", check=2)
    assert told.startswith("wrong.yaml:3:11: run.script: ")
    assert str(laptop.project) in told
    assert str(login_node.root) not in told
    assert "hint: did you mean" in told or "hint: paths are relative" in told


def test_a_spec_that_is_wrong_asks_nobody(laptop, login_node, refused):
    laptop.spec("name: ]", "broken.yaml")
    assert refused(spec="broken.yaml", check=2).startswith("broken.yaml:1:")
    laptop.spec(f"{JOB}secrets: [NOT_SET_ANYWHERE]\n", "unset.yaml")
    told = refused(spec="unset.yaml", check=2)
    assert told.startswith("unset.yaml:6:1: secrets: NOT_SET_ANYWHERE is not set\nhint: export NOT_SET_ANYWHERE=...")
    (laptop.project / "data").symlink_to("/etc")
    assert "code: data is a link to /etc, which is not sent" in refused(check=2)
    assert "hpcc: no such cluster\nhint: did you mean hpc?" in refused(on="hpcc", check=2)
    assert login_node.asked() == []


def test_a_cluster_that_is_not_there_and_a_file_system_that_is_full_there(laptop, refused):
    laptop.clusters("hpc: {kind: slurm, login: hpc, cluster: nowhere}\n")
    assert "nowhere: no such cluster" in refused(check=2)
    laptop.clusters("hpc: {kind: slurm, login: hpc, cluster: local, folder: /dev/full/launch}\n")
    assert "/dev/full: not a directory\n  said by login node hpc of hpc" in refused(check=4)


def test_one_login_node_away_does_not_hide_the_others(tmp_path, login_node):
    other = LoginNode(tmp_path / "other", "lab").up()
    laptop = Laptop(tmp_path / "laptop", login_node, other)
    gate = tmp_path / "gate"
    laptop.script("train.py", f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.02)\n")
    laptop.spec(JOB)
    try:
        runs = [laptop.submit(), laptop.submit(on="lab"), laptop.submit(on="local")]
        until("all of them", lambda: {one["state"] for one in laptop.statuses().values()} == {"running"})
        login_node.down()
        found = laptop.statuses()
        assert [found[run]["state"] for run in runs] == ["unknown", "running", "running"]
        message = found[runs[0]]["message"]
        assert message.startswith("login node hpc of hpc cannot be reached; ssh: connect to host 127.0.0.1")
        assert "; last seen RUNNING at 20" in message
        assert found[runs[0]]["as_of"] is not None
        assert [one["cluster"] for one in found.values()] == ["local", "lab", "hpc"]
        gate.touch()
        laptop.launch("wait", runs[1])
        laptop.launch("wait", runs[2])
        until("the end there", lambda: not login_node.processes())
        assert laptop.statuses()[runs[0]]["state"] == "unknown"
        login_node.up()
        assert laptop.statuses()[runs[0]]["state"] == "succeeded"
        login_node.down()
        assert laptop.statuses()[runs[0]]["state"] == "succeeded", "what has ended stays so, whoever is away"
    finally:
        gate.touch()
        laptop.launch("cancel", runs[2], check=None)
        other.tidy()


def test_login_nodes_that_never_answer(tmp_path, login_node):
    """One whose host takes the connection and says nothing, one whose launch hangs: together they cost one limit."""
    other = LoginNode(tmp_path / "other", "lab").up()
    laptop = Laptop(tmp_path / "laptop", login_node, other)
    laptop.script("train.py", "")
    laptop.spec(JOB)
    try:
        runs = [laptop.submit(), laptop.submit(on="lab")]
        laptop.forget_answers()
        login_node.program("sleep 1000")
        other.down()
        with socket.create_server(("127.0.0.1", other.port), backlog=16):
            started = time.monotonic()
            found = laptop.statuses()
            assert time.monotonic() - started < 60  # generously: one limit, and what a busy machine adds
        assert [found[run]["state"] for run in runs] == ["unknown", "unknown"]
        assert found[runs[0]]["message"] == "login node hpc of hpc does not answer; never seen"
        assert found[runs[1]]["message"].startswith("login node lab of lab ")
        assert not [pid for pid in all_pids() if str(laptop.root).encode() in read(pid, "cmdline")], "ssh is gone"
    finally:
        other.tidy()


def test_watching_keeps_its_connection(laptop, login_node, tmp_path):
    gate = tmp_path / "gate"
    laptop.script("train.py", f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.02)\n")
    laptop.spec(JOB)
    run = laptop.submit()
    before = len(login_node.asked())
    ours, theirs = os.openpty()
    with laptop.start("status", "--watch", stdin=theirs, stdout=theirs, stderr=theirs) as watch:
        os.close(theirs)
        shown = b""
        while watch.poll() is None:
            shown += read_terminal(ours)
            if shown.count(run.encode()) >= 3 and b" running " in shown:
                gate.touch()
        assert watch.returncode == 0
    shown += read_terminal(ours)
    os.close(ours)
    assert b"running" in shown
    assert b"succeeded" in shown
    assert len(login_node.asked()) == before + 1


def test_a_login_node_that_has_moved(laptop, login_node):
    laptop.script("train.py", "print('up')\n")
    laptop.spec(JOB)
    run = laptop.submit()
    laptop.launch("wait", run)
    laptop.forget_answers()
    laptop.configure(hosts={"new": login_node})
    assert laptop.statuses()[run]["state"] == "unknown"
    laptop.clusters("hpc: {kind: slurm, login: new, cluster: local}\n")
    assert laptop.statuses()[run]["state"] == "succeeded"
    assert "up" in laptop.launch("logs", run).stdout


def test_a_run_that_was_taken_away_there(laptop, login_node):
    laptop.script("train.py", "")
    laptop.spec(JOB)
    run = laptop.submit()
    laptop.launch("wait", run)
    assert laptop.statuses()[run]["state"] == "succeeded"
    (login_node.home / "launch" / "runs" / run).rename(login_node.root / "taken away")
    assert laptop.status(run)["state"] == "succeeded", "what has ended stays so"
    assert laptop.launch("logs", run, check=3).stderr.startswith(f"launch: {run}: its folder is gone")
    laptop.forget_answers()
    status = laptop.status(run)
    assert status["state"] == "unknown"
    assert status["message"].startswith("hpc does not know it any more")
