"""The disk that all nodes share is full for a while: the run waits for room, and goes on."""

import shutil
import subprocess

import pytest
from runs import causes, desk_at, fingerprint_here, two_nodes

from launcher.run.avoided import avoided
from launcher.run.layout import RunDir
from tests.lab.slurm import SlurmLab

pytestmark = pytest.mark.nightly

STEPS = 300


@pytest.fixture
def small(tmp_path_factory, lab_possible):
    """A cluster whose users' projects lie on a small disk: nodes see what was mounted before they came up."""
    folder = tmp_path_factory.mktemp("full")  # the sockets of slurmstepd are below it, and theirs are 107 letters
    (folder / "desk").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder / "desk"], check=True)
    try:
        with SlurmLab(folder / "lab", nodes=2) as slurm:
            yield from desk_at(folder / "desk", slurm)
    finally:
        subprocess.run(["umount", "-l", folder / "desk"], check=True)


def fill(desk):
    filler = desk.project.parent / "filler"
    with filler.open("wb", buffering=0) as file:
        while shutil.disk_usage(filler.parent).free:
            file.write(bytes(4096))
    return filler


def test_a_run_waits_for_room_on_the_disk_and_goes_on(small):
    """Whoever finds no room waits or is started again: neither a node nor the job is given up for it."""
    run = small.submit(
        two_nodes(small, STEPS, "recovery: {disk: {backoff: 500ms..1s}}\n", hold=STEPS - 1), "--on", "slurm"
    )
    small.until_step(run, 20)
    filler = fill(small)
    said = small.until("the word of it", lambda: "no space" in (now := small.status(run))["message"] and now)
    assert said["state"] in ("running", "regrouping"), said
    filler.unlink()
    small.let_go()
    status = small.wait(run)
    assert (status["state"], status["attempt"]) == ("succeeded", 1)
    assert avoided(RunDir(small.run_dir(run))) == []
    assert set(causes(small, run)) <= {"disk"}
    assert status["fingerprint"] == fingerprint_here(small, STEPS)
