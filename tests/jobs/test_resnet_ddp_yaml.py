"""The shipped spec as the README starts it: trained to its end, and killed on the way."""

import random
import shutil
from pathlib import Path

import pytest
from fleet import Fleet
from lab import Lab, kill

ROOT = Path(__file__).parents[2]
SPEC = "jobs/resnet_ddp.yaml"
SMALL = {"steps": 30, "batch-size": 8, "train-images": 48, "validation-images": 16}


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path)
    shutil.copytree(ROOT / "jobs", lab.project / "jobs")
    (lab.project / "templates").symlink_to(ROOT / "templates")
    yield lab
    left = lab.tidy()
    assert not left, f"processes of a run outlived it: {left}"


@pytest.mark.timeout(400)
def test_it_learns_in_about_a_minute(lab):
    run = lab.submit(SPEC)
    status = lab.wait(run, timeout=360)
    assert status["metrics"]["accuracy"] >= 0.9
    assert status["checkpoint"] == status["step"] == status["total_steps"]


def test_killed_on_the_way_it_ends_as_a_plain_run_of_the_script_does(lab, tmp_path):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    args = [word for key, value in SMALL.items() for word in (f"--{key}", value)]
    with Fleet(ROOT / "jobs" / "resnet_ddp.py", tmp_path / "plain") as fleet:
        assert fleet.start(*args, "--lr", 0.01, "--seed", 1).codes() == [0, 0], fleet.log.read_text()
        plain = fleet.last("fingerprint")
    sets = [word for key, value in SMALL.items() for word in ("--set", f"run.args.{key}={value}")]
    run = lab.submit(SPEC, *sets, "--set", "checkpoint.every=4 steps")
    state = lab.until_step(run, chance.randint(2, 20))
    assert kill(chance.choice(state["ranks"])["pid"]), "the fault did not fire"
    status = lab.wait(run)
    assert status["restarts"]["total"] == 1
    assert status["fingerprint"] == plain
