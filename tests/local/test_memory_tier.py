"""Snapshots in a node's memory: what survives which death, and that the end of a run gives all of it back."""

import os
import stat
from functools import partial
from pathlib import Path

import pytest
from lab import kill

from launcher.copies.memory_tier import MEMORY

pytestmark = pytest.mark.nightly

# Counts what it finds in its node's memory, one up at each start, and tells it as its step.
COUNTS = """
import json, os, time
folder = os.environ["LAUNCH_CHECKPOINT_MEMORY_DIR"]
assert os.environ["LAUNCH_CHECKPOINT_MEMORY_EVERY"] == "20 steps"
assert os.environ["LAUNCH_CHECKPOINT_MEMORY_LIMIT"] == "1000"
here = os.path.join(folder, "starts-" + os.environ["LOCAL_RANK"])
starts = 1 + (int(open(here).read()) if os.path.exists(here) else 0)
open(here, "w").write(str(starts))
print("found", starts - 1, "in", folder, flush=True)
wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)
while not os.path.exists(os.path.join(os.environ["LAUNCH_RUN_DIR"], "go")):
    wire.write(json.dumps({"step": starts}) + "\\n")
    time.sleep(0.05)
wire.write(json.dumps({"step": starts, "done": True}) + "\\n")
"""


@pytest.fixture
def spec(lab):
    lab.script("counts.py", COUNTS)

    def of(nodes=1):
        return lab.spec(
            "name: counts\nrun: {script: counts.py}\n"
            f"resources: {{nodes: {nodes}, ranks_per_node: 1}}\n"
            "checkpoint: {memory_every: 20 steps, memory_limit: 1KB}\n"
            "recovery: {grace: 1s, no_progress: off, killed: {restarts: 9, backoff: 0s}}\n"
        )

    return of


@pytest.fixture(autouse=True)
def nothing_stays_in_memory(lab):
    """Whatever a test does: after its runs' ends there is nothing left of them."""
    yield
    runs = [path.name for path in lab.run_dir("x").parent.glob("counts-*")]
    lab.until("the end of their memory", lambda: not any(folders(run) for run in runs))


def folders(run):
    return sorted(path for path in MEMORY.glob(f"launch-{run}-*"))


def has_started(lab, run, times, attempt=1, generation=1):
    state = lab.read_state(run)
    reached = (state["attempt"], state["generation"]) >= (attempt, generation) and state["state"] == "running"
    return state if reached and all(rank["step"] == times for rank in state["ranks"]) else None


def started(lab, run, times, **where):
    return lab.until(f"start {times}", partial(has_started, lab, run, times, **where))


def let_go(lab, run, check=0):
    (lab.run_dir(run) / "go").touch()
    return lab.wait(run, check=check)


@pytest.mark.daily
def test_it_is_for_the_user_alone_found_by_a_regroup_and_gone_at_the_end(lab, spec):
    run = lab.submit(spec(nodes=2))
    rank = started(lab, run, 1)["ranks"][0]["pid"]
    before = folders(run)
    assert [stat.S_IMODE(path.stat().st_mode) for path in before] == [0o700, 0o700]
    assert kill(rank)
    started(lab, run, 2, generation=2)
    assert folders(run) == before
    let_go(lab, run)
    lab.until("the end of the folders", lambda: folders(run) == [])


@pytest.mark.parametrize(("killed", "follows"), [(0, {"attempt": 2}), (1, {"generation": 2})])
def test_so_does_what_follows_a_killed_agent_by_itself(lab, spec, killed, follows):
    """Neither the killed agent's node nor the one whose agent left in order has lost anything."""
    run = lab.submit(spec(nodes=2))
    started(lab, run, 1)
    before = folders(run)
    assert kill(lab.agent_pid(run, killed))
    started(lab, run, 2, **follows)
    assert lab.rank_logs(run).count("found 1") == 2
    assert len(folders(run)) == 2 and (folders(run) == before or "attempt" in follows)
    let_go(lab, run)
    lab.until("the end of the folders", lambda: folders(run) == [])


def test_what_a_lost_run_leaves_is_not_gone_on_with_by_a_resume(lab, spec):
    """It is of a person's making, and another machine may have run it in between."""
    run = lab.submit(spec())
    started(lab, run, 1)
    lab.tidy()
    lab.launch("resume", run)
    started(lab, run, 1, attempt=2)
    let_go(lab, run)
    assert lab.rank_logs(run).count("found 0") == 2
    lab.until("the end of the folders", lambda: folders(run) == [])


@pytest.mark.parametrize("lost", [False, True])
def test_a_cancel_gives_it_back_and_what_a_lost_run_has_left_too(lab, spec, lost):
    run = lab.submit(spec(nodes=2))
    started(lab, run, 1)
    if lost:
        lab.tidy()
    lab.launch("cancel", run)
    assert folders(run) == []


def test_so_does_whoever_has_memory_next(lab, spec):
    lost = lab.submit(spec())
    started(lab, lost, 1)
    lab.tidy()
    run = lab.submit(spec())
    started(lab, run, 1)
    assert folders(lost) == []
    let_go(lab, run)


def test_a_run_that_does_not_ask_for_it_has_none(lab):
    lab.script("none.py", "import os\nassert not [name for name in os.environ if 'MEMORY' in name]\n")
    run = lab.submit(lab.spec("name: none\nrun: {script: none.py}\nrecovery: {mode: warm}\n"))
    lab.wait(run)
    assert folders(run) == []


def test_a_planted_link_is_not_followed(lab, spec, tmp_path):
    run = lab.submit(spec())
    started(lab, run, 1)
    (folder,) = folders(run)
    lab.launch("cancel", run)
    target = tmp_path / "target"
    target.mkdir()
    planted = Path(str(folder).replace("-a0001", "-a0002"))
    planted.symlink_to(target)
    try:
        lab.launch("resume", run)
        started(lab, run, 1, attempt=2)
        assert os.listdir(target) == []
        let_go(lab, run)
        lab.until("the end of our folder", lambda: folders(run) == [planted])
    finally:
        planted.unlink()
