"""Asking hosts that were lost to come back is a favour: it never costs anybody the status that they asked for."""

import os
from types import SimpleNamespace

from run_folder import RunFolder

from launcher.clusters.ssh.comeback.ask import ask_lost
from launcher.clusters.ssh.host import presence
from launcher.clusters.ssh.host.presence import Seat
from launcher.rundir.durable import make_dir, write_record
from launcher.rundir.records import NodeState


def test_where_nothing_can_be_written_nobody_is_asked(tmp_path):
    """A link in the way stands for a disk that takes nothing."""
    folder = RunFolder(tmp_path / "train-7k3f").running(nodes=(NodeState(0, "10.0.0.1", "lost", host="gpu01"),))
    folder.run.asked_back.symlink_to(tmp_path / "nowhere")
    ask_lost(folder.run)
    assert folder.run.asked_back.is_symlink()


def test_on_one_disk_each_host_finds_its_own_place_again(tmp_path, monkeypatch):
    """By the name that it has itself."""
    attempt = RunFolder(tmp_path / "train-7k3f").run.attempt(1)
    make_dir(attempt.path)
    for index, name in enumerate(("gpu01", "gpu02/b")):
        monkeypatch.setattr(os, "uname", lambda name=name: SimpleNamespace(nodename=name))
        assert presence.taken(attempt) is None
        write_record(presence.seat_of(attempt, apart=False), Seat(index, (), "python"))
    assert presence.taken(attempt).node == 1
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="gpu01"))
    assert presence.taken(attempt).node == 0
