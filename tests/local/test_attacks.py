"""Bad neighbours on one machine: poisoned environments, hostile names, strangers on our ports, clocks that jump."""

import asyncio
import json
import os
import random
import sys
import time
from pathlib import Path

import pytest
from hostile import (
    CANARY,
    NASTY,
    OF_THE_RUN,
    command_lines,
    drawn,
    files_with,
    heard,
    no_canary,
    others_see,
    witness,
)
from lab import Lab, environment

pytestmark = pytest.mark.nightly

PLACED = {"ranks_per_node": 2}
POISON = {
    "RANK": "7", "WORLD_SIZE": "99", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "1", "LOCAL_RANK": "5",
    "SLURM_NTASKS": "99", "SBATCH_TIMELIMIT": "7", "SRUN_CPUS_PER_TASK": "3", "SLURM_CPU_BIND": "quiet",
    "PMIX_RANK": "4", "TORCHELASTIC_RUN_ID": "x", "LAUNCH_RUN_DIR": "/tmp", "LAUNCH_ATTEMPT": "9",
    "GROUP_RANK": "4",
}  # fmt: skip


@pytest.mark.daily
def test_arguments_and_variables_arrive_byte_for_byte(lab, tmp_path):
    """In a script and in a command of its own, which no shell reads."""
    words = NASTY + drawn(200, 40)
    env = {f"T_{number}": word for number, word in enumerate(words)}
    ranks = heard(lab, lab.submit(witness(lab, PLACED, words, env)))
    assert [one["argv"] for one in ranks] == [words, words]
    for one in ranks:
        assert {name: one["env"].get(name) for name in env} == env
    command = {"command": [sys.executable, "witness.py", *NASTY]}
    assert [one["argv"] for one in heard(lab, lab.submit(witness(lab, PLACED, run=command)))] == [NASTY, NASTY]
    no_canary(tmp_path)


@pytest.mark.daily
def test_a_poisoned_environment_changes_nothing(lab):
    spec = witness(lab, PLACED)
    clean, dirty = (heard(lab, lab.submit(spec, env=env)) for env in ({}, POISON))
    assert len(clean) == 2
    for one, other in zip(clean, dirty, strict=True):
        ours, theirs = (
            {name: value for name, value in each["env"].items() if name not in OF_THE_RUN} for each in (one, other)
        )
        assert ours == theirs


def listeners_of(pids):
    """Addresses that these processes listen on, as the kernel says."""
    inodes = set()
    for pid in pids:
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
        except OSError:
            continue
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.append(fields[1])
    return found


@pytest.mark.daily
def test_we_listen_on_the_nodes_own_address_only(lab):
    run = lab.submit(lab.chain(args="steps: 5000", resources="nodes: 2\nranks_per_node: 1"))
    lab.until_step(run, 2)
    agents = [lab.agent_pid(run, 0), lab.agent_pid(run, 1)]
    supervisor = json.loads((lab.run_dir(run) / "attempts" / "0001" / "handle.json").read_text())["keeper"]["pid"]
    zygotes = [pid for agent in agents for pid in lab.zygotes(agent)]
    found = listeners_of([supervisor, *agents, *zygotes])
    assert len(found) == 1
    assert found[0].split(":")[0] == "0100007F"
    lab.launch("cancel", run)


@pytest.mark.daily
def test_strangers_on_the_coordinators_port_disturb_nothing(lab):
    run = lab.submit(lab.chain(args="steps: 150", hold=149))
    lab.until_step(run, 2)
    endpoint = json.loads((lab.run_dir(run) / "attempts" / "0001" / "coordinator.json").read_text())
    draw = random.Random(3)

    async def pester():
        silent = []
        for number in range(60):
            _, writer = await asyncio.open_connection(endpoint["address"], endpoint["port"])
            if number % 3 == 0:
                silent.append(writer)
                continue
            junk = [draw.randbytes(2000), b'{"v":1,"nonce":"a","mac":"b"}\n', b"x" * 2_000_000][number % 3]
            writer.write(junk)
            writer.close()
        for writer in silent:
            writer.close()

    asyncio.run(pester())
    lab.let_go()
    status = lab.wait(run)
    assert (status["state"], status["restarts"]["total"]) == ("succeeded", 0)


@pytest.mark.parametrize("ref", ["../../etc", "/etc/passwd", "a" * 300, "x\ny", "", "-", "..", "last/.."])
def test_a_hostile_run_name_finds_nothing(lab, ref):
    done = lab.launch("status", "--", ref, check=None) if ref.startswith("-") else lab.launch("status", ref, check=None)
    assert done.returncode in (2, 3)
    assert "Traceback" not in done.stderr


@pytest.mark.daily
def test_links_laid_in_the_way_lead_nowhere(lab, tmp_path):
    """Whoever guesses names cannot make a run write elsewhere."""
    outside = tmp_path / "outside"
    outside.write_text("mine")
    runs = lab.project / ".launch" / "runs"
    runs.mkdir(parents=True)
    (lab.project / ".launch" / ".gitignore").symlink_to(outside)
    lab.script("look.py", f"import os\nos.symlink({str(outside)!r}, 'link')\n")
    run = lab.submit(lab.spec("name: look\nrun:\n  script: look.py\nresources:\n  ranks_per_node: 1\n"))
    lab.wait(run)
    for name in ("state.json", "events.jsonl"):
        assert not (lab.run_dir(run) / name).is_symlink()
    assert outside.read_text() == "mine"


