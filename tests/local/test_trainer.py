"""The trainer under launch: whatever is killed, whenever, the run ends with the numbers of an undisturbed one."""

import json
import random
from collections import Counter
from functools import partial

import pytest
from lab import kill

from launcher.states import State
from tests.sizes import SEED
from trainer.checkpoint_files import catalog

pytestmark = pytest.mark.nightly

SAMPLES, BATCH = 96, 12
STEPS = 6 * SAMPLES // BATCH


def lessons(lab, *, ranks=2, nodes=1, every="5 steps", memory="", hold=None, **args):
    lab.script("lessons.py")
    if hold is not None:
        lab.hold(hold)
        args["hold"] = json.dumps(str(lab.held))
    options = "".join(f"\n    {name}: {value}" for name, value in args.items())
    return lab.spec(
        f"name: lessons\nrun:\n  script: lessons.py\n  args:{options or ' {}'}\n"
        f"resources:\n  ranks_per_node: {ranks}\n  nodes: {nodes}\n"
        f"checkpoint:\n  every: {every}\n{memory}"
        "recovery:\n  no_progress: 30\n  killed: {restarts: 30, backoff: 0s}\n"
    )


def losses(lab, run):
    """The loss of every step, as the newest start wrote it down."""
    lines = (lab.run_dir(run) / "metrics" / "metrics.jsonl").read_text().splitlines()
    return {line["step"]: line["loss"] for line in map(json.loads, lines) if "loss" in line}


def seen(lab, run):
    """Return for each step the samples that all ranks saw in the start whose step counted."""
    starts = {}
    for path in (lab.run_dir(run) / "diary").iterdir():
        attempt, generation, _ = map(int, path.name.split("."))
        # What a killed rank was writing may be torn, and then it was no step.
        whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        for step, indices in map(json.loads, whole):
            starts.setdefault(step, {}).setdefault((attempt, generation), []).extend(indices)
    return {step: by_start[max(by_start)] for step, by_start in starts.items()}


def kill_at_random(lab, run, draw, kills, most):
    """Kill ranks, zygotes and agents at random instants, each only once the run has got further than the last time."""
    fired = step = 0
    while fired < kills:
        step = draw.randint(step + 1, step + most)
        state = lab.until(f"step {step} or the end", partial(at_step_or_over, lab, run, step))
        if state["state"] != "running":
            break
        victims = [rank["pid"] for rank in state["ranks"] if rank["pid"]]
        agent = lab.agent_pid(run, 0, state["attempt"])
        if fired % 3 == 1:
            victims = lab.zygotes(agent)[:1]
        elif fired % 3 == 2:
            victims = [agent]
        if victims and kill(draw.choice(victims)):
            fired += 1
            if fired % 3 != 2:  # that was a zygote, which ranks outlive
                lab.until("a new generation", partial(has_moved_on, lab, run, state))
    return fired


def at_step_or_over(lab, run, step):
    state = lab.read_state(run)
    over = State(state["state"]).ended
    return state if over or (state["state"] == "running" and (state.get("step") or 0) >= step) else None


def has_moved_on(lab, run, before):
    now = lab.read_state(run)
    same = (now["attempt"], now["generation"]) == (before["attempt"], before["generation"])
    return not same or State(now["state"]).ended


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("strategy", "ranks", "workers", "memory"),
    [
        pytest.param("ddp", 2, 1, "", marks=pytest.mark.daily),
        ("fsdp", 2, 0, "  memory_every: 2 steps\n"),
    ],
)
def test_killed_at_random_it_ends_as_if_it_had_been_left_alone(lab, strategy, ranks, workers, memory):
    seed = SEED
    print(f"seed {seed}")
    args = {"strategy": strategy, "workers": workers}
    alone = lab.submit(lessons(lab, ranks=ranks, **args))
    wanted = lab.wait(alone)
    run = lab.submit(lessons(lab, ranks=ranks, memory=memory, pause=0.05, hold=STEPS - 1, **args))
    assert kill_at_random(lab, run, random.Random(seed), kills=3, most=12) == 3, "not all faults fired"
    lab.let_go()
    status = lab.wait(run)
    assert status["fingerprint"] == wanted["fingerprint"]
    assert losses(lab, run) == losses(lab, alone)
    assert status["restarts"]["total"] >= 2, "a killed agent is a new attempt, the others are restarts"
    for entry in catalog.entries(lab.run_dir(run) / "checkpoints"):
        catalog.verify(entry)


@pytest.mark.timeout(600)
def test_each_sample_comes_once_per_epoch_over_kills_and_other_world_sizes(lab):
    seed = SEED
    print(f"seed {seed}")
    draw = random.Random(seed)
    run = lab.submit(lessons(lab, ranks=2, every="3 steps", pause=0.1, hold=STEPS - 1))
    for ranks in (4, 1, 3):
        state = lab.until_step(run, min(STEPS - 1, (lab.read_state(run)["step"] or 0) + draw.randint(3, 8)))
        assert kill(draw.choice([rank["pid"] for rank in state["ranks"]]))
        lab.until("a new generation", partial(has_moved_on, lab, run, state))
        lab.until_step(run, min(STEPS - 1, (state["step"] or 0) + 1))
        lab.launch("cancel", run)
        lab.launch("resume", run, "--set", f"resources.ranks_per_node={ranks}")
    lab.let_go()
    status = lab.wait(run)
    assert status["step"] == STEPS
    worlds = {entry["world_size"] for entry in lab.events(run) if "world_size" in entry} or {status["world_size"]}
    assert 3 in worlds
    by_step = seen(lab, run)
    assert sorted(by_step) == list(range(1, status["step"] + 1))
    for epoch in range(6):
        steps = range(epoch * SAMPLES // BATCH + 1, (epoch + 1) * SAMPLES // BATCH + 1)
        count = Counter(index for step in steps for index in by_step[step])
        assert count == Counter(range(SAMPLES)), f"epoch {epoch}"


@pytest.mark.timeout(400)
def test_a_frozen_rank_is_noticed_and_the_numbers_stay_the_same(lab):
    alone = lab.wait(lab.submit(lessons(lab, epochs=3)))
    spec = lessons(lab, epochs=3, pause=0.05, hold=STEPS // 2 - 1)
    run = lab.submit(spec, "--set", "recovery.hang_after=25s")
    state = lab.until_step(run, 6)
    assert kill(state["ranks"][1]["pid"], 19), "the fault did not fire"  # SIGSTOP
    lab.let_go()
    status = lab.wait(run)
    assert status["restarts"]["by_cause"] == {"hang": 1}
    assert status["fingerprint"] == alone["fingerprint"]
    assert "(most recent call first)" in lab.rank_logs(run), "stacks of the frozen rank's peers"
