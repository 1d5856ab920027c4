"""The submitter or its sbatch dies at any moment: one job carries the run out, once, or the run never was."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lab import BOUND_S
from runs import record

from tests.sizes import SCALE, SEED

pytestmark = pytest.mark.nightly

# What changes the world; all of their occurrences are struck. Of the rest a random share.
DEEDS = "rename,fsync,mkdir,link,symlink,unlink,vfork,flock"
REST = "write,openat,close,fchmod,poll,pidfd_open,wait4"
LAUNCH = (sys.executable, "-m", "launcher.cli.main")
REAL = shutil.which("sbatch")
ONCE = """
import os, time
with open(os.environ['LEDGER'], 'a') as file:
    file.write(os.environ['LAUNCH_RUN_ID'] + '\\n')
while os.path.exists(os.environ['LEDGER'] + '.hold'):
    time.sleep(0.02)
"""
JOB = "name: once\nrun:\n  script: once.py\n  preload: []\nresources:\n  ranks_per_node: 1\n"
SHOWN = "--Format=arrayjobid:\x1f,arraytaskid:\x1f,state:\x1f,comment:\x1e"


class Ledger:
    """A project whose job writes its run's id into a ledger; `check_jobs` and `check` are the promise."""

    def __init__(self, desk, slurm, folder):
        self.desk, self.slurm, self.path = desk, slurm, folder / "ledger"
        self.last_job = 0
        self.last_job = max((int(job) for job, *_ in self.jobs()), default=0)
        desk.env |= {"LEDGER": str(self.path), "PYTHONDONTWRITEBYTECODE": "1"}
        desk.script("once.py", ONCE)
        self.spec = desk.spec(JOB)

    def carried_out(self):
        return sorted(self.path.read_text().split()) if self.path.exists() else []

    def jobs(self):
        """Every job since this test began: its id, its index in an array, its state and its submit token."""
        rows = self.slurm.run("squeue", "--noheader", "--array", "--states=all", SHOWN).stdout.split("\x1e")
        fields = (row.strip().split("\x1f") for row in rows if row.strip())
        return [(job, index, state, note) for job, index, state, note in fields if int(job) > self.last_job]

    def statuses(self):
        return json.loads(self.desk.launch("status", "--json", "--all").stdout)

    def check_jobs(self, point):
        """Check after one `status` that each run has a job, and each submit token only the job that its run names."""
        shown = self.statuses()
        named = {}
        for run in shown:
            assert run["job"], (point, run)
            assert run["state"] in ("queued", "starting", "running", "succeeded"), (point, run["state"], run["message"])
            submit_token = record(self.desk, run["run"], "token.json")["ticket"]
            named.setdefault(f"launch:{submit_token}", set()).add(run["job"].partition("_")[0])
        known = {}
        for job, _, state, submit_token in self.jobs():
            if state != "CANCELLED":
                known.setdefault(submit_token, set()).add(job)
        assert all(len(jobs) == 1 for jobs in named.values()), (point, named)
        assert named == known, point

    def check(self, point):
        """Check at the end that one job carried each run out, and that no other job existed."""
        self.statuses()
        self.desk.until(f"the end of every job, {point}", lambda: not self.live())
        shown = self.statuses()
        assert [run["state"] for run in shown] == ["succeeded"] * len(shown), (point, shown)
        assert self.carried_out() == sorted(run["run"] for run in shown), point
        self.desk.until(f"its processes to go, {point}", lambda: not self.desk.processes())
        return shown

    def live(self):
        return [job for job in self.jobs() if job[2] in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")]


@pytest.fixture
def ledger(desk, slurm, tmp_path):
    assert shutil.which("strace"), "strace is missing: apt-get install strace"
    return Ledger(desk, slurm, tmp_path)


@pytest.fixture
def sbatch(desk, tmp_path):
    """Put a script in the place of sbatch, for `submit` alone; `$REAL` is the true one."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def acts(body):
        program = folder / "sbatch"
        program.write_text(f"#!/bin/bash\nREAL={REAL}\n{body}\n")
        program.chmod(0o755)
        return {"PATH": f"{folder}:{os.environ['PATH']}", "NOTE": str(tmp_path / "note")}

    return acts


def strace(desk, words, *options):
    """Run `launch submit --on slurm` under strace with these options, and return the finished process."""
    command = ["strace", "-qq", *options, *LAUNCH, "submit", "job.yaml", "--on", "slurm", *words]
    return subprocess.run(command, cwd=desk.project, env=desk.env, capture_output=True, text=True, timeout=BOUND_S)


def occurrences(desk, words, calls):
    """Return how often an undisturbed submit makes each of these calls."""
    counts = desk.project.parent / "counts"
    done = strace(desk, words, "-e", f"trace={calls}", "-c", "-o", str(counts))
    assert done.returncode == 0, done.stderr
    rows = (line.split() for line in counts.read_text().splitlines())
    found = {row[-1]: int(row[3]) for row in rows if len(row) >= 5 and row[-1] in calls.split(",")}
    return [(call, k) for call, times in found.items() for k in range(1, times + 1)]


def kill_at(desk, words, call, k):
    """True where the submitter was killed."""
    inject = f"inject={call}:signal=SIGKILL:when={k}"
    return strace(desk, words, "-e", f"trace={call}", "-o", "/dev/null", "-e", inject).returncode == -9


def strike_all(ledger, words, chosen, rest):
    """Kill a submitter at each of these deeds, and at a share of the rest; what it left must come right each time."""
    print("seed", SEED)
    draw = random.Random(SEED)
    desk = ledger.desk
    desk.rest()
    desk.launch("submit", "job.yaml", "--on", "slurm", *words)  # the first submit makes folders that the others find
    deeds, others = occurrences(desk, words, DEEDS), occurrences(desk, words, REST)
    points = [point for point in deeds if chosen is None or point[0] in chosen]
    left = [point for point in (*deeds, *others) if point not in points]
    points += draw.sample(left, min(len(left), rest * SCALE))
    fired = 0
    for point in points:
        fired += kill_at(desk, words, *point)
        ledger.check_jobs(f"killed at {point}")
    print(f"{fired} of {len(points)} kills fired")
    assert fired >= 0.9 * len(points), f"only {fired} of {len(points)} kills fired"
    return ledger.check("after all kills")


@pytest.mark.timeout(600)
def test_killed_at_any_system_call(ledger):
    strike_all(ledger, (), None, rest=6)


@pytest.mark.timeout(600)
def test_an_array_killed_between_its_runs_and_after_sbatch(ledger):
    """Folders that were not made have no run; those that were have an element of the one array."""
    shown = strike_all(ledger, ("--repeat", "4"), ("link",), rest=6)
    assert {run["job"].partition("_")[2] for run in shown} == {"0", "1", "2", "3"}


def submit(desk, env, check, limit_s=60.0, words=()):
    """`launch submit` that waits no longer than that for its sbatch."""
    program = (
        "import sys, launcher.places.slurm.queue as p; from launcher.cli.main import main; "
        f"p._SUBMIT_S = {limit_s}; sys.argv[0] = 'launch'; sys.exit(main())"
    )
    argv = [sys.executable, "-c", program, "submit", "job.yaml", "--on", "slurm", *words]
    done = subprocess.run(
        argv, cwd=desk.project, env={**desk.env, **env}, capture_output=True, text=True, timeout=BOUND_S
    )
    assert done.returncode == check, done.stdout + done.stderr
    return done


TIMED_OUT = 'echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2; exit 1'
FATES = {
    "submits and hangs": ('"$REAL" "$@" >/dev/null; exec sleep 1000', 5),
    "hangs": ("exec sleep 1000", 5),
    "submits and dies": ('"$REAL" "$@" >/dev/null; kill -9 $$', 5),
    "dies": ("kill -9 $$", 5),
    "submits and says nothing": ('"$REAL" "$@" >/dev/null; exit 0', 1),
    "submits and times out": (f'"$REAL" "$@" >/dev/null; {TIMED_OUT}', 5),
    "times out": (TIMED_OUT, 5),
}


def test_whatever_becomes_of_sbatch(ledger, sbatch, desk):
    for fate, (body, code) in FATES.items():
        for words in ((), ("--repeat", "2")) if fate.endswith("dies") else ((),):
            submit(desk, sbatch(body), code, limit_s=0.3 if "hangs" in fate else 60.0, words=words)
            ledger.check_jobs((fate, words))
    assert len(ledger.check("whatever became of sbatch")) == len(FATES) + 2 * 2


@pytest.mark.daily
@pytest.mark.parametrize("words", [(), ("--repeat", "3")])
def test_of_two_jobs_with_one_submit_token_one_does_it(ledger, sbatch, desk, words):
    hold = ledger.path.with_suffix(".hold")
    hold.touch()
    runs = submit(desk, sbatch('"$REAL" "$@" >/dev/null; "$REAL" "$@"'), 0, words=words).stdout.split()
    desk.until("every run", lambda: len(ledger.carried_out()) == len(runs))
    desk.until("the end of the others", lambda: len(ledger.live()) == len(runs))
    hold.unlink()
    assert len(ledger.check("submitted twice")) == len(runs) == (3 if words else 1)
    assert len({job for job, *_ in ledger.jobs()}) == 2


def test_of_two_that_wait_the_other_is_cancelled(ledger, sbatch, desk, slurm):
    slurm.ask("sbatch", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    desk.until("a full cluster", lambda: "RUNNING" in slurm.ask("squeue", "--noheader", "--format=%T"))
    run = submit(desk, sbatch('"$REAL" "$@" >/dev/null; "$REAL" "$@"'), 0).stdout.strip()
    desk.launch("status")
    waiting = slurm.ask("squeue", "--noheader", "--states=PENDING", "--format=%i").split()
    assert waiting == [desk.status(run)["job"]]
    desk.launch("cancel", run)


@pytest.mark.daily
def test_a_job_whose_sbatch_lied_that_it_was_refused_finds_nothing_to_do(ledger, sbatch, desk):
    refused = 'echo "sbatch: error: Batch job submission failed: Invalid account" >&2; exit 1'
    assert "Slurm refuses the job" in submit(desk, sbatch(f'"$REAL" "$@" >/dev/null; {refused}'), 2).stderr
    assert ledger.check("refused, and yet submitted") == []
    assert len(ledger.jobs()) == 1


def is_locked(path):
    """Return whether a process has the lock, without trying to take it."""
    inode = path.stat().st_ino
    locks = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return any(words[1] == "FLOCK" and words[-3].endswith(f":{inode}") for words in locks)


def test_while_sbatch_lives_nobody_else_submits_even_when_its_submitter_is_dead(ledger, sbatch, desk, slurm, tmp_path):
    """And what squeue said before sbatch was done is no reason to submit once more."""
    env = sbatch('until [ -e "$NOTE" ]; do sleep 0.02; done; exec "$REAL" "$@"')
    submitter = subprocess.Popen(
        [*LAUNCH, "submit", "job.yaml", "--on", "slurm"], cwd=desk.project, env={**desk.env, **env}
    )
    (lock,) = desk.until("sbatch", lambda: [*desk.project.glob(".launch/runs/*/attempts/0001/.job-lock")])
    desk.until("the lock in use", lambda: is_locked(lock))
    desk.until("sbatch", lambda: desk.children(submitter.pid, b"sbatch"))
    submitter.kill()
    submitter.wait()
    (status,) = ledger.statuses()
    assert (status["state"], status["message"]) == ("queued", "it is being handed to Slurm")
    assert ledger.jobs() == []
    late = tmp_path / "bin" / "squeue"  # answers with what was true before sbatch went on
    late.write_text(
        f'#!/bin/bash\nsaid=$({shutil.which("squeue")} "$@"; echo x)\ntouch "$NOTE"\n'
        f'for try in {{1..150}}; do flock -n "{lock}" true && break; sleep 0.02; done\nprintf %s "${{said%x}}"\n'
    )
    late.chmod(0o755)
    desk.launch("status", env=env)
    late.unlink()
    desk.until("its job", ledger.jobs)
    assert len(ledger.jobs()) == 1
    assert len(ledger.check("after a late answer")) == 1


def test_several_who_look_at_once_submit_once(ledger, sbatch, desk):
    submit(desk, sbatch("kill -9 $$"), 5)
    words = [*LAUNCH, "status"]
    lookers = [
        subprocess.Popen(words, cwd=desk.project, env=desk.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    assert [(one.wait(BOUND_S), one.stderr.read()) for one in lookers] == [(0, b"")] * 4
    for one in lookers:
        one.stderr.close()
    ledger.check_jobs("several lookers")
    assert len(ledger.check("several lookers")) == 1


@pytest.mark.daily
def test_the_check_bites(ledger, desk):
    run = desk.submit(ledger.spec, "--on", "slurm")
    ledger.check("nothing")
    for sabotage in (f"{run}\n" * 2, f"{run}\nonce-zzzz\n", ""):
        ledger.path.write_text(sabotage)
        with pytest.raises(AssertionError):
            ledger.check("sabotage")
    comment = f"--comment=launch:{record(desk, run, 'token.json')['ticket']}"
    ledger.slurm.ask("sbatch", "--hold", comment, "--output=/dev/null", "--wrap=true")
    with pytest.raises(AssertionError):
        ledger.check_jobs("a second job with the same submit_token")
