"""Runs on PBS and LSF, as far as programs that answer as the manuals say can show: nothing here has met a real one."""

import json

import pytest

from tests.places.batch_sites import LSF, PBS, BatchSite

ONE = "ranks_per_node: 1\ngpus_per_node: 0\ncpus_per_rank: 1"
TWO = f"nodes: 2\n{ONE}"
LIMITED = f"{ONE}\ntime: 14s"
SAVES = "checkpoint: {every: 1 steps}\n"
PROGRAMS = {"pbs": PBS, "lsf": LSF}
on_each = pytest.mark.parametrize("kind", [*PROGRAMS])


@pytest.fixture
def site(lab, tmp_path, kind):
    made = BatchSite(lab, tmp_path, PROGRAMS[kind])
    yield made
    made.tidy()


def states(lab, runs):
    return [lab.status(run)["state"] for run in runs]


def goes_on_after_a_preemption(lab, site, kind, resources):
    """Have a run preempted at its third step, and wait for its end in the same job; return its id."""
    run = lab.submit(lab.chain(args="steps: 6", resources=resources, more=SAVES, hold=3), "--on", kind)
    lab.until_step(run, 3)
    job = site.job_of(run)
    site.preempt(job)
    lab.until("its second start", lambda: site.runs(job) == 2)
    lab.let_go()
    assert lab.wait(run)["step"] == 6
    assert [*site.jobs()] == [site.job_of(run)] == [job]
    return run


@on_each
def test_a_run_on_two_hosts_from_submit_to_its_end(lab, site, kind):
    run = lab.submit(lab.chain(args="steps: 3", resources=TWO), "--on", kind, env={"TOKEN": "secret"})
    status = lab.wait(run)
    assert (status["state"], status["step"], status["cluster"]) == ("succeeded", 3, kind)
    assert [node["host"] for node in status["nodes"]] == ["127.0.0.1", "127.0.0.2"]
    if kind == "pbs":
        secret = lab.run_dir(run) / "attempts" / "0001" / "job.environment"
        assert secret.stat().st_mode & 0o077 == 0
    else:
        assert list(site.jobs()["1"]["env"]) == ["JOB_LAUNCH_ENVIRONMENT"]


@pytest.mark.parametrize(
    ("kind", "why", "cancelled"),
    [
        ("pbs", "hosts have too little ncpus free: it asks for 2, and 1 of 4 is free", "job 1.pbs"),
        ("lsf", "queued: too few hosts have what it asks for; hosts that it may use are closed", "job 1 (pend)"),
    ],
)
def test_why_it_waits_and_that_it_can_be_cancelled_meanwhile(lab, site, kind, why, cancelled):
    site.fill()
    run = lab.submit(lab.chain(args="steps: 3", resources=ONE), "--on", kind)
    assert lab.status(run)["state"] == "queued"
    assert why in lab.launch("status", run).stdout
    assert cancelled in lab.launch("cancel", run).stdout
    site.free()
    assert states(lab, [run]) == ["cancelled"]


@on_each
def test_a_preempted_run_goes_on_in_its_job(lab, site, kind):
    run = goes_on_after_a_preemption(lab, site, kind, ONE)
    assert [one.name for one in sorted((lab.run_dir(run) / "attempts").iterdir())] == ["0001", "0002"]
    assert lab.status(run)["restarts"]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["lsf"])
def test_on_several_hosts_it_is_killed_without_a_warning_and_goes_on_all_the_same(lab, site, kind):
    goes_on_after_a_preemption(lab, site, kind, TWO)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["pbs"])
def test_at_its_time_limit_it_goes_on_in_a_new_job(lab, site, kind):
    """It submits that job itself: users may not have a job of theirs put back."""
    run = lab.submit(lab.chain(args="steps: 6", resources=LIMITED, more=SAVES, hold=3), "--on", kind)
    lab.until("a second job", lambda: len(site.jobs()) == 2)
    lab.let_go()
    assert lab.wait(run)["step"] == 6
    events = [event["text"] for event in lab.events(run, "job")]
    assert events and "Unauthorized Request" in events[0] and site.job_of(run) in events[0]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["lsf"])
