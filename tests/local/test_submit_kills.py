"""The submitter is killed at any system call: the run exists and is carried out exactly once, or it never was."""

import json
import random
import re
import shutil
import subprocess
import sys

import pytest

from launcher.places.local.shared_zygote import supervisor_of
from launcher.run.attempts import new_attempt
from launcher.run.layout import RunDir
from tests.sizes import SCALE, SEED

pytestmark = pytest.mark.nightly

# What changes the world; all of their occurrences are struck. Of the rest a random share.
DEEDS = "rename,fsync,mkdir,symlink,link,unlink,vfork"
REST = "write,openat,close,fchmod"
JOB = "name: once\nrun:\n  script: once.py\n  preload: []\nresources:\n  ranks_per_node: 1\n"
ONCE = "import os\nwith open(os.environ['LEDGER'], 'a') as file:\n    file.write(os.environ['LAUNCH_RUN_ID'] + '\\n')\n"


def strace(lab, *options):
    command = ["strace", "-qq", *options, sys.executable, "-m", "launcher.cli.main", "submit", "job.yaml"]
    return subprocess.run(command, cwd=lab.project, env=lab.env, capture_output=True, text=True, timeout=60)


def occurrences(lab, calls):
    """Return how often an undisturbed submit makes each of these calls."""
    done = strace(lab, "-e", f"trace={calls}", "-c", "-o", str(lab.project.parent / "counts"))
    assert done.returncode == 0, done.stderr
    found = {}
    for line in (lab.project.parent / "counts").read_text().splitlines():
        fields = line.split()
        if len(fields) >= 5 and fields[-1] in calls.split(","):
            found[fields[-1]] = int(fields[3])
    return found


@pytest.mark.timeout(600)
def test_killed_at_any_system_call(lab, tmp_path):
    assert shutil.which("strace"), "strace is missing: apt-get install strace"
    print("seed", SEED)
    ledger = tmp_path / "ledger"
    lab.env["LEDGER"] = str(ledger)
    lab.env["PYTHONDONTWRITEBYTECODE"] = "1"  # else the first of many runs writes files that the others do not
    lab.script("once.py", ONCE)
    spec = lab.spec(JOB)
    lab.rest()
    lab.wait(lab.submit(spec))  # the first submit makes folders that the others find
    points = [(call, k) for call, n in occurrences(lab, DEEDS).items() for k in range(1, n + 1)]
    rest = [(call, k) for call, n in occurrences(lab, REST).items() for k in range(1, n + 1)]
    points += random.Random(SEED).sample(rest, min(len(rest), 12 * SCALE))
    fired = 0
    for call, k in points:
        done = strace(lab, "-e", f"trace={call}", "-o", "/dev/null", "-e", f"inject={call}:signal=SIGKILL:when={k}")
        fired += done.returncode == -9
        check(lab, ledger, (call, k))
    assert fired >= 0.9 * len(points), f"only {fired} of {len(points)} kills fired"


def check(lab, ledger, point):
    """Check after the next `status` that every listed run was carried out once, and no other run was."""
    lab.launch("status")

    def settled():
        shown = json.loads(lab.launch("status", "--json", "--all").stdout)
        return shown if all(run["state"] in ("succeeded", "lost", "failed", "cancelled") for run in shown) else None

    shown = lab.until(f"the end of what was submitted, killed at {point}", settled)
    assert [run["state"] for run in shown] == ["succeeded"] * len(shown), point
    carried_out = ledger.read_text().split() if ledger.exists() else []
    assert sorted(carried_out) == sorted(run["run"] for run in shown), point
    lab.until(f"its processes to go, killed at {point}", lambda: not lab.processes())


@pytest.mark.daily
def test_the_check_bites(lab, tmp_path):
    """A run carried out twice, or one that nobody shows, would be seen."""
    ledger = tmp_path / "ledger"
    lab.env["LEDGER"] = str(ledger)
    lab.script("once.py", ONCE)
    lab.wait(lab.submit(lab.spec(JOB)))
    check(lab, ledger, "nothing")
    once = ledger.read_text()
    for sabotage in (once * 2, once + "once-zzzz\n", ""):
        ledger.write_text(sabotage)
        with pytest.raises(AssertionError):
            check(lab, ledger, "sabotage")


@pytest.mark.daily
def test_an_intent_whose_submitter_died_is_carried_out_by_the_supervisor(lab):
    """The moment between the rename and the word, held still: the supervisor sees the pipe end and goes on alone."""
    run = lab.submit(lab.chain(args="steps: 5"))
    lab.wait(run)
    supervisor = supervisor_of(lab.run_dir(run))
    new_attempt(RunDir(lab.run_dir(run)), "local", "resume", None)
    supervisor.drop()
    status = lab.until(
        "attempt 2", lambda: (found := lab.status(run))["attempt"] == 2 and found["state"] == "succeeded" and found
    )
    assert status["exit_code"] == 0
    assert re.search(r"rank 0 of 2 starts at step 5", lab.rank_logs(run))


@pytest.mark.daily
def test_two_supervisors_carry_one_attempt_out_once(lab):
    run = lab.submit(lab.chain(args="steps: 5"))
    lab.wait(run)
    supervisors = [supervisor_of(lab.run_dir(run)) for _ in range(2)]
    attempt, _ = new_attempt(RunDir(lab.run_dir(run)), "local", "resume", None)
    for supervisor in supervisors:
        supervisor.start(attempt.number)
    lab.until("the end", lambda: not lab.processes())
    assert lab.status(run)["state"] == "succeeded"
    assert len([event for event in lab.events(run, "generation_opened") if event["attempt"] == 2]) == 1
    assert len([event for event in lab.events(run, "agent_joined") if event["attempt"] == 2]) == 1
