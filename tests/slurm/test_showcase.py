"""Everything at once: a real training that is preempted, loses a node and meets its time limit, again and again."""

import pytest
from runs import causes, record, take_all_nodes
from shares import SHARE

# An attempt must last for a minute to meet Slurm's shortest limit: at the nightly size alone.
MUCH = SHARE > 1
STEPS, LIMIT_MET = (900, 1) if MUCH else (110, 0)
LIMIT = ("--set", "resources.time=1m", "--set", "slurm.signal_before=20s") if MUCH else ()
JOB = f"""
name: resnet
run:
  module: trainer.tasks.resnet
  args:
    strategy: ddp
    model: resnet18
    pixels: 16
    train-images: 2400
    validation-images: 40
    batch-size: 8
    max-steps: {STEPS}
    seed: 3
    deterministic: true
resources:
  nodes: 2
  ranks_per_node: 2
  gpus_per_node: 0
  cpus_per_rank: 1
checkpoint:
  every: 20 steps
recovery:
  lease: 6s
"""


@pytest.mark.timeout(900)
def test_preempted_twice_and_a_node_lost_it_ends_with_the_undisturbed_weights(desk, slurm):
    spec = desk.spec(JOB)
    run = desk.submit(spec, "--on", "slurm", *LIMIT)

    def trains_in(attempt, beyond):
        def reached():
            state = desk.read_state(run)
            return state["attempt"] == attempt and (state["step"] or 0) > beyond and state["state"] == "running"

        desk.until(f"steps of attempt {attempt}", reached, timeout_s=100)
        return desk.read_state(run)["step"]

    step = trains_in(1, 5)
    for attempt in (1, 2):
        take_all_nodes(slurm)
        desk.until("the end of the attempt", lambda now=attempt: record(desk, run, "exit.json", now))
        step = trains_in(attempt + 1, step)
    slurm.nodes[1].power_off()
    desk.until("the end of the attempt", lambda: record(desk, run, "exit.json", 3))
    trains_in(4, 0)
    slurm.nodes[1].power_on()
    status = desk.wait(run, timeout=400)
    met = causes(desk, run)
    assert met.count("preempted") == 2 and met.count("node_lost") == 1 and met.count("time_limit") >= LIMIT_MET, met
    undisturbed = desk.wait(desk.submit(spec), timeout=200)
    assert status["fingerprint"] == undisturbed["fingerprint"]
    assert status["step"] == undisturbed["step"] == STEPS


@pytest.mark.timeout(400)
def test_taken_from_slurm_to_this_machine_and_back_it_is_the_same_training(desk, slurm):
    spec = desk.spec(JOB.replace(f"max-steps: {STEPS}", "max-steps: 45"))
    run = desk.submit(spec, "--on", "slurm")
    desk.until_step(run, 10)
    desk.launch("cancel", run)
    desk.launch("resume", run, "--on", "local")
    desk.until_step(run, 25)
    desk.launch("cancel", run)
    desk.launch("resume", run, "--on", "slurm")
    status = desk.wait(run, timeout=150)
    assert (status["attempt"], status["cluster"]) == (3, "slurm")
    assert status["fingerprint"] == desk.wait(desk.submit(spec), timeout=100)["fingerprint"]
