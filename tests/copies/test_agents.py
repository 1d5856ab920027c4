"""Real agents, each with a run directory of its own: what a lost disk costs."""

import hashlib
import os
import shutil
import signal
from pathlib import Path

import pytest
from replication_lab import held, names
from separate_hosts import Hosts

from launcher.spec.model import CheckpointOptions
from tests.waits import until
from trainer.checkpoint_files.layout import data_name, folder_name

pytestmark = pytest.mark.nightly

TRAINING = Path(__file__).parents[1] / "local" / "scripts" / "lessons.py"
SCRIPT = Path(__file__).parents[1] / "node" / "scripts" / "project" / "apart.py"


@pytest.fixture
def hosts(tmp_path):
    made = []

    def make(*how, script=SCRIPT, hold=None, **args):
        root = tmp_path / f"run-{len(made)}"
        made.append(Hosts(root, script, *how, hold=root / "held", **args))
        if hold is not None:
            made[-1].hold(hold)
        return made[-1]

    yield make
    for one in made:
        one.tidy()


def fingerprint(steps, world=2):
    chains = [f"start {rank}" for rank in range(world)]
    for step in range(1, steps + 1):
        chains = [hashlib.sha256(f"{chain} {step}".encode()).hexdigest() for chain in chains]
    return hashlib.sha256(" ".join(chains).encode()).hexdigest()


@pytest.mark.daily
def test_every_commit_has_a_second_copy_on_the_next_node(hosts):
    lab = hosts(2, steps=60, pause=0.03, hold=59)  # at the end nothing is waited for but the copy of the newest
    lab.start(0, 1)
    until("a safe checkpoint", lambda: (lab.state().get("safe_checkpoint") or 0) >= 50)
    lab.let_go()
    assert lab.end() == {0: 0, 1: 0}
    assert lab.state()["fingerprint"] == fingerprint(60)
    for node in (0, 1):
        assert held(lab.checkpoints(node), 50) == names(0, 1)
    assert lab.events("copy_failed") == []


def test_the_last_commit_has_its_second_copy_before_the_run_is_over(hosts):
    lab = hosts(2, checkpoint=CheckpointOptions(copy_limit_bytes=1_000_000), steps=10, pause=0, size=5_000_000)
    lab.start(0, 1)
    told = until("word of the copies", lambda: "gets its copies" in (told := lab.state()).get("message", "") and told)
    assert told["state"] == "running"
    assert lab.end() == {0: 0, 1: 0}
    assert lab.state()["safe_checkpoint"] == 10
    for node in (0, 1):
        assert held(lab.checkpoints(node), 10) == names(0, 1)


def test_a_rank_that_is_killed_finds_all_at_home(hosts):
    lab = hosts(2, steps=100, pause=0.03, hold=99)
    lab.start(0, 1)
    until("a safe checkpoint", lambda: (lab.state().get("safe_checkpoint") or 0) >= 20)
    os.kill(lab.rank_pid(1), signal.SIGKILL)
    lab.let_go()
    assert lab.end() == {0: 0, 1: 0}
    assert lab.state()["fingerprint"] == fingerprint(100)
    assert lab.began_at(0, 2) == lab.began_at(1, 2) >= 20


def test_a_damaged_file_on_the_only_checkpoint_of_a_disk_is_brought_from_its_copy(hosts):
    """The ranks had no other that all of them had, and began anew beside a checkpoint that was whole on two disks."""
    lab = hosts(2, steps=60, pause=0.02, hold=25)
    lab.start(0, 1)
    until("a safe checkpoint", lambda: lab.state().get("safe_checkpoint") == 20)
    shutil.rmtree(lab.checkpoints(1) / folder_name(10))
    with (lab.checkpoints(1) / folder_name(20) / data_name(1)).open("r+b") as file:
        file.write(b"?")
    os.kill(lab.rank_pid(1), signal.SIGKILL)
    lab.let_go()
    assert lab.end() == {0: 0, 1: 0}
    assert "no checkpoint is sound on all disks" in lab.rank_log(1, 2)
    assert lab.began_at(0, 3) == lab.began_at(1, 3) == 20
    assert lab.state()["fingerprint"] == fingerprint(60)


@pytest.mark.daily
def test_a_disk_that_is_lost_for_good_costs_nothing_that_was_safe(hosts):
    lab = hosts(2, 1, steps=150, pause=0.03, hold=149)
    lab.start(0, 1, 2)
    safe = until("a safe checkpoint", lambda: lab.state().get("safe_checkpoint"))
    lab.lose(1)
    lab.let_go()
    assert lab.end()[0] == 0
    assert lab.state()["fingerprint"] == fingerprint(150)
    assert lab.state()["restarts"] == {"node_lost": 1}
    starts = [lab.began_at(node, 2) for node in (0, 2)]
    assert starts[0] == starts[1] >= safe
    fetched = [event for event in lab.events("checkpoint_fetched") if event["node"] == 2]
    assert f"of step {starts[0]}" in fetched[0]["text"]
    assert lab.state()["safe_checkpoint"] >= 140, "copies go on with the spare"


def test_a_commit_without_copies_is_passed_over_while_its_files_may_come_back(hosts):
    lab = hosts(2, 1, lease_s=25.0, steps=150, pause=0.03, hold=15)  # in which ten steps are made, and one is saved
    lab.start(0, 1, 2)
    safe = until("a safe checkpoint", lambda: lab.state().get("safe_checkpoint"))
    lab.kill(1, signal.SIGSTOP)  # its rank goes on, but nothing is copied any more
    lab.hold(25)
    lost = until("a commit that has no copies", lambda: newest_alone(lab))
    lab.lose(1)
    lab.let_go()
    assert lab.end()[0] == 0
    assert lab.state()["fingerprint"] == fingerprint(150)
    assert lab.events("checkpoint_set_aside") == []
    (passed_over,) = lab.events("checkpoint_passed_over")
    assert f"of step {lost}" in passed_over["text"]
    assert safe <= lab.began_at(0, 2) < lost