def test_a_log_that_is_a_link_is_not_written_through(lab, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    run = lab.submit(lab.chain(args="steps: 100000"))
    lab.until_step(run, 2)
    logs = lab.run_dir(run) / "logs" / "a0001.g0002"
    logs.mkdir()
    (logs / "rank-00000.log").symlink_to(outside)
    rank = next(rank for rank in lab.status(run)["ranks"] if rank["rank"] == 1)
    os.kill(rank["pid"], 9)
    lab.until("the second generation", lambda: lab.read_state(run)["generation"] >= 2)
    lab.launch("cancel", run, check=None)
    assert outside.read_text() == "mine"


@pytest.mark.parametrize("shift_s", [3600, -3600])
def test_a_clock_that_is_an_hour_off_makes_no_false_alarm(lab, shift_s, tmp_path):
    """The submitter's clock says one thing, the agents' another: nothing times out, nothing is lost."""
    (tmp_path / "sitecustomize.py").write_text(f"import time\nnow = time.time\ntime.time = lambda: now() + {shift_s}\n")
    shifted = {"PYTHONPATH": str(tmp_path)}
    run = lab.submit(lab.chain(args="steps: 300", hold=299), env=shifted)
    lab.until_step(run, 3)
    assert abs(lab.events(run)[0]["at"] - time.time() - shift_s) < 600, "it is in force"
    assert lab.status(run)["state"] == "running"
    assert json.loads(lab.launch("status", run, "--json", env=shifted).stdout)["state"] == "running"
    rank = next(rank for rank in lab.status(run)["ranks"] if rank["rank"] == 1)
    os.kill(rank["pid"], 9)
    lab.let_go()
    status = lab.wait(run)
    assert (status["state"], status["attempt"], status["restarts"]["total"]) == ("succeeded", 1, 1)


def test_a_guard_outlives_a_clock_that_breaks_every_sleep(lab):
    """As some versions of libfaketime do; and an agent whose guard is gone leaves, and is begun anew."""
    (lab.project.parent / "sitecustomize.py").write_text(NO_SLEEP)
    run = lab.submit(lab.chain(args="steps: 400", hold=399), env={"PYTHONPATH": str(lab.project.parent)})
    lab.until_step(run, 3)
    agent = lab.agent_pid(run, 0)
    [guard] = lab.children(agent, b"launcher.node")
    os.kill(guard, 9)
    lab.until("another agent", lambda: lab.agent_pid(run, 0, lab.read_state(run)["attempt"]) != agent)
    lab.let_go()
    assert lab.wait(run)["state"] == "succeeded"


NO_SLEEP = """
import sys, time
sleep = time.sleep
def broken(seconds):
    if "launcher.node" in " ".join(sys.orig_argv) and "zygote" not in sys.orig_argv[1]:
        raise OSError(22, "Invalid argument")
    sleep(seconds)
time.sleep = broken
"""


@pytest.mark.daily
def test_secrets_are_in_their_file_and_the_ranks_and_nowhere_that_others_read(lab):
    spec, had = lab.chain(args="steps: 5000", more="secrets:\n  - TOKEN\n"), {"TOKEN": CANARY}
    assert "TOKEN" in lab.launch("submit", spec, check=2, env={"TOKEN_": CANARY}).stderr
    with command_lines() as lines:
        said = [lab.launch("submit", spec, "--dry-run", "--json", env=had), lab.launch("submit", spec, env=had)]
        run = said[1].stdout.strip()
        ranks = [rank["pid"] for rank in lab.until_step(run, 2)["ranks"]]
    assert [f"TOKEN={CANARY}".encode() in environment(pid) for pid in ranks] == [True, True]
    said += [lab.launch(*words) for words in (["status", run], ["status", run, "--json"], ["logs", run])]
    assert CANARY not in "".join(one.stdout + one.stderr for one in said)
    assert not [line for line in lines if CANARY.encode() in line]
    assert CANARY.encode() not in others_see(lab.run_dir(run))
    assert files_with(CANARY, lab.run_dir(run)) == [lab.run_dir(run) / "secrets.json"]
    assert (lab.run_dir(run) / "secrets.json").stat().st_mode & 0o777 == 0o600
    lab.launch("cancel", run)


@pytest.mark.parametrize(
    "name", ["with spaces", 'quote\'d "twice"', "$(touch canary); `touch canary`", "new\nline", "é漢字"]
)
def test_a_project_may_lie_anywhere(tmp_path, name):
    root = tmp_path / name
    root.mkdir()
    lab = Lab(root)
    run = lab.submit(lab.chain(args="steps: 4"))
    status = lab.wait(run)
    assert (status["state"], status["step"]) == ("succeeded", 4)
    assert status["run_dir"] == str(lab.run_dir(run))
    assert run in lab.launch("status").stdout
    assert "rank 1 of 2" in lab.launch("logs", run).stdout
    lab.until("its processes to go", lambda: not lab.processes())
    assert not list(tmp_path.rglob("canary"))
