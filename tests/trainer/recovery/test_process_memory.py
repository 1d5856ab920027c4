"""Tensors read out of the memory of another process."""

import ctypes
import os
import signal
from dataclasses import replace

import pytest
import torch

from trainer.recovery import sending
from trainer.recovery.sending import read, readable

SIZES = (0, 1, 4096, 5_000_001, *range(1, 3000))  # more than a call takes


def given():
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(256, (size,), dtype=torch.uint8, generator=draw) for size in SIZES]


@pytest.fixture
def other():
    """A process that has these, and where; it waits."""
    tensors = given()
    reports, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        with readable(tensors, by=os.getppid()) as places:
            os.write(told, b"%d %s %d" % (places.pid, places.mark.hex().encode(), places.mark_at))
            signal.pause()
    process, mark, mark_at = os.read(reports, 1000).split()
    addresses = tuple(one.data_ptr() for one in tensors)  # a fork has them where they were
    for one in tensors:
        one.zero_()  # here, and not there
    try:
        yield sending.Places(int(process), bytes.fromhex(mark.decode()), int(mark_at), addresses)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("piece_bytes", [1 << 30, 1 << 12])
def test_all_are_there_byte_by_byte(other, piece_bytes):
    into = [torch.empty(size, dtype=torch.uint8) for size in SIZES]
    read(other, into, piece_bytes)
    assert all(torch.equal(one, wanted) for one, wanted in zip(into, given(), strict=True))


def test_a_call_that_is_cut_short_is_followed_by_another_one(other, monkeypatch):
    whole = sending._system

    def short(name):
        def call(pid, mine, _mine, theirs, _theirs, flags):
            mine[0].size = theirs[0].size = max(1, mine[0].size // 2)
            one = ctypes.c_ulong(1)
            return whole(name)(pid, mine, one, theirs, one, flags)

        return call

    monkeypatch.setattr(sending, "_system", short)
    into = [torch.empty(size, dtype=torch.uint8) for size in SIZES[:20]]
    read(replace(other, tensors=other.tensors[:20]), into)
    assert all(torch.equal(one, wanted) for one, wanted in zip(into, given(), strict=False))


def test_a_process_of_the_number_that_is_another_one_is_not_believed(other):
    """As a fork of it is in another container: what it has at these addresses may be alike, or older."""
    with pytest.raises(OSError, match="is a different one here"):
        read(replace(other, mark=bytes(16)), [torch.empty(size, dtype=torch.uint8) for size in SIZES])


def test_what_is_given_up_while_it_is_read_is_no_more_believed(monkeypatch):
    tensor = torch.ones(100)
    with readable([tensor], by=1) as places:
        read(places, [into := torch.zeros(100)])
    assert torch.equal(into, tensor)
    whole, calls = sending._read, []

    def ends_meanwhile(pid, pieces):
        whole(pid, pieces)
        calls.append(pieces)
        if len(calls) == 2:
            context.__exit__(None, None, None)

    monkeypatch.setattr(sending, "_read", ends_meanwhile)
    context = readable([tensor], by=1)
    with pytest.raises(OSError, match="no longer has the tensors"):
        read(context.__enter__(), [into])


@pytest.mark.parametrize(
    "change",
    [{"pid": 2**22 + 1}, {"tensors": (8,) * len(SIZES)}],
    ids=["no such process", "nothing lies there"],
)
def test_what_cannot_be_read_is_an_error(other, change):
    with pytest.raises(OSError, match="cannot be read"):
        read(replace(other, **change), [torch.empty(size, dtype=torch.uint8) for size in SIZES])


def test_a_system_that_knows_no_such_thing_says_so(other, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    with readable([], by=1) as places:
        assert places.tensors == ()
    with pytest.raises(OSError, match="has no process_vm_readv"):
        read(other, [])
