"""On Slurm the first node of a job tells, over all its starts; the job stays until the end is told."""

import json

import pytest
from lab import whole_lines
from runs import jobs, record, take_all_nodes, two_nodes

pytestmark = pytest.mark.nightly


def test_a_run_that_is_preempted_is_told_of_once_and_of_its_end(desk, slurm, tmp_path):
    heard = tmp_path / "heard"

    def kinds():
        return [json.loads(line)["kind"] for line in whole_lines(heard) if line]

    notify = f"notify: {{to: {{command: 'sleep 1; (cat; echo) >> {heard}'}}, on: [started, ended]}}\n"
    run = desk.submit(two_nodes(desk, 400, f"slurm:\n  partition: main\n{notify}", hold=399), "--on", "slurm")
    desk.until_step(run, 40)
    desk.until("its start is noted", lambda: desk.events(run, "notified"))
    take_all_nodes(slurm)
    desk.until("the end of the first attempt", lambda: record(desk, run, "exit.json"))
    desk.let_go()
    status = desk.wait(run)
    assert (status["state"], status["attempt"]) == ("succeeded", 2)
    desk.until("the job's end", lambda: status["job"] not in jobs(slurm))
    assert kinds() == ["started", "ended"]
