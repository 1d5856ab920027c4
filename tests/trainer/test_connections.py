"""Ranks that wait for each other leave at once when one of them cuts its connections."""

import contextlib
import datetime as dt
import os
import signal
import socket
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, world_environment

from launcher.node.ranks.ports import HeldPort
from trainer.connections import Connections, group_connections
from trainer.world import _own_store, cpu_group, join


def waits(pid):
    """Return whether the process's first thread sleeps."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def cut_while_another_waits(folder):
    os.environ["LAUNCH_CONTROL"] = "/there"
    world = join()
    group = cpu_group()
    dist.barrier(world.control)
    if world.rank == 0:
        until = time.monotonic() + 60
        while not ((found := [*folder.iterdir()]) and waits(found[0].name)):
            assert time.monotonic() < until
            time.sleep(0.002)
        group_connections.cut()
    else:
        (folder / str(os.getpid())).touch()
    said = []
    for each in (None, world.control, group):
        try:
            dist.all_reduce(torch.ones(3), group=each)
            said.append("")
        except RuntimeError as error:
            said.append(str(error))
    return said


def test_cut_connections_end_every_operation_of_every_group(tmp_path):
    for said in Ranks(cut_while_another_waits, 2, tmp_path, stay=True).results():
        assert all("gloo" in one for one in said), said


def not_under_launch():
    os.environ.pop("LAUNCH_CONTROL", None)
    join()
    group_connections.cut()
    total = torch.ones(1)
    dist.all_reduce(total)
    return float(total)


def test_without_launch_nothing_is_noted_and_nothing_cut():
    assert Ranks(not_under_launch, 2, stay=True).results() == [2.0, 2.0]


@contextmanager
def _held():
    port = HeldPort("127.0.0.1")
    yield port
    port.release()


def _leaves(port):
    """Be a rank that has come and leaves before it sends anything."""
    listener = socket.create_server(("127.0.0.1", port))

    def serve():
        listener.accept()[0].close()
        listener.close()

    threading.Thread(target=serve, daemon=True).start()


@pytest.mark.parametrize("first_rank", ["is there", "is not there", "has left"])
def test_who_meets_others_gives_up_when_there_is_another_word(monkeypatch, first_rank):
    """Rank 1 of two, whose first rank serves the store and comes no further, or has not come at all, or was there."""
    with _held() as port:
        for name, value in (world_environment(1, 2, port.number) | {"LAUNCH_JOINS": "1"}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("LAUNCH_CONTROL", "/there")
        words, end = os.pipe()
        store = None
        if first_rank == "is there":
            store = _own_store("127.0.0.1", port.number, 2, dt.timedelta(seconds=100))
        if first_rank == "has left":
            _leaves(port.number)
        threading.Timer(0.3, os.write, (end, b"a word")).start()
        began = time.monotonic()
        with pytest.raises(dist.DistError), group_connections.giving_up_on(words):
            join()
        assert time.monotonic() - began < 60  # it would be 120
        assert not dist.is_initialized()
        del store
    group_connections.check()


def test_at_first_only_reading_ends_so_that_what_is_being_sent_is(monkeypatch):
    """gloo never tells of a message that it could not send."""
    monkeypatch.setenv("LAUNCH_CONTROL", "/there")
    made, (word, end) = Connections(again_ms=60_000), os.pipe()
    with made.watching(), socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    watch = made.cut_on(word)
    os.write(end, b"a word")
    assert ours.recv(1) == b""
    ours.sendall(b"what was being sent")
    watch.close()
    made.cut()
    assert theirs.recv(100) == b"what was being sent"
    with pytest.raises(BrokenPipeError):
        ours.sendall(b"more")
    for one in (ours, theirs):
        one.close()


class LastWords(dist.Store):
    """A rank that is killed after it has sent its address and before it receives the others'."""

    def __init__(self, store):
        super().__init__()
        self._store = store

    def set(self, key, value):
        self._store.set(key, value)

    def wait(self, *_):
        os.kill(os.getpid(), signal.SIGKILL)


def waiting_for_a_connection(folder):
    """Return whether the rank was waiting for a connection when the message came."""
    os.environ["LAUNCH_CONTROL"] = "/there"
    for attempt in range(40):
        word, end = os.pipe()
        met, told = folder / str(attempt), threading.Event()
        if os.fork() == 0:
            dist.init_process_group("gloo", store=LastWords(dist.FileStore(str(met), 2)), rank=1, world_size=2)
        os.wait()

        def tell(end=end, told=told):
            told.set()
            os.write(end, b"a word")

        timer = threading.Timer(0.5, tell)
        timer.start()
        with contextlib.suppress(RuntimeError), group_connections.giving_up_on(word), group_connections.watching():
            dist.init_process_group("gloo", store=dist.FileStore(str(met), 2), rank=0, world_size=2)
        waited = told.is_set()
        timer.cancel()
        timer.join()
        if dist.is_initialized():
            dist.destroy_process_group()
        if waited:
            return True
    return False


def test_who_listens_for_a_rank_that_was_killed_leaves_at_the_word(tmp_path):
    """Else it would be ended, as what waits in torch for what was cut."""
    assert Ranks(partial(waiting_for_a_connection, tmp_path), 1, stay=True).results() == [True]


class GroupOfGpus:
    """Whose abort takes a moment."""

    def __init__(self):
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.aborted = 0

    def abort(self):
        self.begun.set()
        assert self.may_end.wait(60)
        self.aborted += 1


def test_a_group_of_gpus_is_aborted_once_and_everybody_waits_for_it(monkeypatch):
    """By the thread that heard launch's word, while the program leaves the step by itself."""
    monkeypatch.setenv("LAUNCH_CONTROL", "/there")
    group, connections, seen = GroupOfGpus(), Connections(), []
    connections.abort_with_others(group)
    hears = threading.Thread(target=connections.cut)
    hears.start()
    assert group.begun.wait(60)
    leaves = threading.Thread(target=lambda: (connections.cut(), seen.append(group.aborted)))
    leaves.start()
    group.may_end.set()
    hears.join()
    leaves.join()
    assert (seen, group.aborted) == ([1], 1)


def test_a_group_of_gpus_that_is_not_under_launch_is_left_alone(monkeypatch):
    monkeypatch.delenv("LAUNCH_CONTROL", raising=False)
    connections, group = Connections(), GroupOfGpus()
    connections.abort_with_others(group)
    connections.cut()
    assert not group.begun.is_set()


def _ask_for_a_minute(connections):
    began = time.monotonic()
    while time.monotonic() < began + 60:
        connections.check_arrived(torch.device("cpu"))


def test_what_was_cut_off_is_not_relied_on():
    """A GPU says nothing of it: its numbers only mean nothing."""
    connections = Connections()
    words, end = os.pipe()
    connections.check_arrived(torch.device("cpu"))
    watch = connections.cut_on(words)
    os.write(end, b"a word")
    with pytest.raises(dist.DistNetworkError, match="cut off"):
        _ask_for_a_minute(connections)
    watch.close()
    connections.check_arrived(torch.device("cpu"))
    os.close(words)
    os.close(end)
