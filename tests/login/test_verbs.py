"""Every verb on a run that is on a login node: the same words and exit codes as for one that is here."""

import json
import os
import signal
import subprocess
import sys

import at_breakpoint
import pytest
from login_node import BOUND_S, read, read_terminal
from saved_checkpoints import save, save_model

from tests.waits import until

pytestmark = pytest.mark.nightly

SCRIPT = """
import os, pathlib, sys, time
code, go_on = int(sys.argv[1]), pathlib.Path(sys.argv[2])
print(f"rank {os.environ['RANK']} is up", flush=True)
while not go_on.exists():
    time.sleep(0.02)
print(f"rank {os.environ['RANK']} leaves", flush=True)
sys.exit(code)
"""


class Jobs:
    """Jobs that end when they are told to."""

    def __init__(self, laptop, node, tmp_path):
        self.laptop, self.node, self.gate = laptop, node, tmp_path / "go-on"
        laptop.script("train.py", SCRIPT)

    def submit(self, code=0, *words, **more):
        recovery = "recovery: {user_error: 0}\n"
        run = f"run:\n  script: train.py\n  preload: []\n  args: [{code}, {self.gate}]\n"
        self.laptop.spec(f"name: job\n{run}resources: {{ranks_per_node: 2}}\n{recovery}")
        return self.laptop.submit(*words, **more)

    def up(self, run):
        until("both ranks", lambda: self.laptop.launch("logs", run).stdout.count("is up") == 2)
        return run


@pytest.fixture
def jobs(laptop, login_node, tmp_path):
    return Jobs(laptop, login_node, tmp_path)


def test_a_login_node_over_paramiko(laptop, login_node, jobs):
    laptop.clusters("hpc: {kind: slurm, login: root@hpc, cluster: local, transport: paramiko}\n")
    laptop.relay()  # whatever passes through ssh is written down
    run = jobs.up(jobs.submit())
    jobs.gate.touch()
    assert laptop.launch("wait", run).stdout.startswith(f"{run} succeeded")
    assert laptop.launch("logs", run).stdout.count("leaves") == 2
    assert all("-G" in call["argv"] for call in laptop.passed()), "ssh is asked what its configuration means, no more"


FUNCTION = """
import json, os, launcher
run = launcher.submit(lambda n: n + int(os.environ["WORLD_SIZE"]), 3, resources={"ranks_per_node": 2}, on="hpc")
print(json.dumps(run.result()))
"""


def test_a_function_of_a_program_and_its_result(laptop, login_node):
    laptop.script("program.py", FUNCTION)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=laptop.project, env=laptop.env, capture_output=True, text=True,
        timeout=BOUND_S,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("5\n", 0), done.stderr


HOSTS = """
import dataclasses, json
from launcher.places.clusters_file import entry, hosts_of
from launcher.spec.model import JobSpec, RunOptions
print(json.dumps([dataclasses.asdict(host) for host in hosts_of(entry("hpc"), JobSpec("board", RunOptions()))]))
"""


