"""The records of thousands of ranks that end together reach the disk in a few writes."""

import os
import threading

import pytest
from run_folder import RunFolder

from launcher.run import durable
from launcher.run.durable import read_lines
from launcher.run.fence import raise_fence
from launcher.run.record_writer import RecordWriter
from launcher.run.records import Event, RankExit

MANY = 2500


@pytest.fixture
def slow_disk(monkeypatch):
    """A disk that takes nothing until it is set; it counts how often it is waited for."""
    ready, waits, fsync = threading.Event(), [], os.fsync

    def wait(fd):
        ready.wait(60.0)
        waits.append(fd)
        fsync(fd)

    monkeypatch.setattr(durable.os, "fsync", wait)
    yield ready, waits
    ready.set()


def test_many_ends_that_wait_for_a_disk_are_written_together_and_in_order(tmp_path, slow_disk):
    ready, waits = slow_disk
    ready.set()
    folder = RunFolder(tmp_path / "run").plan().attempt()
    raise_fence(folder.run, 1)
    ready.clear()
    before, failed = len(waits), []
    writer = RecordWriter(folder.run, folder.run.attempt(1), failed.append, 600.0)
    for rank in range(MANY):
        writer.write(RankExit(1, rank, 0, rank, 1000 + rank, code=1))
    for kind in ("regroup", "failure", "regroup", "training"):
        writer.write(Event(1.0, 1, kind, kind))
    ready.set()
    writer.close()
    assert failed == []
    assert [end.rank for end in read_lines(folder.run.attempt(1).exits, RankExit)] == [*range(MANY)]
    assert [one.kind for one in read_lines(folder.run.events, Event)][-4:] == [
        "regroup", "failure", "regroup", "training",
    ]  # fmt: skip
    assert writer.awaited_on_disk[0] == 1
    assert writer.awaited_on_disk[1] < folder.run.events.stat().st_size, "those after a failure are not part of it"
    assert len(waits) - before < 15
