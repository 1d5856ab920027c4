"""Runs of every version that was released can be looked at, cancelled and resumed by this one."""

import re
from pathlib import Path

import pytest
from older import OLDER, unpack
from recordings import RECORDED, RUNS, replay

from launcher.errors import Exit
from launcher.states import VERSION
from tests.docs.blocks import DOCS

CHANGELOG = DOCS / "changelog.md"
VERSIONS = sorted(folder.name for folder in RECORDED.iterdir())


def test_every_released_version_is_among_them():
    """`tests/local/recordings.py` and `tests/older.py` record a version on the day that it is released."""
    headings = re.findall(r"^## (\d\S*)(.*)$", CHANGELOG.read_text(), re.MULTILINE)
    assert VERSION in [version for version, _ in headings]
    released = [version for version, words in headings if "not yet released" not in words]
    assert released
    for version in released:
        assert {run.name for run in (RECORDED / version).iterdir()} == {*RUNS}
        assert version in OLDER


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


@pytest.mark.parametrize("version", OLDER)
def test_one_that_still_runs_with_the_older_version_is_watched_cancelled_and_resumed(lab, version, tmp_path):
    """Its supervisor, agents and ranks are the older version's; the command is this one's."""
    older = unpack(version, tmp_path / "older")
    assert lab.launch("--version", env=older).stdout == f"launch {version}\n"
    run = lab.submit(lab.chain(hold=3), env=older)
    lab.until_step(run, 3)
    assert older["PYTHONPATH"] in Path(f"/proc/{lab.agent_pid(run, 0)}/environ").read_text()
    status = lab.status(run)
    assert (status["state"], status["step"]) == ("running", 3)
    assert "submitted job.yaml to local" in lab.launch("status", run).stdout
    lab.launch("cancel", run)
    assert lab.status(run)["state"] == "cancelled"
    lab.let_go()
    lab.launch("resume", run)
    assert lab.wait(run)["state"] == "succeeded"


@pytest.mark.parametrize("version", OLDER)
def test_one_that_ends_with_the_older_version_is_waited_for(lab, version, tmp_path):
    run = lab.submit(lab.chain(args="steps: 5", hold=3), env=unpack(version, tmp_path / "older"))
    lab.until_step(run, 3)
    lab.let_go()
    status = lab.wait(run)
    assert (status["state"], status["step"], status["checkpoint"]) == ("succeeded", 5, 5)
