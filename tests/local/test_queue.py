"""Runs of this machine that wait: for slots, for a person, for the clock, for other runs, for their neighbours."""

import os
import subprocess
import time
from itertools import pairwise

import pytest
from lab import command, kill

pytestmark = pytest.mark.nightly

ALL = f"queue.slots={len(os.sched_getaffinity(0))}"
ONE_RANK = "ranks_per_node: 1\ngpus_per_node: 0"


@pytest.fixture
def desk(lab):
    """Return a desk in a network of its own, which sees nothing that other users of this machine hold or wait for."""
    alone = ["unshare", "--net", "sh", "-c", "ip link set lo up && exec sleep 3600"]
    anchor = subprocess.Popen(alone)
    try:
        lab.until("a network", lambda: command(anchor.pid).startswith(b"sleep"))
        lab.inside = ["nsenter", f"--net=/proc/{anchor.pid}/ns/net"]
        yield lab
    finally:
        lab.tidy()
        anchor.kill()
        anchor.wait()


def held_chain(desk):
    """Start a chain of runs of which no rank goes beyond step 3 until the lab releases it."""
    return desk.chain(args="steps: 5", resources=ONE_RANK, hold=3)


def queued(desk, run, why):
    """Return the run's status once it waits for that reason."""

    def waits():
        status = desk.status(run)
        assert status["state"] in ("starting", "queued"), status
        return status if status["state"] == "queued" and why in status["message"] else None

    return desk.until(f"queued: {why}", waits)


def spans(desk, runs):
    """Wait for the runs, and return (start, end, run) of each, in the order of their starts."""
    return sorted((status["started_at"], status["ended_at"], run) for run in runs for status in [desk.wait(run)])


def supervisor(desk, run):
    return int(next(pid for pid in desk.processes(desk.run_dir(run)) if b"local_supervisor:" in command(pid)))


@pytest.mark.daily
def test_without_slots_runs_take_turns_on_the_cores_and_now_shares_what_others_have(desk):
    spec = held_chain(desk)
    runs = [desk.submit(spec, "--set", ALL), desk.submit(spec), desk.submit(spec, "--set", ALL, "--now")]
    for run in runs:
        desk.until_step(run, 3)
    desk.let_go()
    assert [desk.wait(run)["state"] for run in runs] == ["succeeded"] * 3


def test_what_does_not_fit_starts_by_itself_the_higher_priority_first_and_then_in_order(desk):
    spec = held_chain(desk)
    first = desk.submit(spec, "--set", ALL)
    desk.until_step(first, 3)
    low = desk.submit(spec, "--set", ALL, "--priority", "-5")
    queued(desk, low, f"{first} (")
    early = desk.submit(spec, "--set", ALL)
    queued(desk, early, f"{first} (")
    late = desk.submit(spec, "--set", ALL)
    queued(desk, late, "1 run is ahead")
    high = desk.submit(spec, "--set", ALL, "--priority", "10")
    queued(desk, high, f"{first} (")
    queued(desk, low, "3 runs are ahead")
    assert desk.status(first)["state"] == "running"
    desk.let_go()
    went = spans(desk, [first, low, early, late, high])
    assert [run for *_, run in went] == [first, high, early, late, low]
    assert all(ended <= started for (_, ended, _), (started, *_) in pairwise(went))


def test_a_waiting_run_is_cancelled_and_one_whose_supervisor_is_killed_waits_on(desk):
    spec = held_chain(desk)
    first = desk.submit(spec, "--set", ALL)
    desk.until_step(first, 3)
    gone, killed = desk.submit(spec, "--set", ALL), desk.submit(spec, "--set", ALL)
    queued(desk, gone, "waits for")
    queued(desk, killed, "waits for")
    desk.launch("cancel", gone)
    assert desk.status(gone)["state"] == "cancelled"
    assert kill(supervisor(desk, killed))
    desk.until("it is seen", lambda: desk.status(killed)["attempt"] == 2)
    queued(desk, killed, f"{first} (")
    desk.let_go()
    assert desk.wait(killed)["state"] == "succeeded"


