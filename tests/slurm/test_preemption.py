"""Slurm takes the nodes back, or the time is over: the run goes on in the same job, to the same weights."""

import pytest
from runs import causes, fingerprint_here, job_of, jobs, record, take_all_nodes, two_nodes

pytestmark = pytest.mark.nightly

STEPS = 400


@pytest.mark.parametrize("partition", ["main", "graceful", "cancelled"])
def test_preempted_it_goes_on_in_the_same_job(desk, slurm, partition):
    run = desk.submit(two_nodes(desk, STEPS, f"slurm:\n  partition: {partition}\n", hold=STEPS - 1), "--on", "slurm")
    desk.until_step(run, 40)
    job = job_of(desk, run)
    urgent = take_all_nodes(slurm)
    desk.until("the end of the first attempt", lambda: record(desk, run, "exit.json"))
    desk.let_go()
    status = desk.wait(run)
    assert (status["state"], status["attempt"], status["job"]) == ("succeeded", 2, job)
    assert causes(desk, run) == ["preempted"]
    assert status["restarts"] == {"total": 1, "by_cause": {"preempted": 1}}
    assert status["fingerprint"] == fingerprint_here(desk, STEPS)
    assert urgent not in jobs(slurm)


@pytest.mark.daily
def test_with_a_grace_time_the_run_leaves_before_slurm_ends_it(desk, slurm):
    run = desk.submit(two_nodes(desk, 100_000, "slurm:\n  partition: graceful\n"), "--on", "slurm")
    desk.until_step(run, 20)
    take_all_nodes(slurm)
    desk.until("the end of the first attempt", lambda: record(desk, run, "exit.json"))
    (output,) = desk.run_dir(run).glob("slurm-*.out")
    desk.until("Slurm's word", lambda: "DUE TO " in output.read_text())
    said = output.read_text()
    assert "DUE TO JOB REQUEUE" in said and "PREEMPTION" not in said
    desk.launch("cancel", run)


@pytest.mark.daily
def test_on_one_node_too(desk, slurm):
    spec = desk.chain(args="steps: 100000", more="slurm:\n  partition: graceful\n")
    run = desk.submit(spec, "--on", "slurm")
    desk.until_step(run, 20)
    take_all_nodes(slurm)
    assert desk.until("the end of the first attempt", lambda: record(desk, run, "exit.json"))["cause"] == "preempted"
    desk.until("the second attempt", lambda: record(desk, run, "handle.json", 2))
    desk.launch("cancel", run)


def test_a_signal_by_hand_moves_the_run(desk, slurm):
    run = desk.submit(two_nodes(desk, STEPS, hold=STEPS - 1), "--on", "slurm")
    desk.until_step(run, 20)
    for attempt, words in ((1, ("--batch", "--signal=USR1")), (2, ("--signal=USR2",)), (3, ("--signal=TERM",))):
        slurm.ask("scancel", *words, job_of(desk, run, attempt))
        desk.until("the next attempt", lambda attempt=attempt: record(desk, run, "handle.json", attempt + 1))
        desk.until("life", lambda attempt=attempt: desk.read_state(run)["attempt"] == attempt + 1)
        desk.until("ranks", lambda: desk.read_state(run)["state"] != "starting")
    desk.let_go()
    status = desk.wait(run)
    assert (status["attempt"], set(causes(desk, run))) == (4, {"preempted"})
    assert status["fingerprint"] == fingerprint_here(desk, STEPS)


def test_before_the_time_limit_it_saves_and_goes_on(desk, slurm):
    """The limit is a minute, so the run is told 40 s before it; Slurm warns as early as it likes."""
    more = "slurm:\n  signal_before: 40s\n"
    spec = desk.chain(args="steps: 360\npause: 0.1", resources="nodes: 2\nranks_per_node: 2\ntime: 1m", more=more)
    run = desk.submit(spec, "--on", "slurm")
    status = desk.wait(run)
    assert status["state"] == "succeeded"
    assert status["attempt"] >= 2  # as many as a machine needs that has more to do
    assert status["restarts"]["by_cause"] == {"time_limit": status["attempt"] - 1}
    assert status["fingerprint"] == fingerprint_here(desk, 360)
    first, last = (next(e["at"] for e in desk.events(run, kind)) for kind in ("submitted", "stop_asked"))
    assert last - first > 20  # not at Slurm's first, early word
