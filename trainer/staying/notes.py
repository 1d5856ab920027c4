"""What is one rank's alone after each step, in a file in memory that outlives the process.

A rank notes it once its last forward pass of a step is through: before its gradients are out, and so before any rank
can have finished that step. It is what it will be after the step, for neither the backward pass nor the update draws
random numbers (that is compared). Three steps are kept, which is as far as ranks can be apart; each has a checksum, so
that a note that was being written when the rank was killed counts for nothing.

    header: life, room of a slot    slot: step, length, checksum, note    slot    slot
"""

import mmap
import os
import random
import struct
from pathlib import Path

import msgspec
import numpy as np
import torch
import xxhash
from torch import Tensor

SLOTS = 3
_HEADER = struct.Struct("<32sQ")
_HEAD = struct.Struct("<QQQ")  # step, length, checksum of both and of what follows
_SPARE = 1 << 15  # for what a step's losses take


class Drawn(msgspec.Struct, frozen=True, array_like=True):
    """The random generators of a process: Python's, NumPy's and torch's."""

    python: tuple[int, tuple[int, ...], float | None]
    numpy: tuple[str, bytes, int, int, float]
    torch: bytes


class Note(msgspec.Struct, frozen=True, array_like=True):
    """What is a rank's alone after a step."""

    step: int
    drawn: Drawn
    names: tuple[str, ...] = ()  # of its losses, in a step that is logged
    losses: list[float] = []  # of each micro-batch the sum and the count by name
    buffers: bytes = b""  # of the model, on the rank that all others follow in them


_decoder = msgspec.msgpack.Decoder(Note)


def drawn_now() -> Drawn:
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 - it is the global one that user code draws from
    state = (str(kind), np.asarray(keys, np.uint32).tobytes(), *rest)
    return Drawn(random.getstate(), state, torch_state())  # type: ignore[arg-type] # NumPy's stub knows less


def torch_state() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


def draw_on(drawn: Drawn) -> None:
    """Put the generators back."""
    kind, keys, *rest = drawn.numpy
    random.setstate(drawn.python)
    np.random.set_state((kind, np.frombuffer(keys, np.uint32), *rest))  # type: ignore[arg-type] # noqa: NPY002 - as above all
    torch.set_rng_state(torch.frombuffer(bytearray(drawn.torch), dtype=torch.uint8))


def room_for(buffers: int) -> int:
    """How much one note may take at most."""
    size = len(msgspec.msgpack.encode(Note(0, drawn_now()))) + buffers + _SPARE
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


class NoteFile:
    """One rank's. Only it writes, and its successor reads."""

    def __init__(self, path: Path, life: str, memory: mmap.mmap, room: int) -> None:
        self.path, self.life = path, life
        self._memory, self._room = memory, room

    @classmethod
    def begin(cls, path: Path, life: str, room: int) -> "NoteFile":
        """A new one, in the place of what is there. Raises OSError."""
        draft = path.with_suffix(".new")
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            size = _HEADER.size + SLOTS * (_HEAD.size + room)
            os.posix_fallocate(fd, 0, size)  # memory that is not there is found out here, and not by SIGBUS in a step
            memory = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        _HEADER.pack_into(memory, 0, life.encode(), room)
        os.rename(draft, path)
        return cls(path, life, memory, room)

    @classmethod
    def found(cls, path: Path) -> "NoteFile | None":
        """That of the rank whose place is taken; None where there is none."""
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
        life, room = _HEADER.unpack_from(memory)
        if size != _HEADER.size + SLOTS * (_HEAD.size + room):
            return None
        return cls(path, life.rstrip(b"\0").decode("ascii", "replace"), memory, room)

    def write(self, note: Note) -> bool:
        """False where it does not fit."""
        data = msgspec.msgpack.encode(note)
        if len(data) > self._room:
            return False
        at = self._at(note.step)
        head = _HEAD.pack(note.step, len(data), _checksum(note.step, data))
        self._memory[at + _HEAD.size : at + _HEAD.size + len(data)] = data
        self._memory[at : at + _HEAD.size] = head
        return True

    def read(self, step: int) -> Note | None:
        """The note of that step, if it is whole."""
        at = self._at(step)
        noted, size, checksum = _HEAD.unpack_from(self._memory, at)
        if noted != step or size > self._room:
            return None
        data = self._memory[at + _HEAD.size : at + _HEAD.size + size]
        if checksum != _checksum(step, data):
            return None
        note = _decoder.decode(data)
        return note if note.step == step else None

    def steps(self) -> tuple[int, ...]:
        """Those of which the note is whole."""
        noted = [_HEAD.unpack_from(self._memory, self._at(slot))[0] for slot in range(SLOTS)]
        return tuple(sorted(step for step in set(noted) if self.read(step) is not None))

    def close(self) -> None:
        self._memory.close()

    def _at(self, step: int) -> int:
        return _HEADER.size + step % SLOTS * (_HEAD.size + self._room)


def _checksum(step: int, data: bytes) -> int:
    return xxhash.xxh3_64_intdigest(data, seed=step & (1 << 63) - 1)


def bytes_of(tensors: list[Tensor]) -> bytes:
    """All of them in a row."""
    if not tensors:
        return b""
    flat = torch.cat([one.detach().contiguous().reshape(-1).view(torch.uint8) for one in tensors])
    return flat.cpu().numpy().tobytes()


@torch.no_grad()
def put_bytes(data: bytes, tensors: list[Tensor]) -> None:
    """What `bytes_of` gave, into tensors of the same shapes."""
    if not tensors:
        return
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    for tensor, part in zip(tensors, flat.split([one.nbytes for one in tensors]), strict=True):
        tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))
