"""Checkpoints of real runs: listed, counted, and never in the way of a resume, whatever lies among them."""

import json
import os

import pytest
from saved_checkpoints import flip

from launcher.clock import boottime
from launcher.errors import Exit
from launcher.run.fence import raise_fence
from launcher.run.layout import RunDir

pytestmark = pytest.mark.nightly


@pytest.fixture
def saver(lab):
    """A spec whose run checkpoints at every fifth step of twenty."""
    lab.script("saver.py")
    return lab.spec(
        "name: saver\nresources: {ranks_per_node: 1}\n"
        "run: {script: saver.py, preload: [], args: {steps: 20, pause: 0}}\n"
    )


def listed(lab, run, *words, check=0):
    rows = json.loads(lab.launch("checkpoints", run, "--json", *words, check=check).stdout)
    return [(row["step"], row["state"]) for row in rows]


@pytest.mark.daily
def test_a_run_whose_newest_is_damaged_is_listed_counted_and_resumed(lab, saver):
    straight = lab.wait(lab.submit(saver, "--set", "run.args.steps=40"))["fingerprint"]
    run = lab.submit(saver)
    lab.wait(run)
    folder = lab.run_dir(run) / "checkpoints"
    assert "checkpoint  step 20, 4 committed\n" in lab.launch("status", run).stdout
    assert listed(lab, run, "--verify") == [(step, "verified") for step in (20, 15, 10, 5)]
    flip(folder / "step-00000020" / "rank-00000.data")
    assert listed(lab, run)[0] == (20, "ok")
    assert listed(lab, run, "--verify", check=Exit.DAMAGED)[:2] == [(20, "damaged"), (15, "verified")]

    lab.launch("resume", run, "--set", "run.args.steps=40")
    assert lab.wait(run)["fingerprint"] == straight
    assert "starts at step 15" in lab.rank_logs(run)
    assert "checkpoint  step 40, 8 committed, 1 set aside\n" in lab.launch("status", run).stdout
    found = listed(lab, run, "--verify")
    assert found == [*((step, "verified") for step in range(40, 0, -5)), (20, "set_aside")]


def test_nothing_in_the_checkpoints_folder_stops_a_resume(lab, saver):
    run = lab.submit(saver)
    lab.wait(run)
    folder = lab.run_dir(run) / "checkpoints"
    (folder / ".bad-step-00000099-0123456789ab").mkdir()
    (folder / "step-00000098").mkdir()
    os.mkfifo(folder / "step-00000098" / "MANIFEST.json")
    (folder / ".bad-link-0123456789ab").symlink_to(folder)
    (folder / ".tmp-97-a1-00").mkdir()
    (folder / "näme\nwith a line").write_bytes(b"\xff")
    for wanted in (20, 30, 40):
        (folder / f"step-{wanted + 1:08d}").mkdir()
        assert listed(lab, run)[0][1] == "damaged"
        lab.launch("status", run)
        lab.launch("resume", run, "--set", f"run.args.steps={wanted}")
        status = lab.wait(run)
        assert (status["state"], status["restarts"]["total"]) == ("succeeded", 0)
    assert "starts at step 30" in lab.rank_logs(run)


# -- exit code 22: a rank that found a newer start of its run

CLAIMED = """
import os, sys, time
from pathlib import Path
from trainer.checkpoint_files import commit, fence
from trainer.checkpoint_files.durable import make_folder
folder = Path(os.environ["LAUNCH_CHECKPOINT_DIR"])
make_folder(folder)
attempt = int(os.environ["LAUNCH_ATTEMPT"])
mine = commit.take_over(folder, attempt, int(os.environ["LAUNCH_GENERATION"]))
if attempt == 1:
    commit.take_over(folder)  # somebody starts the same training by hand
while not os.path.exists(folder / "go"):
    time.sleep(0.02)
fence.check(folder, mine, Path(os.environ["LAUNCH_RUN_DIR"]))
"""
SPEC = "name: fenced\nrun: {script: claimed.py, preload: []}\nresources: {ranks_per_node: 1}\n"


def checkpoint_folder(lab, run):
    folder = lab.run_dir(run) / "checkpoints"
    lab.until("its claim", (folder / "FENCE").exists)
    return folder


@pytest.mark.daily
def test_a_fenced_rank_ends_the_run_as_such_and_a_person_may_resume_it(lab):
    lab.script("claimed.py", CLAIMED)
    run = lab.submit(lab.spec(SPEC))
    (checkpoint_folder(lab, run) / "go").touch()
    status = lab.wait(run, check=Exit.FENCED)
    assert (status["state"], status["cause"], status["exit_code"]) == ("failed", None, 22)
    assert (status["restarts"]["total"], status["generation"]) == (0, 1)
    assert lab.events(run, "failure") == []
    assert "newer start" in lab.launch("status", run).stdout.splitlines()[0]
    lab.launch("resume", run)
    assert lab.wait(run)["state"] == "succeeded"


def test_a_fenced_rank_of_an_older_attempt_writes_nothing_over_the_newer_one(lab):
    lab.script("claimed.py", CLAIMED.replace("if attempt == 1", "if False"))
    run = lab.submit(lab.spec(SPEC))
    folder = checkpoint_folder(lab, run)
    lab.until("its start", lambda: lab.read_state(run)["state"] == "running")
    raise_fence(RunDir(lab.run_dir(run)), 2)
    fenced_at = boottime()
    (folder / "go").touch()
    lab.until("the end of all its processes", lambda: not lab.processes())
    assert lab.read_state(run)["monotonic_s"] < fenced_at + 0.5  # at most what was being written that very moment
    assert not (lab.run_dir(run) / "attempts" / "0001" / "exit.json").exists()
    kinds = [event["kind"] for event in lab.events(run)]
    assert not {"ended", "failure", "regroup", "requeue"} & set(kinds)


def test_there_is_a_folder_for_metrics_before_ranks_start(lab):
    lab.script(
        "measures.py",
        """
import os, stat
folder = os.path.join(os.environ["LAUNCH_RUN_DIR"], "metrics")
assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
open(os.path.join(folder, "rank-" + os.environ["RANK"]), "w").close()
""",
    )
    run = lab.submit(lab.spec("name: measures\nrun: {script: measures.py}\nresources: {nodes: 2, ranks_per_node: 1}\n"))
    lab.wait(run)
    assert sorted(path.name for path in (lab.run_dir(run) / "metrics").glob("rank-*")) == ["rank-0", "rank-1"]
