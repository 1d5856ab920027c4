"""The Grid Engine lab: what it promises to the tests that use it, and that it leaves nothing behind."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.lab.gridengine import GridEngineLab
from tests.lab.nodes import BOUND_S, until

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]

# Each start writes where it ran; the first host calls the other one of a job by the scheduler's own way.
MEETING = """
here=$(hostname); other=$(grep -v "^$here " $PE_HOSTFILE | cut -d' ' -f1)
echo "$here called $(qrsh -inherit -nostdin $other hostname)" > {folder}/met.part; mv {folder}/met.part {folder}/met
"""
BEAT = """
hostname > {folder}/started.$RESTARTED
trap '' USR2
setsid sh -c 'while :; do sleep 0.1; done' &
while :; do sleep 0.1; done
"""


@pytest.fixture
def tmp_path():
    """A folder that every node sees by a short path."""
    with tempfile.TemporaryDirectory(prefix="lab-") as folder:
        yield Path(folder)


def test_a_job_has_two_hosts_and_starts_programs_on_both(grid_engine_lab, tmp_path):
    submit(grid_engine_lab, tmp_path, MEETING, "-pe", "launch", "2")
    until("the meeting", (tmp_path / "met").exists)
    said = (tmp_path / "met").read_text().split()
    assert {said[0], said[2]} < {"node0", "node1", "node2"} and said[0] != said[2]


def test_a_job_of_a_node_without_power_starts_again_on_another(lab_possible, tmp_path):
    """By a qmaster that has lost no host before: else it does not put the job back."""
    with GridEngineLab(tmp_path / "lab") as lab:
        submit(lab, tmp_path, BEAT, "-r", "y")
        name = until("its start", lambda: said(tmp_path / "started.0"))
        lab.nodes[int(name.removeprefix("node"))].power_off()
        assert until("the second start", lambda: said(tmp_path / "started.1")) != name


def said(path):
    return path.read_text().strip() if path.exists() else ""


def test_clear_undoes_everything(grid_engine_lab, tmp_path):
    submit(grid_engine_lab, tmp_path, BEAT, "-pe", "launch", "2")
    until("its start", (tmp_path / "started.0").exists)
    grid_engine_lab.nodes[1].power_off()
    grid_engine_lab.nodes[2].kill_execd()
    grid_engine_lab.stop_master()
    grid_engine_lab.clear()
    assert grid_engine_lab.idle()
    assert [node.job_pids() for node in grid_engine_lab.nodes] == [[]] * 3


def test_up_and_down_leave_nothing(lab_possible, tmp_path):
    lab = GridEngineLab(tmp_path / "lab", 2)
    lab.up()
    submit(lab, tmp_path, BEAT)
    until("its start", (tmp_path / "started.0").exists)
    assert lab.traces()
    lab.down()
    assert lab.traces() == []
    assert sorted(path.name for path in lab.folder.iterdir()) == ["log", "own-etc"]


def test_by_hand(lab_possible, tmp_path):
    folder = tmp_path / "by-hand"
    try:
        said = by_hand("up", "--kind", "gridengine", "--nodes", "1", "--at", folder)
        asked = subprocess.run(
            ["sh", "-c", f"{said.strip()}; qconf -sel"], capture_output=True, text=True, timeout=BOUND_S
        )
        assert asked.stdout == "node0\n", asked.stderr
    finally:
        by_hand("down", "--at", folder)
    assert not folder.exists()


def by_hand(*words):
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab", *words], cwd=ROOT, capture_output=True, text=True, timeout=BOUND_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def submit(lab, folder, script, *options):
    path = folder / "job.sh"
    path.write_text("#!/bin/sh\n" + script.format(folder=folder))
    return lab.ask("qsub", "-terse", "-S", "/bin/sh", "-j", "y", "-o", "/dev/null", *options, str(path))
