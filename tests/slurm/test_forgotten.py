"""Jobs that ended without a word of ours, or that Slurm has forgotten: never more is said than somebody knows."""

import json
import os
import signal

import pytest
from lab import all_pids, command, kill, parent
from runs import causes, fingerprint_here, job_of, record, two_nodes

from launcher.places.batch.batch import Phase
from launcher.places.slurm.queries.jobs import read_jobs, squeue_jobs
from launcher.places.slurm.reach import ask

pytestmark = pytest.mark.nightly


@pytest.fixture
def clients(tmp_path):
    """Programs in the place of Slurm's clients: `clients(squeue=..., sacct=...)` gives the variables for that."""
    count = iter(range(100))

    def acting(**bodies):
        folder = tmp_path / f"clients-{next(count)}"
        folder.mkdir()
        for name, body in bodies.items():
            program = folder / name
            program.write_text(f"#!/bin/bash\necho {name} >> {folder}/called\n{body}\n")
            program.chmod(0o755)
        return {"PATH": f"{folder}:{os.environ['PATH']}", "CALLED": str(folder / "called")}

    return acting


FORGETS = "exit 0"  # squeue -h lists nothing


def status(desk, run, env):
    return json.loads(desk.launch("status", run, "--json", env=env).stdout)


def state_by_slurm(slurm, job):
    return slurm.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").stdout.strip()


def by_accounts(slurm, job):
    return slurm.run("sacct", "--noheader", "-X", "-P", "--format=state", f"--jobs={job}").stdout.strip()


def batch_process(desk, run):
    """Return the batch process, which carries no tag of the run but names it in its command line."""
    words = f"launcher.places.batch.job.batch_process:BatchSupervisor\0{desk.run_dir(run)}\0slurm\0".encode()
    found = [pid for pid in all_pids() if words in command(pid)]
    (pid,) = [pid for pid in found if parent(pid) not in found]
    return pid


def kill_the_job(desk, slurm, run):
    """kill -9 of everything of the run: nobody writes a last word."""
    batch = batch_process(desk, run)
    guard = parent(batch)  # with which the job ends
    for pid in (guard, batch):
        assert kill(pid, signal.SIGSTOP)  # or it, or Slurm at its end, would have the others say something
    for pid in desk.processes(desk.run_dir(run)):
        kill(pid)
    assert kill(batch) and kill(guard)
    job = job_of(desk, run)
    desk.until("Slurm's word", lambda: state_by_slurm(slurm, job) == "FAILED")
    assert record(desk, run, "exit.json") is None
    return job


