"""The job of two steps: trained, though a rank is killed, and predicted with the best checkpoint, at the second go."""

import json

import pytest
from fleet import STRIKE

pytestmark = pytest.mark.nightly

SPEC = "jobs/train_then_predict.yaml"
TINY = [
    "run.args.model=shufflenet_v2_x0_5", "run.args.pixels=16", "run.args.validation-images=40",
    "steps.train.run.args.max-steps=12", "steps.train.run.args.batch-size=8", "steps.train.run.args.train-images=48",
    "steps.train.run.args.validate-every=4", "steps.train.checkpoint.every=4 steps",
]  # fmt: skip

REFUSE = "import os\nif os.path.exists(os.environ['REFUSED']):\n    raise RuntimeError('not yet')\n"


def overrides(*words):
    return [word for one in (*TINY, *words) for word in ("--set", one)]


def answers(checkout, graph):
    """Return the model that answered, and the number of answers."""
    out = checkout.run_dir(f"{graph}-predict") / "code" / "answers.jsonl"
    return json.loads(out.with_name(f"{out.name}.about.json").read_text()), len(out.read_text().splitlines())


def best_step(checkout, graph):
    listed = json.loads(checkout.launch("checkpoints", f"{graph}-train", "--json").stdout)
    return next(one["step"] for one in listed if one["kind"] == "best")


@pytest.mark.timeout(400)
def test_a_rank_is_killed_and_the_best_checkpoint_predicts_all_the_same(checkout, tmp_path):
    (tmp_path / "strike.py").write_text(STRIKE.format(rank=1, step=6))
    struck = [f"steps.train.env.PYTHONPATH={tmp_path}", "steps.train.run.preload=[torch, strike]"]
    graph = checkout.submit(SPEC, *overrides("resources.ranks_per_node=2", *struck))
    checkout.launch("wait", graph, timeout=300)
    train, predict = (one["status"] for one in checkout.status(graph)["steps"])
    assert train["restarts"] == {"total": 1, "by_cause": {"killed": 1}}, "the fault did not fire"
    assert (train["step"], train["state"], predict["state"]) == (12, "succeeded", "succeeded")
    assert predict["started_at"] >= train["ended_at"]
    about, lines = answers(checkout, graph)
    assert (about["step"], about["samples"], lines) == (best_step(checkout, graph), 40, 40)


@pytest.mark.timeout(400)
def test_a_prediction_that_failed_is_resumed_and_nothing_is_trained_again(checkout, tmp_path):
    (tmp_path / "refuse.py").write_text(REFUSE)
    (tmp_path / "refused").touch()
    refused = [
        f"env.REFUSED={tmp_path / 'refused'}", f"steps.predict.env.PYTHONPATH={tmp_path}", "recovery.user_error=0",
        "steps.predict.run.setup=python3 -c 'import refuse'", "resources.ranks_per_node=1",
    ]  # fmt: skip
    graph = checkout.submit(SPEC, *overrides(*refused))
    checkout.launch("wait", graph, check=10, timeout=300)
    before = checkout.status(graph)
    assert [before["state"], *(one["status"]["state"] for one in before["steps"])] == ["failed", "succeeded", "failed"]
    (tmp_path / "refused").unlink()
    assert checkout.launch("resume", graph).stdout.split() == [f"{graph}-predict"]
    checkout.launch("wait", graph, timeout=300)
    after = checkout.status(graph)
    assert [one["status"]["attempt"] for one in after["steps"]] == [1, 2]
    about, lines = answers(checkout, graph)
    assert (about["step"], lines) == (best_step(checkout, graph), 40)
