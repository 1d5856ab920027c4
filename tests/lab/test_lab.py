"""The lab itself: what it promises to the tests that use it, and that it leaves nothing behind."""

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab import claims, requirements
from tests.lab.nodes import Cut, Program, until
from tests.lab.slurm import SlurmLab

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]

# One task a node: the first waits for the others to call it by its host's name.
# Ends at nothing but SIGKILL, and leaves a child behind that is in no group or session of its own job.
STUBBORN = """
trap '' TERM
setsid sh -c 'trap "" TERM; while :; do sleep 0.1; done' &
while :; do sleep 0.1; done
"""


# -- it works


@pytest.fixture
def tmp_path():
    """A short path: slurmd's sockets are below it, and a socket's may have no more than 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="lab-") as folder:
        yield Path(folder)


@pytest.fixture
def lab(tmp_path, lab):
    """Cleared before that folder goes: jobs write into it for as long as they live."""
    return lab


@pytest.mark.daily
def test_a_job_sees_its_node_alone(lab):
    said = lab.ask("srun", "-w", "node3", "sh", "-c", "hostname; ps -e -o comm=; ip -o -4 addr show eth0")
    assert said.startswith("node3\n")
    assert "slurmd" in said and "slurmctld" not in said
    assert f"{lab.nodes[3].address}/24" in said


# -- faults


def test_power_off_ends_everything_and_the_job_is_requeued(lab_possible, tmp_path):
    quick = {"SlurmdTimeout": "5", "MessageTimeout": "3", "TCPTimeout": "1"}
    with SlurmLab(tmp_path / "lab", nodes=1, **quick) as lab:
        [node] = lab.nodes
        job = submit(lab, f"touch {tmp_path}/started.$SLURM_RESTART_COUNT; {beat(tmp_path)}", "--requeue")
        until("its first beat", (tmp_path / "beat").exists)
        inside = node.pids()
        assert len(inside) >= 4  # the first process, slurmd, slurmstepd, the script
        node.power_off()
        assert not [pid for pid in inside if Path(f"/proc/{pid}").exists()]
        until("slurmctld's notice", lambda: node_state(lab, node.name).startswith("down"))
        until_state(lab, job, "PENDING")
        node.power_on()
        lab.ask("scontrol", "update", f"JobId={job}", "StartTime=now+2")
        until("the second start", (tmp_path / "started.1").exists)


def test_slurmd_killed_alone_leaves_its_jobs(lab, tmp_path):
    job = submit(lab, beat(tmp_path), "-w", "node2")
    until("its first beat", (tmp_path / "beat").exists)
    lab.nodes[2].kill_slurmd()
    assert lab.nodes[2].exec("pidof", "slurmd").returncode == 1
    beats_on(tmp_path)
    lab.nodes[2].start_slurmd()
    assert lab.ask("srun", "-w", "node2", "hostname") == "node2"
    assert lab.ask("squeue", "-h", "-j", job, "-o", "%T") == "RUNNING"


def test_every_cut_cuts_and_is_mended(lab, tmp_path):
    """node0 calls a server in node1; both talk with the controller too, which is how a cut of one peer shows."""
    called, caller = lab.nodes[1], lab.nodes[0]
    with serving(called, tmp_path / "server"):
        until("an answer", lambda: reached(caller, called) == "answered")
        for how in (Cut.LINK, Cut.IN, Cut.OUT, Cut.BOTH):
            called.cut(how)
            assert reached(caller, called) == "silence", how
        called.cut(Cut.RESET)
        until("a refusal", lambda: reached(caller, called) == "refused")
        called.cut(Cut.BOTH, peers=[caller])
        assert reached(caller, called) == "silence"
        until("an answer to another", lambda: reached(lab.nodes[2], called) == "answered")
        called.cut(Cut.LOSS)
        seen = set()
        until("both fates", lambda: seen.add(reached(caller, called)) or seen == {"answered", "silence"})
        called.mend()
        until("an answer", lambda: reached(caller, called) == "answered")


def test_clear_undoes_everything(lab):
    submit(lab, STUBBORN, "-N1", "-w", "node0")
    submit(lab, "sleep 600", "-N4", "--exclusive")
    until("a stubborn child", lambda: len(lab.nodes[0].job_pids()) >= 3)
    lab.nodes[1].power_off()
    lab.nodes[2].kill_slurmd()
    lab.nodes[3].cut(Cut.BOTH)
    lab.stop_controller()
    lab.clear()
    assert lab.idle()
    assert [node.job_pids() for node in lab.nodes] == [[]] * 4
    assert lab.ask("srun", "-N4", "true") == ""


# -- it leaves nothing


def test_up_and_down_leave_nothing(lab_possible, tmp_path):
    lab = SlurmLab(tmp_path / "lab")
    lab.up()
    submit(lab, STUBBORN, "-N2")
    until("a stubborn child", lambda: len(lab.nodes[0].job_pids()) >= 3)
    assert lab.traces()
    lab.down()
    assert lab.traces() == []
    assert sorted(path.name for path in lab.folder.iterdir()) == [
        "cgroup.conf",
        "gres.conf",
        "log",
        "own-etc",
        "slurm.conf",
    ]


def test_a_folder_whose_sockets_would_be_too_long_is_refused(lab_possible, tmp_path):
    """Slurm itself holds each job there for ever, and says nothing of why."""
    with pytest.raises(RuntimeError, match="too long a name: jobs would be held"):
        SlurmLab(tmp_path / ("x" * 80)).up()


def test_a_killed_owner_takes_its_processes_along_and_the_next_lab_clears_the_rest(lab_possible, tmp_path):
    body = "import sys; from pathlib import Path; from tests.lab.slurm import SlurmLab"
    body += "; SlurmLab(Path(sys.argv[1]), nodes=1).up(); print('up', flush=True); input()"
    folder = tmp_path / "theirs"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", body, folder], cwd=ROOT, **pipes) as owner:
        try:
            assert owner.stdout.readline() == b"up\n"
            assert claims.tagged(str(folder))
            with claims.locked():  # no other lab that comes up meanwhile shall clear it
                owner.kill()
                until("the end of its processes", lambda: not claims.tagged(str(folder)))
                [theirs] = [each for each in claims.claims() if each.folder == str(folder)]
                assert theirs.bridge in os.listdir("/sys/class/net")
                assert list((folder / "dev").iterdir())
        finally:
            owner.kill()
    with SlurmLab(tmp_path / "mine", nodes=1):
        assert theirs not in claims.claims()
        assert not (folder / "dev").exists()


# -- where there can be none


@pytest.mark.daily
def test_a_missing_program_is_named_and_in_ci_that_is_a_failure(monkeypatch, tmp_path):
    reason = requirements.missing("slurmd", "strace", path=str(tmp_path))
    assert reason == f"slurmd, strace not installed: {requirements.INSTALL}"
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"tests\.lab install"):
        requirements.skip_or_fail(reason)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"tests\.lab install"):
        requirements.skip_or_fail(reason)


# -- what they share


def submit(lab, script, *options):
    words = [str(option) for option in ("-o", "/dev/null", *options)]
    return lab.ask("sbatch", "--parsable", *words, "--wrap", f": ${{SLURM_RESTART_COUNT:=0}}\n{script}")


def until_state(lab, job, state):
    until(f"job {job} {state}", lambda: lab.ask("squeue", "-h", "-j", job, "-o", "%T") == state)


def node_state(lab, name):
    return lab.ask("sinfo", "-h", "-n", name, "-p", "main", "-o", "%T")


def beat(folder):
    return f"while :; do date +%s.%N > {folder}/beat; sleep 0.1; done"


def beats_on(folder):
    before = (folder / "beat").read_text()
    until("another beat", lambda: (folder / "beat").read_text() not in {before, ""})


def reached(caller, called, timeout=0.5):
    """Return how a connection from one node to the server of another ends: answered, refused or silence."""
    call = f"import socket; socket.create_connection(('{called.name}', 4322), timeout={timeout})"
    done = caller.exec(sys.executable, "-S", "-c", call)
    if done.returncode == 0:
        return "answered"
    return "refused" if "ConnectionRefusedError" in done.stderr else "silence"


@contextmanager
def serving(node, log):
    """A server in a node that takes every call."""
    body = "import socket; s = socket.create_server(('', 4322)); print('up', flush=True)\n"
    body += "while True: s.accept()[0].close()"
    node.start(Program("server", [sys.executable, "-S", "-c", body], log))
    until("the server", lambda: log.exists() and "up" in log.read_text())
    yield
    node.kill_program("server")