def cancelled_while_it_waits(desk, slurm):
    """A run whose job a person ends before any process of it exists."""
    slurm.ask("sbatch", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    desk.until("a full cluster", lambda: "RUNNING" in slurm.ask("squeue", "--noheader", "--format=%T"))
    run = desk.submit(two_nodes(desk, 100_000), "--on", "slurm")
    slurm.ask("scancel", job_of(desk, run))
    return run


@pytest.mark.daily
def test_without_accounts_a_job_that_fell_silent_is_lost_and_never_a_success_or_a_failure(desk, slurm, clients):
    run = desk.submit(two_nodes(desk, 100_000), "--on", "slurm")
    desk.until_step(run, 5)
    job = kill_the_job(desk, slurm, run)
    forgotten = status(desk, run, clients(squeue=FORGETS))
    assert (forgotten["state"], forgotten["exit_code"]) == ("lost", 21)
    assert f"job {job} is not known to the cluster any more" in forgotten["message"]
    known = desk.status(run)
    assert (known["state"], known["exit_code"]) == ("lost", 21)
    assert f"Slurm says FAILED of job {job}, which left no record of its end" in known["message"]
    desk.launch("wait", run, check=21)
    assert status(desk, run, clients(squeue=FORGETS))["message"] == known["message"]  # we have not forgotten it


def test_a_batch_process_that_is_killed_is_followed_by_another_in_the_same_job(desk, slurm):
    run = desk.submit(two_nodes(desk, 300, hold=299), "--on", "slurm")
    for attempt in (1, 2):
        desk.until("its ranks", lambda now=attempt: desk.until_step(run, 20)["attempt"] == now)
        kill(batch_process(desk, run))
    desk.let_go()
    status = desk.wait(run)
    assert (status["state"], status["attempt"], causes(desk, run)) == ("succeeded", 3, ["node_lost"] * 2)
    assert job_of(desk, run, 1) == job_of(desk, run, 3)
    assert slurm.ask("scontrol", "--oneliner", "show", "job", status["job"]).count("Restarts=0") == 1
    assert status["fingerprint"] == fingerprint_here(desk, 300)


def test_without_its_guard_a_run_ends_on_all_nodes_and_can_be_resumed(desk, slurm):
    run = desk.submit(two_nodes(desk, 300, hold=299), "--on", "slurm")
    desk.until_step(run, 20)
    kill(parent(batch_process(desk, run)))
    desk.until("the end of every process", lambda: not desk.processes())
    desk.until("the end of the job", lambda: state_by_slurm(slurm, job_of(desk, run)) == "FAILED")
    assert desk.status(run)["state"] == "lost"
    desk.launch("wait", run, check=21)
    desk.let_go()
    desk.launch("resume", run)
    assert (desk.wait(run)["state"], desk.status(run)["attempt"]) == ("succeeded", 2)


def test_once_seen_cancelled_it_stays_so_when_everybody_has_forgotten_it(desk, slurm, clients):
    run = cancelled_while_it_waits(desk, slurm)
    for env in ({}, clients(squeue=FORGETS)):
        seen = status(desk, run, env)
        assert (seen["state"], seen["cause"], seen["exit_code"]) == ("cancelled", "cancelled", 20)


@pytest.mark.daily
def test_with_accounts_their_word_holds_when_squeue_has_forgotten(accounted_desk, accounted_lab, clients):
    desk, slurm = accounted_desk, accounted_lab
    first = desk.submit(two_nodes(desk, 100_000), "--on", "slurm")
    desk.until_step(first, 5)
    kill_the_job(desk, slurm, first)
    runs = [cancelled_while_it_waits(desk, slurm), first]
    jobs = [job_of(desk, run) for run in runs]
    desk.until("the accounts", lambda: [by_accounts(slurm, job)[:6] for job in jobs] == ["CANCEL", "FAILED"])
    cancelled, lost = (status(desk, run, clients(squeue=FORGETS)) for run in runs)
    assert (cancelled["state"], cancelled["cause"], cancelled["exit_code"]) == ("cancelled", "cancelled", 20)
    assert "Slurm says CANCELLED" in cancelled["message"]
    assert (lost["state"], lost["exit_code"]) == ("lost", 21)
    assert f"Slurm says FAILED of job {jobs[1]}" in lost["message"]


@pytest.mark.daily
@pytest.mark.parametrize("holes", [lambda index: index % 2 == 0, lambda index: index % 3 == 0 or index % 7 == 0])
def test_of_an_array_that_waits_in_pieces_no_element_is_forgotten(slurm, holes):
    later = ("--hold", "--begin=now+1hour")  # the second for the element that is changed: it is held no more
    job = slurm.ask("sbatch", "--parsable", *later, "--array=0-199", "--output=/dev/null", "--wrap=true").strip()
    slurm.ask("scontrol", "update", f"JobId={job}_100", "Nice=1")  # has a row of its own from now on
    slurm.ask("scancel", *(f"{job}_{index}" for index in range(200) if holes(index)))
    seen = read_jobs(ask(squeue_jobs(), environ={**os.environ, **slurm.env}).out)
    waiting = {one.id for one in seen if one.state.phase is Phase.QUEUED}
    assert waiting == {f"{job}_{index}" for index in range(200) if not holes(index)}


SILENT = {
    "hangs": "exec sleep 1000",
    "no database": 'echo "sacct: error: Problem talking to the database: Connection refused" >&2; exit 1',
    "no reason": "exit 1",
    "dies": "kill -9 $$",
}


def test_silent_accounts_are_no_failure(desk, slurm, clients):
    """squeue has forgotten the job, and whether the accounts know it nobody can tell."""
    run = desk.submit(two_nodes(desk, 100_000), "--on", "slurm")
    desk.until_step(run, 5)
    desk.status(run)
    for name, body in SILENT.items():
        unknown = status(desk, run, clients(squeue=FORGETS, sacct=body))
        assert (unknown["state"], unknown["cause"], unknown["exit_code"]) == ("unknown", None, None), name
        assert "accounting database does not answer" in unknown["message"] or "sacct" in unknown["message"], name
        assert "last seen RUNNING at 20" in unknown["message"], name
    assert desk.status(run)["state"] == "running"
    desk.launch("cancel", run)


ROW = r"printf '%s\x1f%s\x1fFAILED\x1f0\x1fN/A\x1fN/A\x1f\x1f\x1fNonZeroExitCode\x1flaunch:%s\x1e' {job} {job} {mark}"
ACCOUNT = r"printf '%s\x1f%s\x1fNODE_FAIL\x1f1:0\x1fN/A\x1fN/A\x1fN/A\x1fnode0\n' {job} {job}"


@pytest.mark.daily
@pytest.mark.parametrize(
    ("script", "end", "code"), [("print('done')", "succeeded", 0), ("raise ValueError('no luck')", "failed", 10)]
)
def test_an_end_of_its_own_holds_whatever_slurm_says(desk, slurm, clients, script, end, code):
    desk.script("one.py", script)
    spec = desk.spec(
        "name: one\nrun: {script: one.py, preload: []}\nresources: {ranks_per_node: 1}\nrecovery: {user_error: 0}\n"
    )
    run = desk.submit(spec, "--on", "slurm")
    assert desk.wait(run, check=code)["state"] == end
    job = job_of(desk, run)
    lies = [
        {"squeue": ROW.format(job=job, mark=record(desk, run, "token.json")["ticket"]), "sacct": "exit 1"},
        {"squeue": FORGETS, "sacct": ACCOUNT.format(job=job)},
        {"squeue": "exit 1", "sacct": "exit 1"},
    ]
    for without in ((), ("state.json",), ("state.json", "events.jsonl")):  # the attempt's own record is enough
        for name in without:
            (desk.run_dir(run) / name).unlink(missing_ok=True)
        for bodies in lies:
            env = clients(**bodies)
            told = status(desk, run, env)
            assert (told["state"], told["exit_code"]) == (end, code)
            assert not os.path.exists(env["CALLED"])  # nobody had to be asked
    (desk.run_dir(run) / "attempts" / "0001" / "exit.json").unlink()
    told = status(desk, run, clients(**lies[0]))
    assert told["state"] == "lost", told["message"]  # the lies would have been believed
    assert status(desk, run, clients(**lies[1]))["state"] == "failed"
