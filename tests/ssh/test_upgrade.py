"""A run in flight when the launcher here is brought up to date: hosts have what it was submitted with."""

import json

import pytest
from older import OLDER, unpack

from launcher.remote.rpc.wire import WIRE

pytestmark = pytest.mark.nightly

# What servers of hosts said first: up to wire 3, and since.
GREETINGS = ["launch-there", f'launch-far {{"wire":{WIRE - 1},"launch":"0.0.1"}}']


def replace_by_older(desk, run, greeting):
    """Have the program that the run was handed over with greet as an older one did; its supervisors go on."""
    (record,) = desk.run_dir(run).glob("attempts/0001/hosts.json")
    places = json.loads(record.read_text())
    for index, place in enumerate(places):
        older = desk.hosts.home(index) / "older-launch"
        older.write_text(f"#!/bin/sh\necho '{greeting}'\nexec cat >/dev/null\n")
        older.chmod(0o755)
        place["python"] = "~/older-launch"
    record.write_text(json.dumps(places))


@pytest.mark.parametrize("greeting", GREETINGS)
def test_a_run_that_an_older_version_handed_over_is_seen_cancelled_and_resumed(desk, greeting):
    run = desk.submit(desk.job(steps=100_000), "--on", "pool")
    desk.until_step_there(0, run, 2)
    replace_by_older(desk, run, greeting)
    assert desk.status(run)["state"] == "running"
    assert f"{run} is cancelled" in desk.launch("cancel", run).stdout
    assert not desk.left()
    desk.launch("resume", run)
    desk.until_step_there(0, run, 4, attempt=2)
    assert desk.status(run)["attempt"] == 2
    desk.launch("cancel", run)


@pytest.mark.daily
def test_where_nothing_can_be_brought_there_it_says_what_there_is(desk):
    run = desk.submit(desk.job(steps=100_000), "--on", "pool")
    desk.until_step_there(0, run, 2)
    replace_by_older(desk, run, GREETINGS[1])
    for index in (0, 1):
        (desk.hosts.home(index) / "launch").chmod(0o777)  # whatever is brought there others could replace
    status = desk.status(run)
    assert status["state"] == "unknown" and "others can write" in status["message"], status
    said = desk.launch("cancel", run, check=5).stderr
    assert "others can write" in said and "Traceback" not in said
    for index in (0, 1):
        (desk.hosts.home(index) / "launch").chmod(0o700)
    desk.launch("cancel", run)


@pytest.mark.parametrize("version", OLDER)
def test_a_run_of_an_older_version_goes_on_and_ends_while_the_newer_one_watches(desk, version, tmp_path):
    """Its launcher on the hosts is the older one, from the submit to the last record."""
    older = unpack(version, tmp_path / "older")
    assert desk.launch("--version", env=older).stdout == f"launch {version}\n"
    run = desk.submit(desk.job(steps=8, hold=4), "--on", "pool", env=older)
    desk.until_step_there(0, run, 4)
    status = desk.status(run)
    assert (status["state"], status["step"]) == ("running", 4), status
    desk.let_go()
    assert desk.wait(run)["state"] == "succeeded"
    assert "step 8" in desk.launch("logs", run).stdout


@pytest.mark.parametrize("version", OLDER)
def test_a_run_of_an_older_version_is_cancelled_and_resumed_by_the_newer_one(desk, version, tmp_path):
    run = desk.submit(desk.job(steps=100_000), "--on", "pool", env=unpack(version, tmp_path / "older"))
    desk.until_step_there(0, run, 2)
    assert f"{run} is cancelled" in desk.launch("cancel", run).stdout
    assert not desk.left()
    desk.launch("resume", run)
    desk.until_step_there(0, run, 4, attempt=2)
    assert desk.status(run)["attempt"] == 2
    desk.launch("cancel", run)
