"""Runs that follow others on Grid Engine: it waits for the ends of jobs, and the jobs look at how the runs ended."""

import json

import pytest
from ledger_job import STEPS, WORK, job

from launcher.run.attempts import read_plan
from launcher.run.layout import RunDir

pytestmark = pytest.mark.nightly


def job_of(desk, run):
    return json.loads((desk.run_dir(run) / "attempts/0001/handle.json").read_text())["job_id"]


def test_steps_are_jobs_that_hold_each_other_and_one_that_fails_is_resumed_with_who_follows(desk, grid, tmp_path):
    ledger = tmp_path / "ledger"
    refused = ledger.with_name("ledger.first")
    refused.touch()
    desk.script("work.py", WORK)
    graph = desk.submit(desk.spec(job(ledger) + STEPS), "--on", "gridengine", "--hold")
    first, last = f"{graph}-first", f"{graph}-last"
    assert f"jid_predecessor_list:       {job_of(desk, first)}" in grid.ask("qstat", "-j", job_of(desk, last))
    desk.launch("release", graph)
    desk.launch("wait", graph, check=10)
    told = [step["status"] for step in desk.status(graph)["steps"]]
    assert [status["state"] for status in told] == ["failed", "cancelled"]
    assert told[1]["message"].startswith(f"{first}, which it was to follow, is failed")
    refused.unlink()
    assert desk.launch("resume", graph).stdout.split() == [first, last]
    desk.launch("wait", graph)
    assert [line.split()[1] for line in ledger.read_text().splitlines()] == ["first", "first", "last"]


def test_who_follows_a_run_that_goes_on_in_another_job_is_put_back_behind_that(desk, grid):
    two_nodes = "nodes: 2\nranks_per_node: 1\ngpus_per_node: 0\ncpus_per_rank: 1\ntime: 20s"
    more = "gridengine: {pe: launch}\ncheckpoint: {every: 20 steps}\n"
    first = desk.submit(desk.chain(args="steps: 100000", resources=two_nodes, more=more), "--on", "gridengine")
    desk.script("work.py", "print('here')")
    one_rank = "resources: {ranks_per_node: 1, gpus_per_node: 0}\n"
    then = desk.spec(f"name: then\nrun: {{script: work.py, preload: []}}\n{one_rank}", "then.yaml")
    then = desk.submit(then, "--on", "gridengine", "--after", f"{first}:ended")
    begun = job_of(desk, first)

    def follows_another():
        said = grid.ask("qstat", "-j", job_of(desk, then))
        held = next((line.split()[1] for line in said.splitlines() if line.startswith("jid_predecessor_list:")), begun)
        return held != begun

    desk.until("another job before it", follows_another)
    assert desk.status(then)["state"] == "queued"
    desk.launch("cancel", first)
    assert desk.wait(then)["state"] == "succeeded"
    assert desk.status(then)["started_at"] >= desk.status(first)["ended_at"]


def test_of_runs_that_are_submitted_together_so_many_go_on_at_once_counted_here(desk):
    spec = desk.chain(args="steps: 5", resources="ranks_per_node: 1\ngpus_per_node: 0\n", hold=3)
    done = desk.launch("submit", spec, "--on", "gridengine", "--repeat", "2", "--max-parallel", "1")
    assert "gridengine cannot wait for runs that are submitted together: this machine does" in done.stderr
    first, second = done.stdout.split()
    desk.until_step(first, 3)
    status = desk.status(second)
    assert (status["state"], status["started_at"]) == ("queued", None)
    assert status["message"] == f"1 of the runs that were submitted with it are running or waiting: {first}"
    desk.let_go()
    assert desk.wait(second)["started_at"] >= desk.status(first)["ended_at"]
    plans = [read_plan(RunDir(desk.run_dir(run)), 2) for run in (first, second)]
    assert [(plan.cluster_kind, plan.env["LAUNCH_REPEAT"]) for plan in plans] == [
        ("gridengine", "0"),
        ("gridengine", "1"),
    ]
