"""A real training on hosts without a common disk: a rank, a host and the leader are lost, the weights are the same."""

import json
import re
import sys

import pytest
import torch
from ssh_desk import strike

pytestmark = pytest.mark.nightly

LESSONS = f"""
name: lessons
run:
  script: lessons.py
  args: {{pause: 0.1, hold: HELD}}
resources: {{nodes: 2, ranks_per_node: 1, gpus_per_node: 0, cpus_per_rank: 1}}
checkpoint: {{every: 4 steps}}
recovery: {{lease: 4s}}
ssh: {{python: {sys.executable}}}
"""


def small_resnet(desk, name="job.yaml", *, steps, spares):
    more = f"recovery: {{lease: 4s, wait: 6s, spares: {spares}}}\nssh: {{python: {sys.executable}}}\n"
    return desk.small_resnet(steps=steps, ranks=1, every=10, more=more, name=name)


def lessons(desk):
    """A spec of 48 steps, of which the last waits until it is let go."""
    desk.script("lessons.py")
    desk.hold(47)
    return desk.spec(LESSONS.replace("HELD", json.dumps(str(desk.held))))


def lessons_with_copies(desk):
    """A spec, and its run on two hosts of four: each has its ranks' files and a copy of the other's."""
    spec = lessons(desk)
    run = desk.submit(spec, "--on", "pool")
    desk.until("a copy of everything", lambda: (desk.state_there(0, run).get("safe_checkpoint") or 0) >= 8)
    return spec, run


@pytest.mark.timeout(600)
def test_a_rank_a_host_and_the_first_host_lost_it_ends_with_the_undisturbed_weights(desk):
    """The loss of a second of four hosts leaves no majority: then a person says that both are gone for good."""
    steps = 100
    desk.brake.touch()
    run = desk.submit(small_resnet(desk, steps=steps, spares=2), "--on", "pool")
    state = desk.until_step_there(0, run, 2)
    inside = next(rank["pid"] for rank in state["ranks"] if rank["node"] == 1)
    desk.hosts.nodes[1].exec("kill", "-9", str(inside))
    desk.until("the next generation", lambda: desk.state_there(0, run)["generation"] >= 2)
    desk.until_step_there(0, run, 12)
    desk.hosts.nodes[1].power_off()
    desk.until("a spare in its place", lambda: desk.state_there(0, run)["generation"] >= 3)
    desk.until_step_there(0, run, 22)
    desk.hosts.nodes[0].power_off()
    desk.until("word of the others", lambda: "say INTERRUPTED" in desk.status(run)["message"])
    assert f"launch resume {run} --without HOST" in desk.launch("resume", run, check=4).stderr
    desk.launch("resume", run, "--without", "node0", "--without", "node1")
    desk.until_step_there(2, run, 22, attempt=2)
    desk.brake.unlink()
    status = desk.wait(run, timeout=300)
    assert status["step"] == steps
    alone = small_resnet(desk, "alone.yaml", steps=steps, spares=0)
    assert status["fingerprint"] == desk.wait(desk.submit(alone), timeout=200)["fingerprint"]


@pytest.mark.timeout(500)
def test_taken_from_here_to_hosts_to_slurm_and_back_it_is_the_same_training(desk, shared_lab):
    shared_lab.well()
    desk.env |= shared_lab.env
    spec = lessons(desk)
    run = desk.submit(spec)
    desk.until_step(run, 6)
    desk.launch("cancel", run)
    desk.launch("resume", run, "--on", "pool")
    desk.until_step_there(0, run, 16, attempt=2)
    desk.launch("cancel", run)
    assert "checkpoint of step" in desk.launch("fetch", run).stdout
    desk.launch("resume", run, "--on", "slurm")
    desk.until("steps on Slurm", lambda: (s := desk.read_state(run))["attempt"] == 3 and (s["step"] or 0) >= 26)
    desk.launch("cancel", run)
    shared_lab.clear()
    desk.let_go()
    desk.launch("resume", run, "--on", "local")
    status = desk.wait(run)
    assert (status["attempt"], status["cluster"]) == (4, "local")
    assert status["fingerprint"] == desk.wait(desk.submit(spec))["fingerprint"]


def test_a_host_gone_for_good_resume_goes_on_without_it(desk):
    """The rest of the pool has nothing yet."""
    spec, run = lessons_with_copies(desk)
    desk.hosts.nodes[1].power_off()
    strike(desk.own("ssh.host.host_supervisor", 0)[0])
    strike(next(pid for pid in desk.own("launcher.node", 0)))
    desk.until("word of who may know better", lambda: "node1" in desk.status(run)["message"])
    assert f"launch resume {run} --without HOST" in desk.launch("resume", run, check=4).stderr
    desk.let_go()
    desk.launch("resume", run, "--without", "node1")
    status = desk.wait(run)
    assert "node1" not in [node["host"] for node in status["nodes"]]
    alone = desk.wait(desk.submit(spec))
    assert status["fingerprint"] == alone["fingerprint"]


def test_both_hosts_gone_for_good_resume_goes_on_from_what_was_fetched(desk):
    spec, run = lessons_with_copies(desk)
    desk.launch("fetch", run)
    weights = desk.project.parent / "lessons.pt"
    assert ": 6 tensors" in desk.launch("export", run, "-o", str(weights)).stderr
    assert len(torch.load(weights, weights_only=True)) == 6
    for node in desk.hosts.nodes[:2]:
        node.power_off()
    assert f"launch resume {run} --without HOST" in desk.launch("resume", run, check=4).stderr
    said = desk.launch("cancel", run, "--gone", "node0", "--gone", "node1").stdout
    assert f"{run} is cancelled" in said
    desk.let_go()
    desk.launch("resume", run)
    status = desk.wait(run)
    assert [node["host"] for node in status["nodes"]] == ["node2", "node3"]
    starts = [int(step) for step in re.findall(r", step (\d+) of \d+$", desk.launch("logs", run).stdout, re.MULTILINE)]
    assert len(starts) == 2 and starts[1] >= 8, starts
    assert status["fingerprint"] == desk.wait(desk.submit(spec))["fingerprint"]
