"""Runs on PBS, as far as programs that answer as its manuals say can show them: nothing here has met a real one."""

import json

import pytest

from tests.places.batch_sites import PBS, site_of

site = site_of(PBS)
ONE = "ranks_per_node: 1\ngpus_per_node: 0\ncpus_per_rank: 1"
TWO = f"nodes: 2\n{ONE}"
SAVES = "checkpoint: {every: 1 steps}\n"


def states(lab, runs):
    return [lab.status(run)["state"] for run in runs]


def test_a_run_on_two_hosts_from_submit_to_its_end(lab, site):
    run = lab.submit(lab.chain(args="steps: 3", resources=TWO), "--on", "pbs")
    status = lab.wait(run)
    assert (status["state"], status["step"], status["cluster"]) == ("succeeded", 3, "pbs")
    assert [node["host"] for node in status["nodes"]] == ["127.0.0.1", "127.0.0.2"]
    secret = lab.run_dir(run) / "attempts" / "0001" / "job.environment"
    assert secret.stat().st_mode & 0o077 == 0


def test_why_it_waits_and_that_it_can_be_cancelled_meanwhile(lab, site):
    site.fill()
    run = lab.submit(lab.chain(args="steps: 3", resources=ONE), "--on", "pbs")
    status = lab.status(run)
    assert status["state"] == "queued"
    assert "hosts have too little ncpus free: it asks for 2, and 1 of 4 is free" in lab.launch("status", run).stdout
    assert f"job {site.job_of(run)}" in lab.launch("cancel", run).stdout
    site.free()
    assert states(lab, [run]) == ["cancelled"]


def test_a_preempted_run_goes_on_in_its_job(lab, site):
    run = lab.submit(lab.chain(args="steps: 6", resources=ONE, more=SAVES, hold=3), "--on", "pbs")
    lab.until_step(run, 3)
    job = site.job_of(run)
    site.preempt(job)
    lab.until("its second start", lambda: site.runs(job) == 2)
    lab.let_go()
    assert lab.wait(run)["step"] == 6
    assert (site.job_of(run), len(site.jobs())) == (job, 1)
    assert [one.name for one in sorted((lab.run_dir(run) / "attempts").iterdir())] == ["0001", "0002"]


@pytest.mark.nightly
def test_at_its_time_limit_it_goes_on_in_a_new_job(lab, site):
    """Which it submits itself: users may not have a job of theirs put back."""
    limited = f"{ONE}\ntime: 14s"
    run = lab.submit(lab.chain(args="steps: 6", resources=limited, more=SAVES, hold=3), "--on", "pbs")
    lab.until("a second job", lambda: len(site.jobs()) == 2)
    lab.let_go()
    assert lab.wait(run)["step"] == 6
    events = [event["text"] for event in lab.events(run, "job")]
    assert events and "Unauthorized Request" in events[0] and site.job_of(run) in events[0]


def test_a_cancel_ends_a_running_job_and_so_does_qdel(lab, site):
    runs = [lab.submit(lab.chain(args="steps: 100000", resources=ONE), "--on", "pbs") for _ in range(2)]
    for run in runs:
        lab.until_step(run, 1)
    assert f"job {site.job_of(runs[0])}" in lab.launch("cancel", runs[0]).stdout
    site.delete_by_hand(site.job_of(runs[1]))
    lab.launch("wait", runs[1], check=None)
    assert states(lab, runs) == ["cancelled", "cancelled"]
    assert len(site.jobs()) == 2


@pytest.mark.nightly
def test_several_runs_are_an_array_and_each_is_its_own(lab, site):
    first, second = lab.submit(lab.chain(args="steps: 3", resources=ONE), "--on", "pbs", "--repeat", "2").split()
    assert [lab.wait(run)["state"] for run in (first, second)] == ["succeeded", "succeeded"]
    assert {site.job_of(first), site.job_of(second)} == set(site.jobs()) == {"1[0].pbs", "1[1].pbs"}


@pytest.mark.nightly
def test_a_run_follows_another_and_one_that_is_held_is_released(lab, site):
    first = lab.submit(lab.chain(args="steps: 3", resources=ONE), "--on", "pbs", "--hold")
    then = lab.submit(lab.chain(args="steps: 3", resources=ONE), "--on", "pbs", "--after", first)
    assert f"depend=afterany:{site.job_of(first)}" in (lab.run_dir(then) / "attempts/0001/job.sh").read_text()
    assert "it is held" in lab.launch("status", first).stdout
    lab.launch("release", first)
    assert [lab.wait(run)["state"] for run in (first, then)] == ["succeeded", "succeeded"]
    assert lab.status(then)["started_at"] >= lab.status(first)["ended_at"]


def test_a_refusal_is_an_error_before_anything_runs(lab, site):
    refused = lab.launch("submit", lab.chain(more="pbs: {queue: closed}\n"), "--on", "pbs", check=None)
    assert refused.returncode != 0 and "PBS refuses the job: qsub: Queue is not enabled" in refused.stderr


@pytest.mark.nightly
def test_the_doctor_has_a_job_look_at_two_hosts(lab, site):
    told = json.loads(lab.launch("doctor", "pbs", "--try", "--json", check=None).stdout)
    by_name = {one["about"]: one for one in told}
    assert by_name["hosts"]["text"] == "4 answer"
    assert by_name["trial"]["text"].startswith("job 1.pbs on 127.0.0.1 and 127.0.0.2")
    assert {by_name[name]["level"] for name in ("server", "hosts", "lost hosts", "trial", "python")} == {"ok"}


@pytest.mark.parametrize("words", [("--dry-run",), ("--dry-run", "--set", "pbs.account=team")])
def test_a_dry_run_shows_the_script_and_submits_nothing(lab, site, words):
    said = lab.launch("submit", lab.chain(resources=TWO), "--on", "pbs", *words).stdout
    assert "#PBS -l select=2:ncpus=1" in said and not site.jobs()