def test_at_its_time_limit_it_leaves_with_the_code_that_puts_it_back(lab, site, kind):
    run = lab.submit(lab.chain(args="steps: 6", resources=LIMITED, more=SAVES, hold=3), "--on", kind)
    lab.until("its second start", lambda: site.runs("1") == 2)
    lab.let_go()
    assert lab.wait(run)["step"] == 6
    assert len(site.jobs()) == 1


@pytest.mark.parametrize(("kind", "cancelled"), [("pbs", "job 1.pbs"), ("lsf", "job 1 (run on 127.0.0.1)")])
def test_a_cancel_ends_a_running_job_and_so_does_one_by_hand(lab, site, kind, cancelled):
    runs = [lab.submit(lab.chain(args="steps: 100000", resources=ONE), "--on", kind) for _ in range(2)]
    for run in runs:
        lab.until_step(run, 1)
    assert cancelled in lab.launch("cancel", runs[0]).stdout
    site.delete_by_hand(site.job_of(runs[1]))
    lab.launch("wait", runs[1], check=None)
    assert states(lab, runs) == ["cancelled", "cancelled"]
    assert [job["runs"] for job in site.jobs().values()] == [1, 1]


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "jobs"), [("pbs", {"1[0].pbs", "1[1].pbs"}), ("lsf", {"1[1]", "1[2]"})])
def test_several_runs_are_an_array_and_each_is_its_own(lab, site, kind, jobs):
    first, second = lab.submit(lab.chain(args="steps: 3", resources=ONE), "--on", kind, "--repeat", "2").split()
    assert [lab.wait(run)["state"] for run in (first, second)] == ["succeeded", "succeeded"]
    assert {site.job_of(first), site.job_of(second)} == set(site.jobs()) == jobs


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "option"), [("pbs", "depend=afterany:1.pbs"), ("lsf", '#BSUB -w "ended(1)"')])
def test_a_run_follows_another_and_one_that_is_held_is_released(lab, site, kind, option):
    first = lab.submit(lab.chain(args="steps: 3", resources=ONE), "--on", kind, "--hold")
    then = lab.submit(lab.chain(args="steps: 3", resources=ONE), "--on", kind, "--after", first)
    assert option in (lab.run_dir(then) / "attempts/0001/job.sh").read_text()
    assert "it is held" in lab.launch("status", first).stdout
    lab.launch("release", first)
    assert [lab.wait(run)["state"] for run in (first, then)] == ["succeeded", "succeeded"]
    assert lab.status(then)["started_at"] >= lab.status(first)["ended_at"]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("pbs", "PBS refuses the job: qsub: Queue is not enabled"),
        ("lsf", "LSF refuses the job: closed: Queue has been closed"),
    ],
)
def test_a_refusal_is_an_error_before_anything_runs(lab, site, kind, told):
    refused = lab.launch("submit", lab.chain(more=f"{kind}: {{queue: closed}}\n"), "--on", kind, check=None)
    assert refused.returncode != 0 and told in refused.stderr


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "job", "checks"), [("pbs", "job 1.pbs", ("server", "lost hosts")), ("lsf", "job 1", ("master", "ends"))]
)
def test_the_doctor_has_a_job_look_at_two_hosts(lab, site, kind, job, checks):
    told = json.loads(lab.launch("doctor", kind, "--try", "--json", check=None).stdout)
    by_name = {one["about"]: one for one in told}
    assert by_name["hosts"]["text"] == "4 answer"
    assert by_name["trial"]["text"].startswith(f"{job} on 127.0.0.1 and 127.0.0.2")
    assert {by_name[name]["level"] for name in (*checks, "hosts", "trial", "python")} == {"ok"}


@pytest.mark.parametrize(
    ("kind", "option", "words"),
    [
        ("pbs", "#PBS -l select=2:ncpus=1", ()),
        ("pbs", "#PBS -l select=2:ncpus=1", ("--set", "pbs.account=team")),
        ("lsf", '#BSUB -R "span[ptile=1]"', ()),
    ],
)
def test_a_dry_run_shows_the_script_and_submits_nothing(lab, site, kind, option, words):
    said = lab.launch("submit", lab.chain(resources=TWO), "--on", kind, "--dry-run", *words).stdout
    assert option in said and not site.jobs()
