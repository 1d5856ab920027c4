"""The jobs that ship, as the README starts them: all of them run, and the first one learns and survives."""

import json
import random
from pathlib import Path

import pytest
from fleet import STRIKE, Fleet

from tests.sizes import SEED

ROOT = Path(__file__).parents[2]
SPEC = "jobs/resnet_ddp.yaml"
SEVERAL = ("actor_learner", "parameter_server", "serve_resnet", "train_then_predict")  # programs: in files of their own
SINGLE = [path for path in sorted(ROOT.glob("jobs/*.yaml")) if path.stem not in SEVERAL]
TINY = {"max-steps": 24, "batch-size": 8, "train-images": 48, "validation-images": 16}
TINY_GPT = {"max-steps": 6, "batch-size": 4, "layers": 2, "width": 32, "context": 32, "sample": 0}
TINY_PLAIN = {"steps": 6, "batch-size": 8, "images": 48}


def overrides(args):
    return [word for key, value in args.items() for word in ("--set", f"run.args.{key}={json.dumps(value)}")]


@pytest.mark.timeout(400)
@pytest.mark.nightly  # test_readme.py begins that job
def test_it_learns_in_about_a_minute(checkout):
    run = checkout.submit(SPEC)
    status = checkout.wait(run, timeout=360)
    assert status["metrics"]["val_accuracy"] >= 0.95
    assert status["checkpoint"] == status["step"] == status["total_steps"] == 140


@pytest.mark.timeout(400)
@pytest.mark.nightly
def test_killed_on_the_way_it_ends_as_a_plain_run_of_the_module_does(checkout, tmp_path):
    seed = SEED
    print(f"seed {seed}")
    chance = random.Random(seed)
    args = [word for key, value in TINY.items() for word in (f"--{key}", value)]
    with Fleet(ROOT / "trainer" / "tasks" / "resnet.py", tmp_path / "plain") as fleet:
        assert fleet.start(*args, "--lr", 0.01, "--seed", 1, "--deterministic").codes() == [0, 0], fleet.log.read_text()
        plain = fleet.last("fingerprint")
    (tmp_path / "strike.py").write_text(STRIKE.format(rank=chance.randrange(2), step=chance.randint(2, 16)))
    struck = ("--set", f"env.PYTHONPATH={tmp_path}", "--set", "run.preload=[torch, strike]")
    run = checkout.submit(SPEC, *overrides(TINY), "--set", "checkpoint.every=4 steps", *struck)
    status = checkout.wait(run, timeout=190)
    assert status["restarts"] == {"total": 1, "by_cause": {"killed": 1}}, "the fault did not fire"
    assert status["fingerprint"] == plain


@pytest.mark.timeout(400)
@pytest.mark.nightly
@pytest.mark.parametrize("path", SINGLE, ids=lambda path: path.stem)
def test_every_job_runs_to_its_end(checkout, path):
    args = TINY_GPT if path.stem.startswith("gpt") else TINY_PLAIN if path.stem.startswith("plain") else TINY
    assert path.read_text().startswith("# yaml-language-server: $schema=../templates/job.schema.json\n")
    run = checkout.submit(f"jobs/{path.name}", *overrides(args | ({"max-steps": 6} if "max-steps" in args else {})))
    status = checkout.wait(run, timeout=150)
    assert status["step"] == status["checkpoint"] == 6
    assert len(status["fingerprint"]) == 64
