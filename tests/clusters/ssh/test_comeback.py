"""Asking hosts that were lost to come back is a favour: it never costs anybody the status that they asked for."""

from run_folder import RunFolder

from launcher.clusters.ssh.comeback.ask import ask_lost
from launcher.rundir.records import NodeState


def test_where_nothing_can_be_written_nobody_is_asked(tmp_path):
    """A link in the way stands for a disk that takes nothing."""
    folder = RunFolder(tmp_path / "train-7k3f").running(nodes=(NodeState(0, "10.0.0.1", "lost", host="gpu01"),))
    folder.run.asked_back.symlink_to(tmp_path / "nowhere")
    ask_lost(folder.run)
    assert folder.run.asked_back.is_symlink()
