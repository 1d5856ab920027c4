"""A disk that takes its time: nobody's heartbeat waits for it, and it is told."""

import os
import threading

import pytest
from run_folder import RunFolder

from launcher.node.ranks.reports.logfile import LogFile, WriteBehind
from launcher.run.durable import read_lines
from launcher.run.fence import raise_fence
from launcher.run.layout import times_of
from launcher.run.record_writer import RecordWriter
from launcher.run.records import Event

BOUND_S = 20.0


def test_a_look_at_a_log_does_not_wait_for_the_disk_that_notes_when_it_grew(tmp_path):
    """Heartbeats take such a look along. A FIFO that nobody reads is opened by nobody: a disk that hangs."""
    log = tmp_path / "rank.log"
    os.mkfifo(times_of(log))
    log.write_bytes(b"a line\n")
    behind, looks = WriteBehind(), []
    file = LogFile(log, behind)
    looking = threading.Thread(target=lambda: looks.extend([file.grew(), file.grew()]), daemon=True)
    looking.start()
    looking.join(BOUND_S)
    assert looks == [True, False]
    with times_of(log).open() as reader:
        behind.close()
        assert reader.readline().split()[1] == "7"


@pytest.mark.parametrize(("lease_s", "told"), [(0.0, 1), (600.0, 0)])
def test_a_disk_slower_than_the_lease_is_told_once(tmp_path, lease_s, told):
    folder = RunFolder(tmp_path / "run").plan().attempt()
    raise_fence(folder.run, 1)
    failed = []
    writer = RecordWriter(folder.run, folder.run.attempt(1), failed.append, lease_s)
    for number in range(3):
        writer.write(Event(float(number), 1, "training", "a line"))
    writer.close()
    events = read_lines(folder.run.events, Event)
    assert [one.kind for one in events].count("training") == 3 and failed == []
    said = [one.text for one in events if one.kind == "disk"]
    assert len(said) == told and all("longer than the lease" in one for one in said)
