"""Test what the time of a real run was spent on."""

import itertools

import pytest
from lab import kill

from launcher.api import Run
from launcher.ids import parse_run_id
from launcher.status.life import read_life

pytestmark = pytest.mark.nightly


def test_a_kill_shows_on_the_strip_with_the_steps_that_were_made_again(lab):
    name = lab.submit(lab.chain(args="steps: 12\nevery: 5", hold=2))
    lab.until_step(name, 2)  # of the first steps the coordinator has heard
    lab.hold(8)
    lab.until_step(name, 8)  # as one rank has said
    lab.until("step 8 of both", lambda: lab.rank_logs(name).count("step 8\n") == 2)
    assert kill(next(one["pid"] for one in lab.read_state(name)["ranks"] if one["rank"] == 1))
    lab.until("a step of the second generation", lambda: len(lab.events(name, "training")) == 2)
    lab.let_go()
    told = lab.wait(name)
    run = Run(parse_run_id(name), lab.run_dir(name))
    life = read_life(run.status(), 0.0)  # of a run that has ended, whenever one looks
    assert (life.since, life.until) == (lab.events(name)[0]["at"], told["ended_at"])
    assert all(before.until == after.since for before, after in itertools.pairwise(life.segments))
    assert sum(life.seconds.values()) == pytest.approx(life.until - life.since)
    first, second = (
        [one.kind for one in life.segments if one.generation == number and one.kind != "waiting"] for number in (1, 2)
    )
    assert first == ["starting", "training", "lost", "recovering"]  # steps 6 to 8 were made again
    assert second == ["recovering", "training"]
    assert 0 < life.goodput < 1 and told["goodput"] == life.goodput
    failure = next(mark for mark in life.marks if mark.kind == "failure")
    assert (failure.rank, failure.cause) == (1, "killed")
    assert "step 8" in (run.path / failure.log).read_text()
