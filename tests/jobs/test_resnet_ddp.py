"""The shipped script resumes exactly: however it is disturbed, it ends with the bytes of an undisturbed run."""

import hashlib
import random
import re
import signal
from pathlib import Path

import pytest
from fleet import Fleet

SCRIPT = Path(__file__).parents[2] / "jobs" / "resnet_ddp.py"
STEPS = 9
EVERY = 2
# 6 steps are an epoch, so the end lies in the second one.
ARGS = (
    "--steps",
    STEPS,
    "--batch-size",
    8,
    "--train-images",
    48,
    "--validation-images",
    16,
    "--checkpoint-every",
    f"{EVERY} steps",
)


def run(folder, world=2, script=SCRIPT, disturb=None):
    with Fleet(script, folder, world) as fleet:
        fleet.start(*ARGS)
        if disturb is not None:
            disturb(fleet)
        codes = fleet.codes()
        return fleet, codes


def finished(folder, world=2, script=SCRIPT):
    fleet, codes = run(folder, world, script)
    assert codes == [0] * world, fleet.log.read_text()
    assert all(fleet.last("done", rank) for rank in range(world))
    return fleet


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("undisturbed"))


def test_it_reports_its_progress_and_its_fingerprint(undisturbed):
    steps = [report["step"] for report in undisturbed.reports[1] if "step" in report]
    checkpoints = [report["checkpoint"] for report in undisturbed.reports[0] if "checkpoint" in report]
    assert steps == list(range(1, STEPS + 1))
    assert checkpoints == [2, 4, 6, 8, 9]
    printed = re.search(r"fingerprint sha256=([0-9a-f]{64})\n", undisturbed.log.read_text())
    assert printed[1] == undisturbed.last("fingerprint")


def test_it_keeps_the_newest_three_checkpoints_each_with_its_checksum(undisturbed):
    kept = sorted((undisturbed.folder / "checkpoints").iterdir())
    names = [f"step-{step:08d}.pt" for step in (6, 8, 9)]
    assert [path.name for path in kept] == sorted([*names, *(f"{name}.sha256" for name in names)])
    for name in names:
        path = undisturbed.folder / "checkpoints" / name
        assert path.with_suffix(".pt.sha256").read_text().split() == [
            hashlib.sha256(path.read_bytes()).hexdigest(),
            name,
        ]


def test_a_run_that_is_killed_twice_ends_with_the_same_bytes(undisturbed, tmp_path):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for bounds in ((1, 5), (6, STEPS - 1)):
        victim, step = chance.randrange(2), chance.randint(*bounds)
        _, codes = run(tmp_path, disturb=lambda fleet, victim=victim, step=step: fleet.kill_at(victim, step))
        assert codes[victim] == -signal.SIGKILL
        assert codes[1 - victim] not in (0, None), "the survivor went on alone"
    assert finished(tmp_path).last("fingerprint") == undisturbed.last("fingerprint")


def test_asked_to_stop_on_any_rank_all_save_and_leave_with_75(undisturbed, tmp_path):
    fleet, codes = run(tmp_path, disturb=lambda fleet: fleet.kill_at(1, 3, signal.SIGTERM))
    assert codes == [75, 75]
    stopped_at = fleet.step(0)
    assert fleet.last("checkpoint") == stopped_at == fleet.step(1)
    resumed = finished(tmp_path)
    assert next(report["step"] for report in resumed.reports[0]) == stopped_at + 1, "a step was lost or done twice"
    assert resumed.last("fingerprint") == undisturbed.last("fingerprint")


@pytest.mark.parametrize("damage", ["flipped bit", "cut short", "no checksum"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(undisturbed, tmp_path, damage):
    fleet, _ = run(tmp_path, disturb=lambda fleet: fleet.kill_at(0, 5, signal.SIGTERM))
    newest, *_ = sorted((tmp_path / "checkpoints").glob("step-*.pt"), reverse=True)
    data = bytearray(newest.read_bytes())
    if damage == "flipped bit":
        data[len(data) // 2] ^= 4
    elif damage == "cut short":
        del data[-1:]
    else:
        newest.with_suffix(".pt.sha256").unlink()
    newest.write_bytes(data)
    resumed = finished(tmp_path)
    assert f"passing over {newest.relative_to(tmp_path)}" in resumed.log.read_text()
    assert next(report["step"] for report in resumed.reports[0]) <= fleet.step(0)
    assert resumed.last("fingerprint") == undisturbed.last("fingerprint")


def four_ranks(folder, script=SCRIPT):
    """Fingerprints of a run on four ranks left alone, and of one that lost a rank."""
    whole = finished(folder / "whole", world=4, script=script)
    run(folder / "killed", world=4, script=script, disturb=lambda fleet: fleet.kill_at(2, 5))
    return whole.last("fingerprint"), finished(folder / "killed", world=4, script=script).last("fingerprint")


def without(folder, what, instead):
    """The script with one thing taken out of it."""
    text = SCRIPT.read_text()
    assert text.count(what) == 1
    sabotaged = folder / "sabotaged.py"
    sabotaged.write_text(text.replace(what, instead))
    return sabotaged


def test_four_ranks_resume_exactly_too(tmp_path):
    whole, killed = four_ranks(tmp_path)
    assert killed == whole


def test_four_ranks_would_not_without_the_pass_that_settles_the_buckets(tmp_path):
    whole, killed = four_ranks(tmp_path, without(tmp_path, ".sum().backward()", ""))
    assert killed != whole


@pytest.mark.parametrize(
    ("what", "instead"),
    [('restore_random_state(state["', 'str(state["'), ("optimizer.load_state_dict(state", "str(state")],
    ids=["random state", "optimizer"],
)
def test_the_fingerprint_tells_when_something_is_not_restored(undisturbed, tmp_path, what, instead):
    script = without(tmp_path, what, instead)
    run(tmp_path, script=script, disturb=lambda fleet: fleet.kill_at(0, 5))
    assert finished(tmp_path, script=script).last("fingerprint") != undisturbed.last("fingerprint")
