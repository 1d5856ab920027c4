"""Runs on LSF, as far as programs that answer as its manuals say can show them: nothing here has met a real one."""

import json

import pytest

from tests.places.batch_sites import LSF, site_of

site = site_of(LSF)
ONE = "ranks_per_node: 1\ngpus_per_node: 0\ncpus_per_rank: 1"
TWO = f"nodes: 2\n{ONE}"
SAVES = "checkpoint: {every: 1 steps}\n"


def states(lab, runs):
    return [lab.status(run)["state"] for run in runs]


def test_a_run_on_two_hosts_from_submit_to_its_end(lab, site):
    run = lab.submit(lab.chain(args="steps: 3", resources=TWO), "--on", "lsf", env={"TOKEN": "secret"})
    status = lab.wait(run)
    assert (status["state"], status["step"], status["cluster"]) == ("succeeded", 3, "lsf")
    assert [node["host"] for node in status["nodes"]] == ["127.0.0.1", "127.0.0.2"]
    assert list(site.jobs()["1"]["env"]) == ["JOB_LAUNCH_ENVIRONMENT"]


def test_why_it_waits_and_that_it_can_be_cancelled_meanwhile(lab, site):
    site.fill()
    run = lab.submit(lab.chain(args="steps: 3", resources=ONE), "--on", "lsf")
    told = lab.launch("status", run).stdout
    assert "queued: too few hosts have what it asks for; hosts that it may use are closed" in told
    assert "job 1 (pend)" in lab.launch("cancel", run).stdout
    site.free()
    assert states(lab, [run]) == ["cancelled"]


def test_a_preempted_run_goes_on_in_its_job(lab, site):
    run = lab.submit(lab.chain(args="steps: 6", resources=ONE, more=SAVES, hold=3), "--on", "lsf")
    lab.until_step(run, 3)
    site.preempt("1")
    lab.until("its second start", lambda: site.runs("1") == 2)
    lab.let_go()
    assert lab.wait(run)["step"] == 6
    assert (site.job_of(run), len(site.jobs())) == ("1", 1)
    assert lab.status(run)["restarts"]


@pytest.mark.nightly
def test_on_several_hosts_it_is_killed_without_a_warning_and_goes_on_all_the_same(lab, site):
    run = lab.submit(lab.chain(args="steps: 6", resources=TWO, more=SAVES, hold=3), "--on", "lsf")
    lab.until_step(run, 3)
    site.preempt("1")
    lab.until("its second start", lambda: site.runs("1") == 2)
    lab.let_go()
    assert lab.wait(run)["step"] == 6
    assert len(site.jobs()) == 1


@pytest.mark.nightly
def test_at_its_time_limit_it_leaves_with_the_code_that_puts_it_back(lab, site):
    limited = f"{ONE}\ntime: 14s"
    run = lab.submit(lab.chain(args="steps: 6", resources=limited, more=SAVES, hold=3), "--on", "lsf")
    lab.until("its second start", lambda: site.runs("1") == 2)
    lab.let_go()
    assert lab.wait(run)["step"] == 6
    assert len(site.jobs()) == 1


def test_a_cancel_ends_a_running_job_and_so_does_bkill(lab, site):
    runs = [lab.submit(lab.chain(args="steps: 100000", resources=ONE), "--on", "lsf") for _ in range(2)]
    for run in runs:
        lab.until_step(run, 1)
    assert "job 1 (run on 127.0.0.1)" in lab.launch("cancel", runs[0]).stdout
    site.delete_by_hand("2")
    lab.launch("wait", runs[1], check=None)
    assert states(lab, runs) == ["cancelled", "cancelled"]
    assert [job["runs"] for job in site.jobs().values()] == [1, 1]


@pytest.mark.nightly
def test_several_runs_are_an_array_and_each_is_its_own(lab, site):
    first, second = lab.submit(lab.chain(args="steps: 3", resources=ONE), "--on", "lsf", "--repeat", "2").split()
    assert [lab.wait(run)["state"] for run in (first, second)] == ["succeeded", "succeeded"]
    assert {site.job_of(first), site.job_of(second)} == set(site.jobs()) == {"1[1]", "1[2]"}


@pytest.mark.nightly
def test_a_run_follows_another_and_one_that_is_held_is_released(lab, site):
    first = lab.submit(lab.chain(args="steps: 3", resources=ONE), "--on", "lsf", "--hold")
    then = lab.submit(lab.chain(args="steps: 3", resources=ONE), "--on", "lsf", "--after", first)
    assert '#BSUB -w "ended(1)"' in (lab.run_dir(then) / "attempts/0001/job.sh").read_text()
    assert "it is held" in lab.launch("status", first).stdout
    lab.launch("release", first)
    assert [lab.wait(run)["state"] for run in (first, then)] == ["succeeded", "succeeded"]
    assert lab.status(then)["started_at"] >= lab.status(first)["ended_at"]


def test_a_refusal_is_an_error_before_anything_runs(lab, site):
    refused = lab.launch("submit", lab.chain(more="lsf: {queue: closed}\n"), "--on", "lsf", check=None)
    assert refused.returncode != 0 and "LSF refuses the job: closed: Queue has been closed" in refused.stderr


@pytest.mark.nightly
def test_the_doctor_has_a_job_look_at_two_hosts(lab, site):
    told = json.loads(lab.launch("doctor", "lsf", "--try", "--json", check=None).stdout)
    by_name = {one["about"]: one for one in told}
    assert by_name["hosts"]["text"] == "4 answer"
    assert by_name["trial"]["text"].startswith("job 1 on 127.0.0.1 and 127.0.0.2")
    assert {by_name[name]["level"] for name in ("master", "hosts", "ends", "trial", "python")} == {"ok"}


def test_a_dry_run_shows_the_script_and_submits_nothing(lab, site):
    said = lab.launch("submit", lab.chain(resources=TWO), "--on", "lsf", "--dry-run").stdout
    assert '#BSUB -R "span[ptile=1]"' in said and not site.jobs()