def test_slots_go_with_the_last_process_of_a_run_that_is_killed(desk):
    spec = held_chain(desk)
    first = desk.submit(spec, "--set", ALL)
    desk.until_step(first, 3)
    second = desk.submit(spec, "--set", ALL)
    queued(desk, second, f"{first} (")
    while left := desk.processes(desk.run_dir(first)):
        for pid in left:
            kill(pid)
    desk.until("the second run", lambda: desk.status(second)["state"] == "running")
    desk.let_go()
    assert desk.wait(second)["state"] == "succeeded"


def test_a_held_run_is_released_by_a_person_alone(desk):
    spec = desk.chain(args="steps: 5", resources=ONE_RANK)
    run = desk.submit(spec, "--hold")
    queued(desk, run, f"held until `launch release {run}`")
    other = desk.submit(spec)
    desk.wait(other)
    refused = desk.launch("release", other, check=4)
    assert f"{other} is succeeded, and not held" in refused.stderr
    assert desk.status(run)["state"] == "queued"
    assert desk.launch("release", run).stdout == f"{run} is not held any more\n"
    assert desk.wait(run)["state"] == "succeeded"


def test_a_run_that_is_to_start_later_waits_and_resume_starts_it_now(desk):
    spec = desk.chain(args="steps: 5", resources=ONE_RANK)
    tomorrow = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() + 86_400))
    run = desk.submit(spec, "--at", tomorrow)
    queued(desk, run, f"starts at {tomorrow}")
    desk.launch("cancel", run)
    desk.launch("resume", run)
    assert desk.wait(run)["state"] == "succeeded"
    over = desk.launch("submit", spec, "--at", "2020-02-29", check=2)
    assert "queue.at: 2020-02-29 is over" in over.stderr


def test_of_runs_that_are_submitted_together_so_many_go_on_at_once(desk):
    spec = held_chain(desk)
    runs = desk.launch("submit", spec, "--repeat", "4", "--max-parallel", "2").stdout.split()
    for run in runs[:2]:
        desk.until_step(run, 3)
    for run in runs[2:]:
        queued(desk, run, f"2 of the runs that were submitted with it are running or waiting: {runs[0]}, {runs[1]}")
    desk.launch("cancel", runs[0])
    desk.until_step(runs[2], 3)
    queued(desk, runs[3], f"{runs[1]}, {runs[2]}")
    desk.let_go()
    assert [desk.wait(run)["state"] for run in runs[1:]] == ["succeeded"] * 3


FAILS = "name: bad\nrun: {command: 'exit 3'}\nresources: {ranks_per_node: 1}\nrecovery: {user_error: 0}\n"


@pytest.mark.daily
def test_a_run_follows_others_that_are_known_and_is_cancelled_where_one_has_failed(desk):
    spec = held_chain(desk)
    refused = desk.launch("submit", spec, "--after", "nobody-7k3f", check=2)
    assert "queue.after.0: 'nobody-7k3f': no such run" in refused.stderr and not desk.processes()
    first = desk.submit(spec)
    then = desk.submit(spec, "--after", first)
    third = desk.submit(spec, "--after", f"{then}:ended", "--after", f"{first}:step=2")
    queued(desk, then, f"waits for {first} to succeed")
    waits = queued(desk, third, f"waits for {then} to end (it is queued)")
    desk.until_step(first, 3)
    desk.until("the step was seen", lambda: first not in desk.status(third)["message"])
    assert waits["started_at"] is None
    bad = desk.submit(desk.spec(FAILS, "bad.yaml"))
    desk.wait(bad, check=None)
    never = desk.submit(spec, "--after", bad)
    status = desk.wait(never, check=None)
    assert (status["state"], status["cause"]) == ("cancelled", "cancelled")
    assert f"{bad}, which it was to follow, is failed" in status["message"]
    desk.let_go()
    went = spans(desk, [first, then, third])
    assert [run for *_, run in went] == [first, then, third]
    assert all(ended <= started for (_, ended, _), (started, *_) in pairwise(went))
