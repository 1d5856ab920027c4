"""Runs of every version that was released can be looked at, cancelled and resumed by this one."""

import pytest
from recordings import RECORDED, RUNS, replay

from launcher.errors import Exit
from launcher.words import VERSION

VERSIONS = sorted(folder.name for folder in RECORDED.iterdir())


def test_this_version_is_among_them():
    assert VERSION in VERSIONS
    assert {run.name for run in (RECORDED / VERSION).iterdir()} == {*RUNS}


@pytest.mark.parametrize("version", VERSIONS)
def test_they_are_looked_at(lab, version):
    runs = {name: replay(version, name, lab) for name in RUNS}
    states = {name: lab.status(run)["state"] for name, run in runs.items()}
    assert states == {"failed": "failed", "succeeded": "succeeded", "cut-off": "lost"}
    page = lab.launch("status", runs["failed"]).stdout
    assert "ValueError: asked to fail at 3" in page
    assert "submitted job.yaml to local" in page
    assert lab.launch("logs", runs["succeeded"]).stdout.count("goes on after 0") == 2
    assert all(run in lab.launch("status").stdout for run in runs.values())


@pytest.mark.parametrize("version", VERSIONS)
def test_one_that_was_cut_off_is_cancelled(lab, version):
    run = replay(version, "cut-off", lab)
    lab.launch("cancel", run)
    assert lab.status(run)["state"] == "cancelled"
    lab.launch("wait", run, check=Exit.CANCELLED)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "kept"), [("failed", 2), ("cut-off", 3)])
def test_they_are_resumed(lab, version, name, kept):
    run = replay(version, name, lab)
    lab.launch("resume", run, "--set=run.args={to: 6}")
    status = lab.wait(run)
    assert (status["state"], status["step"], status["attempt"]) == ("succeeded", 6, 2)
    assert lab.launch("logs", run).stdout.endswith(f"goes on after {kept}\n")
