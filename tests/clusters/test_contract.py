"""What every cluster must do. A new one is added to CLUSTERS and has to pass as it is."""

import pytest

from launcher.api import Run
from launcher.clusters.kinds import of_kind
from launcher.rundir.attempts import new_attempt, newest, read_plan
from launcher.rundir.layout import RunDir
from launcher.spec.model import JobSpec
from launcher.spec.model import RunOptions as RunSpec
from launcher.words import State

CLUSTERS = ["local"]
SPEC = JobSpec("contract", RunSpec(script="train.py"))


def status(run):
    return Run(run.path.name, run.path).status().state


@pytest.fixture(params=CLUSTERS)
def place(request):
    return of_kind(request.param)


@pytest.fixture
def ended(lab):
    """A run that has ended and would go on for long if it were resumed with more steps."""
    run = lab.submit(lab.chain(args="steps: 3"))
    lab.wait(run)
    lab.launch("resume", run, "--set", "run.args.steps=100000")
    lab.until_step(run, 5)
    lab.launch("cancel", run)
    return RunDir(lab.run_dir(run))


def test_a_node_offers_something(place):
    assert place.machine(SPEC).cpus >= 1


def test_abandoned_it_does_nothing(place, lab, ended):
    before = newest(ended)
    place.engage(read_plan(ended, before.number)).abandon()
    lab.until("its processes to go", lambda: not lab.processes())
    assert newest(ended) == before


def test_told_to_go_it_carries_the_attempt_out_and_cancel_ends_it(place, lab, ended):
    engagement = place.engage(read_plan(ended, newest(ended).number))
    attempt, _ = new_attempt(ended, place.kind, "resume", None)
    engagement.go(attempt.number)
    lab.until("life", lambda: not status(ended).ended)
    lab.until_step(ended.path.name, 6)
    plan = read_plan(ended, attempt.number)
    report = place.cancel(ended, attempt, plan)
    assert report.ended and not report.already
    assert status(ended).ended
    assert lab.processes() == []
    again = place.cancel(ended, attempt, plan)
    assert again.already and again.ended == ()


def test_an_attempt_that_nobody_started_is_not_alive_and_can_be_cancelled(place, ended):
    attempt, _ = new_attempt(ended, place.kind, "resume", None)
    place.cancel(ended, attempt, read_plan(ended, attempt.number))
    assert status(ended) is State.CANCELLED
