"""Steps of one file on Slurm: jobs with dependencies of Slurm's own, and resumed as such."""

import pytest
from ledger_job import STEPS, WORK, job
from runs import job_of

pytestmark = pytest.mark.nightly


def test_a_step_that_fails_is_resumed_with_those_that_were_to_follow_it(desk, slurm, tmp_path):
    ledger = tmp_path / "ledger"
    refused = ledger.with_name("ledger.first")
    refused.touch()
    desk.script("work.py", WORK)
    graph = desk.submit(desk.spec(job(ledger) + STEPS), "--on", "slurm", "--hold")
    first, last = f"{graph}-first", f"{graph}-last"
    said = slurm.ask("scontrol", "show", "job", job_of(desk, last))
    assert f"Dependency=afterok:{job_of(desk, first)}" in said
    desk.launch("release", graph)
    desk.launch("wait", graph, check=10)
    assert [step["status"]["state"] for step in desk.status(graph)["steps"]] == ["failed", "cancelled"]
    refused.unlink()
    assert desk.launch("resume", graph).stdout.split() == [first, last]
    desk.launch("wait", graph)
    assert [line.split()[1] for line in ledger.read_text().splitlines()] == ["first", "first", "last"]
    assert desk.status(last)["started_at"] >= desk.status(first)["ended_at"]


@pytest.mark.daily
def test_what_slurm_refuses_of_a_first_step_leaves_nothing_and_of_a_later_one_is_told(desk):
    desk.script("work.py", WORK)
    spec = desk.spec(job(desk.project / "ledger") + STEPS)
    more = ("--on", "slurm", "--hold")
    first = desk.launch("submit", spec, *more, "--set", "steps.first.slurm.extra={no-such-option: 1}", check=2)
    assert "no-such-option" in first.stderr
    told = desk.launch("status")
    assert (told.stdout, "not started yet" in told.stderr) == ("", False)
    last = desk.launch("submit", spec, *more, "--set", "steps.last.slurm.extra={no-such-option: 1}", check=4)
    graph = next(line.split()[3] for line in last.stderr.splitlines() if line.startswith("hint: launch resume"))
    assert "last: " in last.stderr
    assert f"{graph}: last not started yet" in desk.launch("status").stderr
    desk.launch("cancel", graph)
    desk.launch("rm", graph)
    told = desk.launch("status")
    assert (told.stdout, "not started yet" in told.stderr) == ("", False)
