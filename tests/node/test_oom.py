"""Kernel evidence for out of memory."""

from launcher.node.ranks.reports.oom import OomCounter


def test_growth_counts_once(tmp_path):
    events = tmp_path / "memory.events"
    events.write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 0\n")
    counter = OomCounter([events, tmp_path / "absent"])
    assert not counter.grew()
    events.write_text("low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\n")
    assert counter.grew()
    assert not counter.grew()


def test_without_cgroup_files_there_is_no_evidence(tmp_path):
    assert not OomCounter([tmp_path / "absent"]).grew()
