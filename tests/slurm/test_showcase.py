"""Everything at once: a real training that is preempted, loses a node and meets its time limit, again and again."""

import pytest
from runs import causes, record, take_all_nodes

pytestmark = pytest.mark.nightly

MINUTES = ("--set", "resources.time=1m", "--set", "slurm.signal_before=20s")


def small_resnet(desk, steps):
    desk.brake.touch()
    return desk.small_resnet(steps=steps, ranks=2, every=20, more="recovery: {lease: 6s}\n")


def trains(desk, run, after, beyond):
    """Wait for steps beyond this one in an attempt after this one; gives both as they are."""

    def reached():
        state = desk.read_state(run)
        far = state["attempt"] > after and (state["step"] or 0) > beyond
        return (state["attempt"], state["step"]) if far and state["state"] == "running" else None

    return desk.until(f"steps of an attempt after {after}", reached)


@pytest.mark.timeout(900)
def test_preempted_and_a_node_lost_and_out_of_time_it_ends_with_the_undisturbed_weights(desk, slurm):
    steps = 200
    spec = small_resnet(desk, steps)
    run = desk.submit(spec, "--on", "slurm", *MINUTES)
    attempt, step = trains(desk, run, 0, 2)
    while causes(desk, run).count("preempted") < 2:
        take_all_nodes(slurm)
        desk.until("the end of the attempt", lambda now=attempt: record(desk, run, "exit.json", now))
        attempt, step = trains(desk, run, attempt, step)
    hosts = [node["host"] for node in desk.read_state(run)["nodes"]]
    lost = next(node for node in slurm.nodes if node.name == hosts[1])
    lost.power_off()
    desk.until("the end of the attempt", lambda: record(desk, run, "exit.json", attempt))
    trains(desk, run, attempt, 0)
    lost.power_on()
    desk.until("the time limit", lambda: "time_limit" in causes(desk, run), timeout_s=400)
    desk.brake.unlink()
    status = desk.wait(run, timeout=300)
    assert causes(desk, run).count("node_lost") == 1
    undisturbed = desk.wait(desk.submit(spec), timeout=200)
    assert status["fingerprint"] == undisturbed["fingerprint"]
    assert status["step"] == undisturbed["step"] == steps
