"""Slots in memory that outlives its process: whoever was killed, and at whatever moment, what is read is whole."""

import os
import random
import signal
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.staying.slots import SlotFile

LIFE = "a0001.g0001"
SLOTS, SIZE = 2, 96


def content(step, size=SIZE):
    return bytes([step % 251]) * size


def read_all(path):
    """By step, what a successor finds."""
    found = SlotFile.found(path)
    return {step: bytes(found.read(step)) for step in found.steps()}


def instants(path, slots, step, size=SIZE):
    """Write that step, and give the file as it was before, after each store on the way there, and at the end."""
    seen = []

    def put(place):
        for at in range(0, size, 8):
            seen.append(path.read_bytes())
            place[at : at + 8] = content(step, size)[at : at + 8]
        seen.append(path.read_bytes())

    before = path.read_bytes()
    slots.write(step, size, put)
    return [before, *seen, path.read_bytes()]


@pytest.mark.parametrize("sizes", [(SIZE, SIZE, SIZE), (SIZE, SIZE, 40), (40, 40, SIZE)])
def test_cut_short_between_any_two_stores_a_slot_counts_for_nothing_and_the_other_does(tmp_path, sizes):
    path = tmp_path / "rank"
    slots = SlotFile.begin(path, LIFE, SLOTS, SIZE)
    for step, size in enumerate(sizes[:2], start=1):
        slots.copy(step, content(step, size))
    before, *torn, after = instants(path, slots, 3, sizes[2])
    for file, whole in ((before, (1, 2)), *((one, (2,)) for one in torn), (after, (2, 3))):
        path.write_bytes(file)
        assert read_all(path) == {step: content(step, sizes[step - 1]) for step in whole}


@settings(deadline=None)
@given(
    old=st.integers(0, 300),
    size=st.integers(0, SIZE),
    breaks=st.booleans(),
    stored=st.lists(st.booleans(), min_size=24, max_size=24),
)
def test_a_seal_that_was_broken_or_made_half_way_is_none(tmp_path_factory, old, size, breaks, stored):
    """Nothing says in which order the bytes of one store come to be there."""
    path = tmp_path_factory.getbasetemp() / "half"
    slots = SlotFile.begin(path, LIFE, SLOTS, SIZE)
    slots.copy(old, content(old))
    before, *torn, after = instants(path, slots, old + SLOTS, size)
    old_file, new_file = (before, torn[0]) if breaks else (torn[-1], after)
    head = [at for at in range(len(old_file)) if old_file[at] != new_file[at]]
    mixed = bytearray(old_file)
    for at, is_there in zip(head, stored, strict=False):
        if is_there:
            mixed[at] = new_file[at]
    path.write_bytes(mixed)
    whole = {bytes(before): {old: content(old)}, bytes(after): {old + SLOTS: content(old + SLOTS, size)}}
    assert read_all(path) == whole.get(bytes(mixed), {})


def test_killed_in_earnest_whatever_it_was_at(tmp_path):
    """One process after the other goes on where its predecessor was killed; a step that was sealed stays whole."""
    path, size, draw = tmp_path / "rank", 1 << 20, random.Random(7)
    SlotFile.begin(path, LIFE, SLOTS, size).copy(0, content(0, size))
    newest, torn = 0, 0
    for _ in range(30):
        writer = os.fork()
        if writer == 0:
            try:
                slots, step = SlotFile.found(path), newest
                while True:
                    step += 1
                    slots.copy(step, content(step, size))
            finally:
                os._exit(1)
        found, end = SlotFile.found(path), time.monotonic() + 60
        while max(found.steps(), default=0) < newest + 3 and time.monotonic() < end:
            pass
        time.sleep(draw.uniform(0, 0.002))  # nothing is waited for: so that each is killed at another moment
        os.kill(writer, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(writer, 0)[1]) == signal.SIGKILL
        there = read_all(path)
        assert there and all(data == content(step, size) for step, data in there.items())
        assert max(there) >= newest + 3
        newest, torn = max(there), torn + (len(there) < SLOTS)
    assert torn  # else this has shown nothing


def test_with_more_room_what_was_whole_is_there_and_what_was_not_is_not(tmp_path):
    path = tmp_path / "rank"
    slots = SlotFile.begin(path, LIFE, SLOTS, SIZE)
    slots.copy(1, content(1))

    def killed(place):
        place[:4] = b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        slots.write(2, SIZE, killed)
    slots.roomier(10 * SIZE)
    assert read_all(path) == {1: content(1)}