def test_what_of_its_cluster_is_free_is_asked_there(laptop, login_node, jobs):
    run = jobs.up(jobs.submit(0, "--set", "queue.slots=1"))
    asked = subprocess.run([sys.executable, "-c", HOSTS], env=laptop.env, capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr
    [host] = json.loads(asked.stdout)
    assert (host["state"], host["runs"]) == ("taken", [run])
    jobs.gate.touch()
    assert laptop.launch("wait", run).stdout.startswith(f"{run} succeeded")


@pytest.mark.daily
def test_a_run_from_end_to_end(laptop, login_node, jobs):
    run = jobs.up(jobs.submit())
    assert login_node.runs() == [run]
    assert laptop.statuses()[run]["state"] == "running"
    jobs.gate.touch()
    assert laptop.launch("wait", run).stdout.startswith(f"{run} succeeded")
    assert laptop.launch("logs", "last").stdout.count("leaves") == 2
    assert laptop.launch("logs", run, "--rank", "1").stdout.count("leaves") == 1
    status = laptop.status("job-")
    assert (status["state"], status["cluster"], status["exit_code"]) == ("succeeded", "hpc", 0)
    assert status["run_dir"] == str(laptop.folder(run)), "with what is known of it"
    assert laptop.launch("status").stdout.splitlines()[1].split()[-1] == "hpc"
    assert f"{run} succeeded" in laptop.launch("status", "last").stdout
    assert "has no checkpoints" in laptop.launch("checkpoints", run).stderr
    assert "no checkpoint yet" in laptop.launch("fetch", run).stdout


@pytest.mark.daily
def test_the_exit_code_is_the_runs(laptop, jobs):
    jobs.gate.touch()
    run = jobs.submit(3)
    done = laptop.launch("wait", run, check=10)
    assert "ended with exit code 3" in done.stdout
    # The second rank may be ended before it can say so.
    assert "leaves" in laptop.launch("logs", run, "-f", check=10).stdout
    assert laptop.status(run)["cause"] == "user_error"
    assert laptop.launch("wait", run, "--timeout", "-1", check=2).stderr.startswith("launch: ")


@pytest.mark.daily
def test_cancel_and_resume(laptop, login_node, jobs):
    run = jobs.up(jobs.submit())
    done = laptop.launch("cancel", run)
    assert done.stdout.splitlines()[-1] == f"{run} is cancelled"
    assert not login_node.processes()
    assert laptop.statuses()[run]["state"] == "cancelled"
    assert "already ended" in laptop.launch("cancel", run).stdout
    jobs.gate.touch()
    done = laptop.launch("resume", run, "--on", "hpc", "--set", "resources.ranks_per_node=1", "--follow")
    assert done.stdout.splitlines()[0] == run
    status = laptop.statuses()[run]
    assert (status["state"], status["attempt"], status["world_size"]) == ("succeeded", 2, 1)


def test_what_a_run_keeps_there_is_told_and_goes_with_it(laptop, login_node, jobs):
    run = jobs.up(jobs.submit())
    assert f"{run} is running" in laptop.launch("rm", run, check=4).stderr
    jobs.gate.touch()
    laptop.launch("wait", run)
    for tree in login_node.trees():
        os.utime(login_node.home / "launch" / "projects" / tree, (0, 0))  # nobody has used it lately
    (told,) = json.loads(laptop.launch("du", run, "--json").stdout)
    assert [(one["on"], one["total"] > 1000) for one in told["elsewhere"]] == [("hpc", True)]
    assert " on hpc" in laptop.launch("rm", run).stdout
    assert (login_node.runs(), login_node.trees(), laptop.runs()) == ([], [], [])


@pytest.mark.daily
def test_while_the_login_node_is_silent_a_run_stays_known(laptop, login_node, jobs):
    jobs.gate.touch()
    run = jobs.submit()
    laptop.launch("wait", run)
    login_node.down()
    refused = laptop.launch("rm", run, check=5)
    assert f"hpc was not asked: what it may keep of {run} stays there" in refused.stderr
    assert laptop.runs() == login_node.runs() == [run]
    login_node.up()
    laptop.launch("rm", run)
    assert laptop.runs() == login_node.runs() == []


def test_ctrl_c_ends_the_following_and_not_the_run(laptop, login_node, jobs):
    run = jobs.up(jobs.submit())
    with laptop.start("logs", run, "-f", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follower:
        while b"is up" not in follower.stdout.readline():
            pass
        follower.send_signal(signal.SIGINT)
        assert follower.wait(BOUND_S) == 130
        assert f"stopped following; {run} goes on".encode() in follower.stderr.read()
    until("the end of what served it", lambda: not serving(login_node))
    assert laptop.status(run)["state"] == "running"
    jobs.gate.touch()
    laptop.launch("wait", run)


def test_a_connection_that_breaks_is_no_end_of_the_run_nor_of_the_wait(laptop, login_node, jobs):
    run = jobs.up(jobs.submit())
    with laptop.start("wait", run, stdout=subprocess.PIPE) as waiter:
        until("launch there", lambda: serving(login_node))
        login_node.cut()
        jobs.gate.touch()
        assert waiter.wait(BOUND_S) == 0
        assert waiter.stdout.read().startswith(f"{run} succeeded".encode())


def test_on_a_terminal_it_looks_as_it_does_here(laptop, jobs):
    jobs.gate.touch()
    run = jobs.submit()
    laptop.launch("wait", run)
    ours, theirs = os.openpty()
    subprocess.run(["stty", "rows", "30", "cols", "100"], stdin=theirs, check=True)
    laptop.env["TERM"] = "xterm"
    with laptop.start("logs", run, stdin=theirs, stdout=theirs, stderr=theirs) as shown:
        os.close(theirs)
        text = b"".join(iter(lambda: read_terminal(ours), b""))
        assert shown.wait(BOUND_S) == 0
    os.close(ours)
    assert b"\x1b[3" in text, "ranks have their colours"
    assert b"\r\r\n" not in text
    plain = laptop.launch("logs", run).stdout
    assert "\x1b" not in plain


def test_dry_run_shows_what_would_be_there(laptop, login_node, jobs):
    text = jobs.submit(0, "--dry-run")
    assert "would run on hpc; nothing was started" in text
    assert str(login_node.home) in text
    plan = json.loads(jobs.submit(0, "--dry-run", "--json"))
    assert plan["cluster_kind"] == "login"
    assert f"hpc:{login_node.home}/launch/runs/job-" in plan["cluster_says"]
    assert [entry["path"] for entry in plan["files"]] == ["job.yaml", "pyproject.toml", "train.py"]
    assert login_node.runs() == []
    assert laptop.runs() == []


def test_local_runs_are_as_they_were(laptop, login_node, jobs):
    jobs.gate.touch()
    away, here = jobs.submit(), jobs.submit(on="local")
    laptop.launch("wait", here)
    laptop.launch("wait", away)
    assert set(laptop.statuses()) == {away, here}
    assert laptop.status("last")["cluster"] == "local"
    asked = len(login_node.asked())
    laptop.launch("logs", here)
    laptop.launch("status", here)
    assert len(login_node.asked()) == asked, "and ask nobody"
    assert laptop.launch("logs", "job-", check=3).stderr.startswith("launch: job-: expected the id of one run")


def serving(node):
    """Return a server that answers clients on another machine."""
    lines = {pid: read(pid, "cmdline") for pid in node.connections()}
    return [pid for pid, line in lines.items() if b"launcher.cli.main" in line and b"_far" in line]


def test_several_runs_at_once(laptop, login_node, jobs):
    jobs.gate.touch()
    runs = jobs.submit(0, "--repeat", "3").splitlines()
    assert sorted(runs) == login_node.runs()
    assert len(runs) == 3
    (laptop.project / "other.yaml").write_text((laptop.project / "job.yaml").read_text())
    done = laptop.launch("submit", "job.yaml", "other.yaml", "--on", "hpc", "--json")
    told = {one["run"]: one["run_dir"] for one in json.loads(done.stdout)}
    assert len(told) == 2
    assert {*runs, *told} == set(login_node.runs()) == set(laptop.statuses())
    assert all(path == str(laptop.folder(run)) for run, path in told.items())
    asked = len(login_node.asked())
    (laptop.project / "other.yaml").write_text("name: other\n")
    assert "run: missing" in laptop.launch("submit", "job.yaml", "other.yaml", "--on", "hpc", check=2).stderr
    assert len(login_node.asked()) == asked, "a problem in one of them starts none"
    for run in {*runs, *told}:
        laptop.launch("wait", run)


def test_a_run_goes_on_here(laptop, login_node, jobs):
    run = jobs.up(jobs.submit())
    laptop.launch("cancel", run)
    jobs.gate.touch()
    laptop.launch("resume", run, "--on", "local", "--follow")
    status = laptop.status(run)
    assert (status["state"], status["cluster"], status["attempt"]) == ("succeeded", "local", 2)
    assert laptop.launch("logs", run).stdout.count("is up") == 4, "of both attempts"
    assert login_node.runs() == [run]


def test_a_run_that_was_here_goes_on_there(laptop, login_node, jobs):
    jobs.gate.touch()
    run = jobs.submit(0, on="local")
    laptop.launch("wait", run)
    checkpoint = save(laptop.folder(run) / "checkpoints", 7)
    laptop.launch("resume", run, "--on", "hpc")
    laptop.launch("wait", run)
    status = laptop.status(run)
    assert (status["state"], status["cluster"], status["attempt"]) == ("succeeded", "hpc", 2)
    assert laptop.launch("logs", run).stdout.count("is up") == 4, "of both attempts"
    there = login_node.home / "launch" / "runs" / run
    assert (there / "checkpoints" / checkpoint.name / "rank-00001.data").read_bytes() == b"\1" * 1000
    assert [path.name for path in (there / "attempts").iterdir()] == ["0002"]
    listed = json.loads(laptop.launch("checkpoints", run, "--verify", "--json").stdout)
    assert [(one["step"], one["state"]) for one in listed] == [(7, "verified")]
    assert listed[0]["path"] == f"hpc:{there}/checkpoints/{checkpoint.name}"


@pytest.mark.daily
def test_weights_come_home_as_one_file(laptop, login_node, jobs):
    """The checkpoint is fetched first; one that is here is not asked for again."""
    jobs.gate.touch()
    run = jobs.submit()
    laptop.launch("wait", run)
    save_model(login_node.home / "launch" / "runs" / run / "checkpoints", 7)
    file = laptop.folder(run) / "weights.safetensors"
    done = laptop.launch("export", run, "-o", str(file))
    assert "checkpoint of step 7, 2 files" in done.stderr
    assert done.stderr.endswith("step 7: 1 tensor, 12 B, float32\n")
    assert file.stat().st_size > 12
    again = laptop.launch("export", run, "--step", "7", "-o", str(file), "--force")
    assert again.stderr == "step 7: 1 tensor, 12 B, float32\n"
    theirs = login_node.home / "launch" / "runs" / run / "checkpoints" / "step-00000007"
    ours = laptop.folder(run) / "checkpoints" / theirs.name
    assert {path.name: path.read_bytes() for path in ours.iterdir()} == {
        path.name: path.read_bytes() for path in theirs.iterdir()
    }
    assert "here already" in laptop.launch("fetch", run, "--checkpoint", "7").stdout
    assert "has no whole checkpoint of step 8" in laptop.launch("fetch", run, "--checkpoint", "8", check=4).stderr


WRITES = """
import os, pathlib
pathlib.Path("results", "deep").mkdir(parents=True, exist_ok=True)
pathlib.Path("results", "deep", f"rank {os.environ['RANK']}.bin").write_bytes(b"x" * 9_000_000)
pathlib.Path("scratch.txt").touch()
pathlib.Path("results", "link").symlink_to("/etc/hostname")
"""


def test_what_ranks_write_beside_their_code_comes_home(laptop):
    """More than fits into one answer; of what a spec names that alone, and again what there is by then."""
    laptop.script("train.py", WRITES)
    spec = "name: job\nrun: {script: train.py, preload: [], outputs: [results/]}\nresources: {ranks_per_node: 1}\n"
    laptop.spec(spec)
    run = laptop.submit()
    laptop.launch("wait", run)
    folder = laptop.folder(run) / "fetched-outputs"
    for _ in range(2):
        said = laptop.launch("fetch", run, "--outputs", "--checkpoint", "none").stdout
        assert f"outputs, 1 file: {folder}\n" in said
        found = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
        assert found == {"results/deep/rank 0.bin": 9_000_000}


@pytest.mark.parametrize("transport", ["openssh", "paramiko"])
def test_looking_inside(laptop, jobs, transport):
    """By the login node's own way to the rank, with its refusals and exit codes."""
    laptop.clusters(f"hpc: {{kind: slurm, login: root@hpc, cluster: local, transport: {transport}}}\n")
    run = jobs.up(jobs.submit())
    done = laptop.launch("exec", run, "--rank", "1", "--", "sh", "-c", "echo $RANK; echo aside >&2; exit 7", check=7)
    assert (done.stdout, done.stderr) == ("1\n", "aside\n")
    found = json.loads(laptop.launch("stacks", run, "--json").stdout)
    assert [(each["rank"], each["problem"], bool(each["stacks"])) for each in found] == [(0, "", True), (1, "", True)]
    until("a sample", lambda: [len(node["ranks"]) for node in sampled(laptop, run)] == [2])
    jobs.gate.touch()
    laptop.launch("wait", run)
    assert "no rank of it runs" in laptop.launch("exec", run, "--", "true", check=4).stderr


def test_a_shell_and_a_debugger_there(laptop):
    laptop.script("stops.py", at_breakpoint.SCRIPT)
    laptop.spec(at_breakpoint.RUN + "resources: {ranks_per_node: 2}\n")
    run = laptop.submit()
    until("a rank that waits", lambda: at_breakpoint.waits_in(laptop.status(run)))
    until("what it says then", at_breakpoint.look_inside(laptop, run))
    laptop.launch("cancel", run)


def sampled(laptop, run):
    """Return what `launch top` shows of each node."""
    return json.loads(laptop.launch("top", run, "--json").stdout)["nodes"]
