"""The Grid Engine lab: what it promises to the tests that use it, and that it leaves nothing behind."""

import tempfile
from pathlib import Path

import pytest

from tests.lab.gridengine import GridEngineLab
from tests.lab.nodes import until

pytestmark = pytest.mark.nightly

# Each start writes where it ran; the first host calls the other one of a job by the scheduler's own way.
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


def submit(lab, folder, script, *options):
    path = folder / "job.sh"
    path.write_text("#!/bin/sh\n" + script.format(folder=folder))
    return lab.ask("qsub", "-terse", "-S", "/bin/sh", "-j", "y", "-o", "/dev/null", *options, str(path))
