"""A disk of real bytes that is full for a while: a small tmpfs where the runs of a project are."""

import os
import shutil
import subprocess
import time

import pytest
from lab import kill, read

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system")]

STEPPING = """
import json, os, pathlib, time
wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)
go_on = pathlib.Path({go_on!r})
step = 0
while step < 20 or not go_on.exists():
    step += 1
    wire.write(json.dumps({{"step": step}}) + "\\n")
    time.sleep(0.05)
"""


STATES_S = 5.0  # in each second one is written


class Disk:
    """The disk that holds the project's runs."""

    def __init__(self, folder):
        self.folder = folder
        self.filler, self.more = folder / "filler", folder / "more"

    def fill(self):
        with self.filler.open("wb", buffering=0) as file:
            while shutil.disk_usage(self.folder).free:
                file.write(bytes(4096))

    def use_up_its_files(self):
        """Use up the disk's inodes; existing files may still grow."""
        self.more.mkdir()
        for number in range(os.statvfs(self.folder).f_ffree):
            (self.more / str(number)).touch()

    def clear(self):
        self.filler.unlink(missing_ok=True)
        shutil.rmtree(self.more, ignore_errors=True)


@pytest.fixture
def disk(lab):
    folder = lab.project / ".launch"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=1000,mode=700", "tmpfs", folder], check=True)
    disk = Disk(folder)
    try:
        yield disk
    finally:
        disk.clear()
        lab.tidy()
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def go_on(lab):
    return lab.project.parent / "go_on"


def stepping(lab, go_on, *, ranks=1, more=""):
    lab.script("stepping.py", STEPPING.format(go_on=str(go_on)))
    return lab.spec(f"name: full\nrun: {{script: stepping.py}}\nresources: {{ranks_per_node: {ranks}}}\n{more}")


def until_said(lab, run):
    return lab.until("the word of it", lambda: "records wait" in (said := lab.status(run))["message"] and said)


def supervisor_pid(lab, run):
    return int(lab.run_dir(run).joinpath("attempts/0001/handle.json").read_bytes().split(b'"pid":')[1].split(b",")[0])


def test_a_run_goes_on_while_its_records_wait_for_room(lab, disk, go_on):
    run = lab.submit(stepping(lab, go_on))
    lab.until_step(run, 5)
    disk.fill()
    said = until_said(lab, run)
    assert said["state"] == "running"
    assert "no space is left on its disk" in said["message"]
    before = lab.read_state(run)["updated_at"]
    lab.until("a state that waits for room", lambda: time.time() - before > STATES_S)
    go_on.touch()
    lab.until("the end of its rank", lambda: not lab.children(lab.agent_pid(run, 0), b"stepping"))
    assert lab.status(run)["state"] == "running"  # how it ended is not on disk yet
    assert lab.read_state(run)["updated_at"] == before
    disk.clear()
    status = lab.wait(run)
    assert (status["state"], status["restarts"]["total"]) == ("succeeded", 0)
    (waited,) = lab.events(run, "disk")
    assert waited["text"].startswith("records had to wait for ")
    assert "no space left on device" in waited["text"]


@pytest.mark.daily
def test_ranks_are_started_again_once_there_is_room(lab, disk, go_on):
    run = lab.submit(stepping(lab, go_on, ranks=2, more="recovery: {disk: {backoff: 500ms..1s}}\n"))
    state = lab.until_step(run, 5)
    log = lab.run_dir(run) / "attempts/0001/node-00/agent.log"
    disk.use_up_its_files()
    until_said(lab, run)
    go_on.touch()
    assert kill(state["ranks"][0]["pid"])
    lab.until("two starts without room", lambda: log.read_text().count("node 0 could not start ranks") > 1)
    disk.clear()
    status = lab.wait(run)
    assert status["state"] == "succeeded"
    assert status["restarts"]["by_cause"]["killed"] == 1
    assert status["restarts"]["by_cause"]["disk"] >= 2
    assert {event["cause"] for event in lab.events(run, "failure")} == {"killed", "disk"}


def test_the_supervisor_waits_and_opens_the_next_attempt_once_there_is_room(lab, disk, go_on):
    run = lab.submit(stepping(lab, go_on))
    lab.until_step(run, 5)
    disk.fill()
    until_said(lab, run)
    go_on.touch()
    assert kill(lab.agent_pid(run, 0))
    lab.until("the end of the agent", lambda: not lab.children(supervisor_pid(lab, run), b"launcher.node"))
    said = until_said(lab, run)
    assert said["state"] == "running"  # its last word, and its supervisor lives
    assert read(supervisor_pid(lab, run), "cmdline")
    disk.clear()
    status = lab.wait(run)
    assert (status["state"], status["attempt"]) == ("succeeded", 2)
    assert status["restarts"]["by_cause"] == {"node_lost": 1}
    assert "no space left on device" in lab.run_dir(run).joinpath("attempts/0001/keeper.log").read_text()


def test_a_rank_that_finds_no_room_fails_for_the_disk(lab, disk):
    lab.script(
        "writes.py",
        """
import os, pathlib
big = pathlib.Path(os.environ["LAUNCH_RUN_DIR"], "big")
if os.environ["LAUNCH_GENERATION"] == "1":
    big.write_bytes(bytes(8 << 20))
big.unlink()
""",
    )
    run = lab.submit(lab.spec("name: writes\nrun: {script: writes.py}\nresources: {ranks_per_node: 1}\n"))
    status = lab.wait(run)
    assert (status["state"], status["restarts"]["by_cause"]) == ("succeeded", {"disk": 1})
    failure = lab.events(run, "failure")[0]
    assert (failure["cause"], failure["rank"]) == ("disk", 0)
    assert "No space left on device" in failure["text"]


def test_a_disk_that_stays_full_does_not_keep_a_run_from_being_cancelled(lab, disk, go_on):
    run = lab.submit(stepping(lab, go_on, more="recovery: {grace: 1s}\n"))
    lab.until_step(run, 5)
    disk.fill()
    until_said(lab, run)
    lab.launch("cancel", run, check=None)
    lab.until("the end of its processes", lambda: not lab.processes())
    disk.clear()
    lab.launch("cancel", run, check=None)
    assert lab.status(run)["state"] == "cancelled"
