"""The lab itself: what it promises to the tests that use it, and that it leaves nothing behind."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab import claims, requirements
from tests.lab.nodes import BOUND_S, Cut, Program, until
from tests.lab.slurm import SlurmLab

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]

# One task a node: the first waits for the others to call it by its host's name.
MEETING = """
import os, socket, subprocess
names = ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]
first = subprocess.run(names, capture_output=True, text=True, check=True).stdout.split()[0]
if os.environ["SLURM_PROCID"] == "0":
    with socket.create_server((first, 4321)) as server:
        caller = server.accept()[0]
        print(f"{socket.gethostname()} heard {caller.recv(99).decode()}")
else:
    while True:
        try:
            with socket.create_connection((first, 4321), timeout=20) as call:
                call.sendall(socket.gethostname().encode())
            break
        except ConnectionRefusedError:
            pass
"""
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


def test_a_step_on_four_nodes_sees_its_gpus(lab):
    said = lab.ask("srun", "-N4", "--gres=gpu:2", "sh", "-c", 'echo "$(hostname) $CUDA_VISIBLE_DEVICES"')
    assert sorted(said.splitlines()) == [f"node{index} 0,1" for index in range(4)]
    assert lab.ask("srun", "--gres=gpu:1", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES") in {"0", "1"}


def test_nodes_talk_by_their_names(lab, tmp_path):
    script = tmp_path / "meeting.py"
    script.write_text(MEETING)
    job = submit(lab, f"srun {sys.executable} {script}", "-N2", "-w", "node1,node2", "-o", tmp_path / "out")
    until_gone(lab, job)
    assert (tmp_path / "out").read_text() == "node1 heard node2\n"


@pytest.mark.daily
def test_a_job_sees_its_node_alone(lab):
    said = lab.ask("srun", "-w", "node3", "sh", "-c", "hostname; ps -e -o comm=; ip -o -4 addr show eth0")
    assert said.startswith("node3\n")
    assert "slurmd" in said and "slurmctld" not in said
    assert f"{lab.nodes[3].address}/24" in said


def test_sacct_answers_with_accounting_and_not_without(lab, accounted_lab):
    accounted_lab.ask("srun", "--job-name=counted", "true")
    words = ["sacct", "-n", "-P", "-X", "--name=counted", "-o", "JobName,State"]
    until("the job's end in the database", lambda: accounted_lab.ask(*words) == "counted|COMPLETED")
    assert "accounting storage is disabled" in lab.run(*words).stderr


def test_two_labs_side_by_side(lab, tmp_path):
    with SlurmLab(tmp_path / "other", nodes=1, MinJobAge="7") as other:
        job = submit(lab, "sleep 600", "-w", "node0")
        assert other.ask("squeue", "-h") == ""
        assert re.search(r"^MinJobAge += 7 sec$", other.ask("scontrol", "show", "config"), re.MULTILINE)
        assert lab.ask("squeue", "-h", "-o", "%i") == job
        assert other.claim.subnet != lab.claim.subnet
        assert lab.nodes[0].exec("cat", "/etc/hosts").stdout != other.nodes[0].exec("cat", "/etc/hosts").stdout


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


def test_an_urgent_job_has_another_requeued(lab, tmp_path):
    job = submit(lab, f"date > {tmp_path}/started.$SLURM_RESTART_COUNT; sleep 600", "-N4", "--exclusive", "--requeue")
    until("its start", (tmp_path / "started.0").exists)
    urgent = submit(lab, f"touch {tmp_path}/urgent; sleep 600", "-N4", "--exclusive", "-p", "urgent")
    until("the urgent start", (tmp_path / "urgent").exists)
    assert lab.ask("squeue", "-h", "-j", job, "-o", "%T") == "PENDING"
    lab.ask("scancel", urgent)
    lab.ask("scontrol", "update", f"JobId={job}", "StartTime=now+2")
    until("the second start", (tmp_path / "started.1").exists)


def test_the_controller_killed_frozen_and_back(lab, tmp_path):
    job = submit(lab, beat(tmp_path))
    until_state(lab, job, "RUNNING")
    lab.freeze_controller()
    with pytest.raises(subprocess.TimeoutExpired):
        lab.run("squeue", timeout=1)
    lab.thaw_controller()
    lab.save_state()
    lab.stop_controller()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((lab.address, lab.port), timeout=5).close()
    lab.start_controller()
    until("the controller", lambda: lab.run("squeue", "-h", "-j", job, "-o", "%T").stdout == "RUNNING\n")
    beats_on(tmp_path)


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


def test_clear_reaches_a_node_that_does_not_answer(lab, monkeypatch, capsys):
    """Its daemon may be as well as can be: it is started again, then its node, then the controller."""
    restart = lab._restart_deaf_nodes
    monkeypatch.setattr(lab, "_restart_deaf_nodes", lambda: None)  # as where that is of no use
    lab.nodes[0].signal("slurmd", signal.SIGSTOP)
    until("a deaf node", lab._deaf)
    lab.clear(repair_s=1)
    lab.nodes[0].signal("slurmd", signal.SIGSTOP)
    until("a deaf node", lab._deaf)
    monkeypatch.setattr(lab, "_restart_deaf_nodes", restart)
    lab.clear(repair_s=1)
    assert lab.idle()
    assert "the lab is repaired" in capsys.readouterr().err


def test_clear_ends_the_end_of_a_job_that_is_gone(lab_possible, tmp_path):
    """Its controller was killed after it had saved that a node is down, and before that the node's job has ended."""
    with SlurmLab(tmp_path / "lab", nodes=2) as lab:
        job = submit(lab, "sleep 600", "-N2")
        until("its process", lab.nodes[0].job_pids)
        lab.save_state()
        state = lab.folder / "state" / "job_state"
        before = state.read_bytes()
        for node in lab.nodes:
            node.power_off()
        lab.ask("scancel", job)
        lab.ask("scontrol", "update", "NodeName=node1", "State=DOWN", "Reason=test")
        lab.save_state()
        lab.stop_controller()
        state.write_bytes(before)
        for node in lab.nodes:
            node.power_on()
        lab.start_controller()
        until("the controller", lambda: lab.run("scancel", job).returncode == 0)
        until("a clear cluster", lambda: lab._cleared(impatient=False))


