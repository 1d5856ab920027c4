"""The shipped script resumes exactly: however it is disturbed, it ends with the bytes of an undisturbed run."""

import random
import re
import signal
from pathlib import Path

import pytest
from fleet import Fleet, Strike

from tests.sizes import SEED
from trainer.checkpoint_files import catalog

pytestmark = pytest.mark.nightly

SHIPPED = (Path(__file__).parents[2] / "jobs" / "plain_ddp.py").read_text()
# For what the size of the model has nothing to do with:
SMALL = SHIPPED.replace("resnet18(", "ResNet(BasicBlock, [1, 1, 1, 1], ").replace(
    "torchvision.models import resnet18", "torchvision.models.resnet import BasicBlock, ResNet"
)
STEPS = 9
EVERY = 2
# 6 steps are an epoch, so the end lies in the second one.
ARGS = ("--steps", STEPS, "--batch-size", 8, "--images", 48, "--checkpoint-every", f"{EVERY} steps")


def run(folder, world=2, text=SMALL, strike=None):
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "plain_ddp.py"
    script.write_text(text)
    with Fleet(script, folder, world, strike) as fleet:
        codes = fleet.start(*ARGS).codes()
    if strike is not None and strike.number == signal.SIGKILL:
        assert codes[strike.rank] == -signal.SIGKILL, fleet.log.read_text()
    return fleet, codes


def finished(folder, world=2, text=SMALL):
    fleet, codes = run(folder, world, text)
    assert codes == [0] * world, fleet.log.read_text()
    assert all(fleet.last("done", rank) for rank in range(world))
    return fleet


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.daily
def test_it_reports_its_progress_and_its_fingerprint(undisturbed):
    steps = [report["step"] for report in undisturbed.reports[1] if "step" in report]
    checkpoints = [report["checkpoint"] for report in undisturbed.reports[0] if "checkpoint" in report]
    assert steps == sorted(steps)
    assert steps[-1] == STEPS
    assert checkpoints == [2, 4, 6, 8, 9]
    printed = re.search(r"fingerprint sha256=([0-9a-f]{64})\n", undisturbed.log.read_text())
    assert printed[1] == undisturbed.last("fingerprint")


@pytest.mark.daily
def test_a_run_that_is_killed_twice_ends_with_the_same_bytes(undisturbed, tmp_path):
    seed = SEED
    print(f"seed {seed}")
    chance = random.Random(seed)
    for bounds in ((1, 5), (6, STEPS - 1)):
        victim, step = chance.randrange(2), chance.randint(*bounds)
        _, codes = run(tmp_path, strike=Strike(victim, step))
        assert codes[1 - victim] not in (0, None), "the survivor went on alone"
    assert finished(tmp_path).last("fingerprint") == undisturbed.last("fingerprint")


def test_asked_to_stop_on_any_rank_all_save_and_leave_with_75(undisturbed, tmp_path):
    fleet, codes = run(tmp_path, strike=Strike(1, 3, signal.SIGTERM))
    assert codes == [75, 75]
    assert newest(tmp_path).step == fleet.last("checkpoint") >= fleet.step(0)
    resumed = finished(tmp_path)
    assert f"step {fleet.last('checkpoint')} of {STEPS}" in resumed.log.read_text()
    assert resumed.last("fingerprint") == undisturbed.last("fingerprint")


def newest(folder):
    return catalog.entries(folder / "checkpoints")[-1]


def four_ranks(folder, text=SHIPPED):
    """Fingerprints of a run on four ranks left alone, and of one that lost a rank."""
    whole = finished(folder / "whole", world=4, text=text)
    run(folder / "killed", world=4, text=text, strike=Strike(2, 5))
    return whole.last("fingerprint"), finished(folder / "killed", world=4, text=text).last("fingerprint")


def without(text, what, instead):
    """The script with one thing taken out of it."""
    assert text.count(what) == 1
    return text.replace(what, instead)


def test_four_ranks_resume_exactly_too(tmp_path):
    whole, killed = four_ranks(tmp_path)
    assert killed == whole


def test_four_ranks_would_not_without_the_pass_that_settles_the_buckets(tmp_path):
    whole, killed = four_ranks(tmp_path, without(SMALL, ".sum().backward()", ""))
    assert killed != whole


def test_the_fingerprint_tells_when_something_is_not_kept(undisturbed, tmp_path):
    text = without(SMALL, 'state={"scheduler": scheduler},', "")
    run(tmp_path, text=text, strike=Strike(0, 5))
    assert finished(tmp_path, text=text).last("fingerprint") != undisturbed.last("fingerprint")
