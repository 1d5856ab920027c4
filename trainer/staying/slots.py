"""The newest few of what a process leaves behind for its successor, in a file in memory that outlives it.

A process may be killed at any moment, in the middle of a slot too. So a slot is written in this order: its seal is
broken, its content takes the place of what was there, and then it is sealed with the number of its step. What has no
seal counts for nothing. A killed process leaves in memory what it had written so far, in the order in which it wrote
it, and memory keeps that: the content itself needs no checksum, which would cost a step half of what the copying does.

They go round: the one of step 7 takes the place of that of step 7 - slots.

    header: life, slots, room of a slot    slot: step, length, seal, content    slot ...
"""

import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path

import xxhash

_HEADER = struct.Struct("<32sQQ")
_HEAD = struct.Struct("<QQQ")  # step, length, seal
_ALIGNED = 64  # so that what follows a head may be read as tensors where it lies


class SlotFile:
    """One process's. Only it writes, and its successor reads, and goes on writing."""

    def __init__(self, path: Path, life: str, memory: mmap.mmap, slots: int, room: int) -> None:
        self.path, self.life, self.room, self.slots = path, life, room, slots
        self._memory = memory

    @classmethod
    def begin(cls, path: Path, life: str, slots: int, room: int) -> "SlotFile":
        """A new one, in the place of what is there. Raises OSError."""
        begun = cls._draft(path, life, slots, room)
        os.rename(_beside(path), path)
        return begun

    @classmethod
    def _draft(cls, path: Path, life: str, slots: int, room: int) -> "SlotFile":
        """Beside the place of what is there."""
        draft = _beside(path)
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            room = -(-room // mmap.PAGESIZE) * mmap.PAGESIZE
            size = _place(slots, room)
            os.posix_fallocate(fd, 0, size)  # memory that is not there is found out here, and not by SIGBUS in a step
            memory = mmap.mmap(fd, size)
        except OSError:
            draft.unlink()
            raise
        finally:
            os.close(fd)
        _HEADER.pack_into(memory, 0, life.encode(), slots, room)
        return cls(path, life, memory, slots, room)

    @classmethod
    def found(cls, path: Path) -> "SlotFile | None":
        """That of the process whose place is taken; None where there is none."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            size = os.fstat(fd).st_size
            if size < _HEADER.size:
                return None
            memory = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        life, slots, room = _HEADER.unpack_from(memory)
        if not slots or size != _place(slots, room):
            return None
        return cls(path, life.rstrip(b"\0").decode("ascii", "replace"), memory, slots, room)

    def write(self, step: int, size: int, put: Callable[[memoryview], None]) -> None:
        """`put` fills so many bytes, which fit."""
        if size > self.room:
            raise ValueError(f"{self.path}: {size} bytes, where there is room for {self.room}")
        at = self._at(step)
        self._break_seal(at)
        put(memoryview(self._memory)[at + _ALIGNED : at + _ALIGNED + size])
        self._memory[at : at + _HEAD.size] = _HEAD.pack(step, size, _seal(step, size))

    def copy(self, step: int, content: bytes | memoryview) -> None:
        """These bytes, which fit."""

        def put(place: memoryview) -> None:
            place[:] = content

        self.write(step, len(content), put)

    def read(self, step: int) -> memoryview | None:
        """The content of that step where it lies, if it is whole."""
        at = self._at(step)
        noted, size, seal = _HEAD.unpack_from(self._memory, at)
        if noted != step or size > self.room or seal != _seal(step, size):
            return None
        return memoryview(self._memory)[at + _ALIGNED : at + _ALIGNED + size]

    def steps(self) -> tuple[int, ...]:
        """Those of which the content is whole."""
        noted = [_HEAD.unpack_from(self._memory, self._at(slot))[0] for slot in range(self.slots)]
        return tuple(sorted(step for step in set(noted) if self.read(step) is not None))

    def forget_after(self, step: int) -> None:
        """What is newer is of a past that did not happen."""
        for newer in self.steps():
            if newer > step:
                self._break_seal(self._at(newer))

    def roomier(self, room: int) -> "SlotFile":
        """With more room, in the place of this one, with all that is whole. Raises OSError."""
        larger = self._draft(self.path, self.life, self.slots, room)
        for step in self.steps():
            content = self.read(step)
            if content is not None:
                larger.copy(step, content)
        os.rename(_beside(self.path), self.path)
        return larger

    def _break_seal(self, at: int) -> None:
        self._memory[at : at + _HEAD.size] = bytes(_HEAD.size)

    def _at(self, step: int) -> int:
        return _place(step % self.slots, self.room)


def _place(slot: int, room: int) -> int:
    return _ALIGNED + slot * (_ALIGNED + room)


def _beside(path: Path) -> Path:
    """Where a file is made that is to take the place of another at once."""
    return path.with_name(f"{path.name}.new")


def _seal(step: int, size: int) -> int:
    """A checksum of the head alone, which may be cut short itself: half of one and half of another fit no seal."""
    return xxhash.xxh3_64_intdigest(struct.pack("<QQ", step, size))
