"""Test what every kind of cluster must do; a new kind is added to PLACES in conftest.py and has to pass unchanged."""

import pytest

from launcher.run.umask import users_umask

pytestmark = pytest.mark.nightly


@pytest.mark.daily
def test_a_node_offers_something(site):
    assert site.verb("machine") >= 1


@pytest.mark.daily
def test_a_run_from_its_submit_to_its_end_and_on(site):
    run = site.submit(30)
    said = site.desk.launch("logs", run, "-f").stdout
    assert said, "what the ranks print is followed until the run has ended"
    assert f"umask {users_umask():04o}" in said, "files of the ranks are the user's own"
    status = site.desk.wait(run)
    assert (status["state"], status["cluster"], status["step"]) == ("succeeded", site.on, 30)
    assert site.verb("look", run) in (None, "ended", "gone", "unknown", "running", "ending")
    site.desk.launch("resume", run, "--set", "run.args.steps=40")
    assert site.desk.wait(run)["step"] == 40


def test_dropped_it_does_nothing(site):
    run = site.ended()
    assert site.verb("prepare_and_drop", run) == 0
    site.desk.until("its processes to go", lambda: not site.everything())
    assert site.state(run) == "succeeded"


@pytest.mark.daily
def test_told_to_go_it_carries_the_attempt_out_and_cancel_ends_it(site):
    run = site.submit(100_000)
    site.until_running(run)
    report = site.verb("cancel", run)
    assert report["ended"] and not report["already"]
    assert site.state(run) == "cancelled"
    attempt = site.verb("prepare_and_start", run)
    site.until_running(run)
    assert (site.desk.status(run)["attempt"], site.state(run)) == (attempt, "running")
    report = site.verb("cancel", run)
    assert report["ended"] and not report["already"]
    assert site.state(run) == "cancelled"
    site.desk.until("its processes to go", lambda: not site.everything())
    assert site.verb("cancel", run) == {"ended": [], "already": True}


@pytest.mark.daily
def test_who_only_looks_starts_nothing(site):
    """What a killed submitter left is handed over by mending alone, and only once."""
    run = site.ended()
    attempt = site.verb("intend", run)
    before = sorted(path.name for path in (site.desk.run_dir(run) / "attempts" / f"{attempt:04d}").iterdir())
    assert site.verb("look", run) != "running"
    after = sorted(path.name for path in (site.desk.run_dir(run) / "attempts" / f"{attempt:04d}").iterdir())
    assert (after, site.everything()) == (before, [])
    site.verb("cancel", run)
    assert site.state(run) == "cancelled"
    site.desk.until("its processes to go", lambda: not site.everything())


def test_a_held_run_waits_for_a_person(site):
    spec = site.desk.chain(args="steps: 3", resources="ranks_per_node: 2\ngpus_per_node: 0")
    run = site.desk.launch("submit", spec, "--on", site.on, "--hold").stdout.strip()
    site.desk.until("it is held", lambda: "held" in site.desk.status(run)["message"])
    assert site.state(run) == "queued"
    site.desk.launch("release", run)
    assert site.desk.wait(run)["state"] == "succeeded"