@pytest.mark.timeout(400)
def test_an_agent_frozen_for_longer_than_its_lease_does_not_cost_what_only_its_disk_has(hosts):
    lab = hosts(2, 1, checkpoint=CheckpointOptions(copy_limit_bytes=4_000), steps=150, hold=44)
    lab.start(0, 1, 2)
    until("a checkpoint", lambda: (lab.state().get("checkpoint") or 0) >= 40)
    lab.kill(1, signal.SIGSTOP)
    lab.let_go()
    until("word of what it waits for", lambda: "the run waits for node 1" in lab.state()["message"])
    assert "no checkpoint is whole: rank-00001.data of step" in lab.state()["message"]
    assert lab.state()["checkpoint"] >= 40
    lab.kill(1, signal.SIGCONT)
    lab.come_back(1)
    assert lab.end(bound_s=200)[0] == 0  # at this pace a copy takes 25 s
    assert lab.state()["restarts"] == {"node_lost": 1}
    assert lab.state()["fingerprint"] == fingerprint(150)
    assert lab.began_at(0, 3) >= 40


def test_a_host_that_does_not_come_back_ends_the_run_and_nothing_begins_anew(hosts):
    checkpoint = CheckpointOptions(copy_limit_bytes=1_000)
    lab = hosts(2, 1, checkpoint=checkpoint, gone_after_s=3.0, steps=150, pause=0.03, hold=149)
    lab.start(0, 1, 2)
    until("a checkpoint", lambda: (lab.state().get("checkpoint") or 0) >= 20)
    lab.lose(1)
    assert lab.end()[0] == 24
    state = lab.state()
    assert (state["state"], state["cause"], state["exit_code"]) == ("failed", "no_checkpoint", 24)
    assert "bring back node 1, then `launch resume" in state["message"]
    assert not list((lab.run_dir(0) / "logs").glob("a0001.g0002/*"))


def test_a_training_that_loses_a_disk_ends_as_if_it_had_been_left_alone(hosts):
    checkpoint = CheckpointOptions(every_steps=5, keep=2)
    alone = hosts(2, script=TRAINING, checkpoint=checkpoint, epochs=3)
    alone.start(0, 1)
    assert alone.end(bound_s=250) == {0: 0, 1: 0}
    lab = hosts(2, 1, script=TRAINING, checkpoint=checkpoint, epochs=3, pause=0.1, hold=23)
    lab.start(0, 1, 2)
    until("a safe checkpoint", lambda: lab.state().get("safe_checkpoint"))
    lab.lose(1)
    lab.let_go()
    assert lab.end(bound_s=250)[0] == 0
    assert lab.state()["restarts"] == {"node_lost": 1}
    assert lab.state()["fingerprint"] == alone.state()["fingerprint"]
    assert held(lab.checkpoints(2), 20) == names(0, 1)


def test_copies_slower_than_the_saves_that_are_kept_bound_what_a_lost_disk_costs(hosts):
    """By the time that a copy is done all that are kept are newer."""
    checkpoint = CheckpointOptions(every_steps=2, keep=2, copy_limit_bytes=8_000)
    lab = hosts(2, 1, script=TRAINING, checkpoint=checkpoint, epochs=12, pause=0.1, hold=95)
    lab.start(0, 1, 2)
    until("a safe checkpoint", lambda: lab.state().get("safe_checkpoint"))
    before = until("copies that are behind", lambda: behind(lab.state(), checkpoint))
    lab.lose(1)
    until("the next generation", lambda: lab.state()["generation"] == 2 and lab.state()["state"] == "running")
    (fetched,) = [event for event in lab.events("checkpoint_fetched") if event["node"] == 2]
    assert int(fetched["text"].rpartition("step ")[2].split()[0]) >= before["safe_checkpoint"]
    lab.let_go()
    assert lab.end()[0] == 0


def test_with_a_copy_lag_saves_wait_for_copies_that_are_further_behind(hosts):
    checkpoint = CheckpointOptions(every_steps=2, keep=2, copy_limit_bytes=8_000, copy_lag_steps=4)
    lab = hosts(2, script=TRAINING, checkpoint=checkpoint, epochs=12, pause=0.1, hold=95)
    lab.start(0, 1)
    seen = []

    def saved_enough():
        state = lab.state()
        seen.append((state.get("checkpoint") or 0) - (state.get("safe_checkpoint") or 0))
        return (state.get("checkpoint") or 0) >= 24

    until("twelve saves", saved_enough)
    assert 4 <= max(seen) <= 8, "copies that take no time were not waited for; word of one may come a save late"


def behind(state, checkpoint):
    """The state, where what a disk holds would have been pruned by number alone."""
    kept = checkpoint.every_steps * checkpoint.keep
    return state if (state["checkpoint"] or 0) - (state["safe_checkpoint"] or 0) > kept else None


def newest_alone(lab):
    """The newest step on node 0, if nothing but its own rank's file is there."""
    found = {step: held(lab.checkpoints(0), step) for step in range(10, 151, 10)}
    newest = max((step for step, present in found.items() if present), default=None)
    return newest if newest is not None and found[newest] == names(0) else None
