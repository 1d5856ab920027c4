"""recovery.mode hot: a rank is killed, the others stay, and the numbers are those of a run left alone."""

import json
import random
from functools import partial

import pytest
from lab import kill
from shares import SEED

pytestmark = [pytest.mark.dealt(2), pytest.mark.timeout(600)]

STEPS = 48


def spec(lab, *, ranks=2, nodes=1, mode="hot", every="10 steps", memory=None, hold=None, **args):
    lab.script("in_place.py")
    if hold is not None:
        lab.hold(hold)
        args["hold"] = json.dumps(str(lab.held))
    options = "".join(f"\n    {name}: {value}" for name, value in ({"steps": STEPS} | args).items())
    return lab.spec(
        f"name: staying\nrun:\n  script: in_place.py\n  args:{options}\n"
        f"resources:\n  ranks_per_node: {ranks}\n  nodes: {nodes}\n  gpus_per_node: 0\n  cpus_per_rank: 1\n"
        f"checkpoint:\n  every: {every}\n{'' if memory is None else f'  memory_every: {memory}'}\n"
        f"recovery:\n  mode: {mode}\n"
    )


def numbers(lab, run):
    """The loss and the rate of every step, and what validations found, as the newest start wrote it down."""
    lines = (lab.run_dir(run) / "metrics" / "metrics.jsonl").read_text().splitlines()
    found = {}
    for line in map(json.loads, lines):
        kept = {name: line[name] for name in ("loss", "lr", "norm", "val_loss") if name in line}
        if kept:
            found.setdefault(line["step"], {}).update(kept)
    return found


@pytest.fixture
def alone(lab):
    """Fingerprint and numbers of a run that nothing happened to."""

    def of(ranks=2, nodes=1, **args):
        run = lab.submit(spec(lab, ranks=ranks, nodes=nodes, **args))
        return lab.wait(run)["fingerprint"], numbers(lab, run)

    return of


def pids(state):
    return {rank["rank"]: rank["pid"] for rank in state["ranks"]}


def stayed(lab, run):
    return [event.get("in_place", False) for event in lab.events(run, "failure")]


def all_trained_again(lab, run, before):
    """A new generation that has made a step."""
    now = lab.read_state(run)
    generation = lab.events(run, "training")[-1]["generation"]
    return now if now["generation"] > before["generation"] and generation == now["generation"] else None


@pytest.mark.parametrize(
    ("strategy", "ranks", "nodes", "workers"),
    [("ddp", 3, 1, 1), ("ddp", 2, 2, 0), ("zero1", 2, 1, 0), ("zero1", 1, 2, 0), ("fsdp", 2, 1, 0)],
)
def test_killed_ranks_are_replaced_in_place_and_the_numbers_are_the_same(lab, alone, strategy, ranks, nodes, workers):
    print("seed", SEED)
    draw = random.Random(SEED)
    fingerprint, wanted = alone(ranks, nodes, strategy=strategy)
    how = {"strategy": strategy, "workers": workers, "pause": 0.02, "hold": STEPS - 1}
    how |= {"memory": "2 steps"} if strategy == "fsdp" else {}
    run = lab.submit(spec(lab, ranks=ranks, nodes=nodes, **how))
    step = 0
    for number in range(3):
        step = min(STEPS - 1, step + draw.randint(4, 12))  # what goes back has a snapshot by then
        before = lab.until_step(run, step)
        victim = 0 if number == 1 else draw.randrange(ranks * nodes)  # rank 0 serves the store, and speaks for all
        assert kill(pids(before)[victim])
        after = lab.until("a step of all", partial(all_trained_again, lab, run, before)) if number < 2 else None
        if after is not None:
            assert {rank for rank, pid in pids(after).items() if pid != pids(before)[rank]} == {victim}
            step = after["step"]
    lab.let_go()
    status = lab.wait(run)
    assert stayed(lab, run) == [True] * 3
    assert status["restarts"] == {"total": 3, "by_cause": {"killed": 3}}
    assert status["generation"] == 4
    assert numbers(lab, run) == wanted
    assert status["fingerprint"] == fingerprint
    assert "goes on in place after step" in lab.rank_logs(run)


@pytest.mark.parametrize("second", ["1 0 start", "1 0 load", "0 8 load"])
def test_one_more_killed_while_they_meet(lab, alone, tmp_path, second):
    """The new rank as it begins, or with half of the state; or rank 0, which gives it."""
    fingerprint, wanted = alone(ranks=3)
    for number, death in enumerate(("1 8 backward", second)):
        (tmp_path / f"die-{number}").write_text(death)
    run = lab.submit(spec(lab, ranks=3, die=json.dumps(str(tmp_path / "die"))))
    status = lab.wait(run)
    assert not list(tmp_path.glob("die-*"))
    assert stayed(lab, run) == [True] * 2
    assert status["restarts"] == {"total": 2, "by_cause": {"killed": 2}}
    assert numbers(lab, run) == wanted
    assert status["fingerprint"] == fingerprint


def test_a_strangers_script_is_started_anew_and_the_event_says_why(lab):
    run = lab.submit(lab.chain(args="steps: 50", hold=49, more="recovery:\n  mode: hot\n"))
    state = lab.until_step(run, 7)
    assert kill(pids(state)[1])
    lab.let_go()
    lab.wait(run)
    [regroup] = lab.events(run, "regroup")
    assert "warm because rank 0 has not said that its training can go on in place" in regroup["text"]