def test_clear_counts_anew_only_where_no_job_is_known_to_be_left(tmp_path, monkeypatch):
    lab, told = SlurmLab(tmp_path / "lab", nodes=0), []
    said = {"squeue": (1, ""), "sinfo": (0, "node0 completing\n")}

    def run(*argv):
        told.append(argv[1])
        return subprocess.CompletedProcess(argv, *said.get(argv[0], (0, "")))

    monkeypatch.setattr(lab, "run", run)
    lab._cleared(impatient=False)
    assert "reconfigure" not in told
    said["squeue"] = (0, "")
    for _ in range(3):
        lab._cleared(impatient=True)
    assert (told.count("reconfigure"), told.count("update")) == (1, 3)


def test_a_daemon_that_does_not_come_up_does_not_end_the_repair(tmp_path, monkeypatch):
    class Deaf:
        name, programs, started = "node0", {"slurmd": "slurmd"}, 0

        def running(self):
            return {}

        def start(self, _program):
            self.started += 1

    lab, node = SlurmLab(tmp_path / "lab", nodes=0), Deaf()
    monkeypatch.setattr(lab, "_deaf", lambda: [node])
    lab._restart_deaf_nodes()
    assert node.started == 1


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


def test_what_cannot_come_up_says_why_and_leaves_nothing(lab_possible, tmp_path):
    lab = SlurmLab(tmp_path / "lab", nodes=1, SelectType="select/nonsense")
    with pytest.raises(RuntimeError, match=r"(?s)slurmctld in control has ended.*select/nonsense"):
        lab.up()
    assert lab.traces() == []


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


def test_by_hand(lab_possible, tmp_path):
    def command(*words):
        done = subprocess.run(
            [sys.executable, "-m", "tests.lab", *words], cwd=ROOT, capture_output=True, text=True, timeout=BOUND_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    folder = tmp_path / "by-hand"
    try:
        said = command("up", "--nodes", "1", "--at", folder)
        asked = subprocess.run(
            ["sh", "-c", f"{said.strip()}; srun hostname"], capture_output=True, text=True, timeout=BOUND_S
        )
        assert asked.stdout == "node0\n", asked.stderr
    finally:
        command("down", "--at", folder)
    assert not folder.exists()
    assert claims.tagged(str(folder)) == []


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


def until_gone(lab, job):
    until(f"the end of job {job}", lambda: job not in lab.ask("squeue", "-h", "-o", "%i").split())


def node_state(lab, name):
    return lab.ask("sinfo", "-h", "-n", name, "-p", "main", "-o", "%T")


def beat(folder):
    return f"while :; do date +%s.%N > {folder}/beat; sleep 0.1; done"


def beats_on(folder):
    before = (folder / "beat").read_text()
    until("another beat", lambda: (folder / "beat").read_text() not in {before, ""})


def reached(caller, called, timeout=0.5):
    """How a call from one node to the server of another ends."""
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
