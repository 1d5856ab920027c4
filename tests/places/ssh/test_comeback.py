"""Asking hosts that were lost to come back is a favour: it never costs anybody the status that they asked for."""

import os
import subprocess
import time
from types import SimpleNamespace

import pytest
from run_folder import RunFolder

from launcher.places.ssh.comeback.ask import ask_lost
from launcher.places.ssh.host import presence
from launcher.places.ssh.host.presence import HostIndex
from launcher.run.avoided import avoid
from launcher.run.durable import make_dir, write_record
from launcher.run.records import ClusterAnswer, Exclusion, NodeState
from launcher.states import Cause, State


def test_where_nothing_can_be_written_nobody_is_asked(tmp_path):
    """A link in the way stands for a disk that takes nothing."""
    folder = RunFolder(tmp_path / "train-7k3f").running(nodes=(NodeState(0, "10.0.0.1", "lost", host="gpu01"),))
    folder.run.asked_back.symlink_to(tmp_path / "nowhere")
    ask_lost(folder.run)
    assert folder.run.asked_back.is_symlink()


@pytest.mark.parametrize(
    ("state", "restarts", "asked"),
    [
        (State.RUNNING, {}, True),
        (State.REGROUPING, {Cause.NODE_LOST: 1}, True),
        (State.QUEUED, {Cause.NODE_LOST: 2}, True),
        (State.STARTING, {Cause.NODE_LOST: 2}, True),
        (State.QUEUED, {}, False),
        (State.FAILED, {Cause.NODE_LOST: 2}, False),
    ],
)
def test_hosts_are_asked_back_while_the_run_goes_on_and_while_it_waits_for_them(
    tmp_path, monkeypatch, state, restarts, asked
):
    """A leader waited for more hosts until it gave the run up, and nobody asked them; nor was one asked without which
    an attempt had been opened."""
    words = ("spare", "lost", "waiting", "up")
    nodes = tuple(NodeState(index, "10.0.0.1", word, host=f"gpu{index}") for index, word in enumerate(words))
    folder = RunFolder(tmp_path / "train-7k3f").state(state, restarts=restarts, nodes=nodes, updated_at=time.time())
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda argv, **_: started.append(argv))
    ask_lost(folder.run)
    assert [argv[-2:] for argv in started] == ([["gpu1", "gpu2"]] if asked else [])


def test_a_leader_that_writes_no_state_any_more_is_asked_back(tmp_path, monkeypatch):
    """Its supervisor was killed, and its coordinator ended later: no host was lost, by the last state that it wrote."""
    nodes = tuple(NodeState(index, "10.0.0.1", "up", host=f"gpu{index}") for index in range(3))
    folder = RunFolder(tmp_path / "train-7k3f").state(State.RUNNING, nodes=nodes, updated_at=time.time() - 60.0)
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda argv, **_: started.append(argv))
    ask_lost(folder.run)
    assert [argv[-2:] for argv in started] == [[str(folder.run.path), "gpu0"]]


def test_hosts_that_have_lost_only_their_supervisor_are_asked_back(tmp_path, monkeypatch):
    """Their agents are there, so that no node was lost."""
    nodes = tuple(NodeState(index, "10.0.0.1", "up", host=f"gpu{index}") for index in range(3))
    folder = RunFolder(tmp_path / "train-7k3f").attempt().state(State.RUNNING, nodes=nodes, updated_at=time.time())
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda argv, **_: started.append(argv))
    ask_lost(folder.run)
    assert not started
    now = time.time()
    avoid(folder.run, [Exclusion(host, "no answer for 5 s", 1, now, now + 60.0) for host in ("gpu2", "gpu9")])
    write_record(folder.run.attempt(1).seen, ClusterAnswer("running", "RUNNING", now, unsupervised="gpu0"))
    ask_lost(folder.run)
    assert [argv[-3:] for argv in started] == [[str(folder.run.path), "gpu0", "gpu2"]]


def test_on_one_disk_each_host_finds_its_own_place_again(tmp_path, monkeypatch):
    """By the name that it has itself."""
    attempt = RunFolder(tmp_path / "train-7k3f").run.attempt(1)
    make_dir(attempt.path)
    for index, name in enumerate(("gpu01", "gpu02/b")):
        monkeypatch.setattr(os, "uname", lambda name=name: SimpleNamespace(nodename=name))
        assert presence.taken(attempt) is None
        write_record(presence.host_index_file(attempt, apart=False), HostIndex(index, (), "python"))
    assert presence.taken(attempt).node == 1
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="gpu01"))
    assert presence.taken(attempt).node == 0
