"""Send tensors from one rank to others: large ones without copies, small ones together.

On one node a rank reads them from the other's memory (process_vm_readv), twice as fast as over a connection. The system
may forbid it, as containers do; then OSError is raised, and they are sent.
"""

import ctypes
import errno
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.world import World

log = logging.getLogger("trainer")
_LARGE_BYTES = (
    1 << 20
)  # a tensor of so many is a message of its own; fewer in all are not worth the messages of reading
_AT_ONCE = 1024  # pieces in one call, as the system allows
_PIECE_BYTES = 1 << 30  # a call reads less than two of them
_PR_SET_PTRACER = 0x59616D61
_MARK_BYTES = 16


class _Piece(ctypes.Structure):
    """An address and a length, in the form of the system call's iovec."""

    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


@dataclass(frozen=True, slots=True)
class Places:
    """The addresses of some tensors in a process's memory.

    A process number may mean another process in another container, and a fork has the same addresses. Random bytes
    (`mark`) at the address `mark_at` identify the process, and are zeroed when the tensors may no longer be read.
    """

    pid: int
    mark: bytes  # what is in memory at `mark_at` as long as the tensors may be read
    mark_at: int
    tensors: tuple[int, ...]  # the address of each


@contextmanager
def readable(tensors: Sequence[Tensor], by: int) -> Iterator[Places]:
    """Permit the process with the pid `by` to read these contiguous CPU tensors until the context ends.

    That process reads them from this one's memory, so they must not change meanwhile. Yields the addresses that it
    needs for that; the caller has to send them to it.
    """
    mark = torch.frombuffer(bytearray(secrets.token_bytes(_MARK_BYTES)), dtype=torch.uint8)
    _permit_reading(by)
    try:
        addresses = tuple(one.data_ptr() for one in tensors)
        yield Places(os.getpid(), mark.numpy().tobytes(), mark.data_ptr(), addresses)
    finally:
        mark.zero_()  # a process that still reads finds out that they may be gone
        _permit_reading(0)


def read(places: Places, into: Sequence[Tensor], piece_bytes: int = _PIECE_BYTES) -> None:
    """Copy the tensors at `places` in another process into the tensors `into`, in pieces of at most `piece_bytes`.

    `places` has that process's pid and the tensors' addresses there, in the order of `into`. Raises OSError if the
    system forbids it, the process has ended, or its tensors may no longer be read; some of the tensors may have been
    read by then.
    """
    _check_mark(places)
    pieces = []
    for tensor, address in zip(into, places.tensors, strict=True):
        for at in range(0, tensor.nbytes, piece_bytes):
            pieces.append((tensor.data_ptr() + at, address + at, min(piece_bytes, tensor.nbytes - at)))
    _read(places.pid, pieces)
    _check_mark(places)


def _check_mark(places: Places) -> None:
    """Raise OSError unless the process `places.pid` has the random bytes `places.mark` at the address `places.mark_at`.

    Another process, to which the number belongs here, does not have them; and the tensors' owner zeroes them when the
    tensors may no longer be read.
    """
    mark = torch.empty(_MARK_BYTES, dtype=torch.uint8)
    _read(places.pid, [(mark.data_ptr(), places.mark_at, _MARK_BYTES)])
    if mark.numpy().tobytes() != places.mark:
        raise OSError(errno.ESRCH, f"process {places.pid} is a different one here, or no longer has the tensors")


def _read(pid: int, pieces: Sequence[tuple[int, int, int]]) -> None:
    """Copy pieces of the memory of the process `pid` into this one's, given as (address here, address there, size).

    Raises OSError if the system forbids it or the process has ended.
    """
    left = [*reversed(pieces)]
    while left:
        now = left[: -_AT_ONCE - 1 : -1]
        count = _system("process_vm_readv")(
            ctypes.c_int(pid), *_vector((to, size) for to, _, size in now), *_vector((at, size) for _, at, size in now),
            ctypes.c_ulong(0),
        )  # fmt: skip
        if count <= 0:
            code = ctypes.get_errno()
            raise OSError(code, f"the memory of process {pid} cannot be read: {os.strerror(code)}")
        while count:
            to, at, size = left.pop()
            if count < size:
                left.append((to + count, at + count, size - count))
            count -= min(count, size)


def _vector(pieces: Iterable[tuple[int, int]]) -> tuple[ctypes.Array[_Piece], ctypes.c_ulong]:
    """Return the pieces, given as (address, size), as an array of iovec for the system call, and its length."""
    made = [_Piece(*piece) for piece in pieces]
    return (_Piece * len(made))(*made), ctypes.c_ulong(len(made))


def _permit_reading(pid: int) -> None:
    """Allow process `pid` to read this one's memory, where Yama allows only parents to; 0 withdraws that.

    Errors are ignored.
    """
    with suppress(OSError):
        _system("prctl")(ctypes.c_int(_PR_SET_PTRACER), *map(ctypes.c_ulong, (pid, 0, 0, 0)))


def _system(name: str) -> Callable[..., int]:
    """Return a function of the C library by name. Raises OSError if there is no such function."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, name):
        raise OSError(errno.ENOSYS, f"this system has no {name}")
    function = library[name]
    function.restype = ctypes.c_ssize_t
    return function


def send(outgoing: Iterable[tuple[Sequence[int], Sequence[Tensor]]], world: World) -> None:
    """Send tensors to other ranks, all at once, and wait until they are sent; these ranks call `receive`.

    Each item of `outgoing` is (ranks, the tensors that each of these ranks gets). Tensors on a GPU are copied to the
    host first. Raises torch's RuntimeError if a rank is gone.
    """
    sent: list[tuple[dist.Work | None, Tensor]] = []
    for ranks, tensors in outgoing:
        values = [one.detach().cpu().contiguous() for one in tensors]
        far = [rank for rank in ranks if not (_may_read(values, rank, world) and _let_peer_read(values, rank, world))]
        if not far:
            continue
        small, messages = _by_size(values)
        if small:
            messages.append(torch.cat([bytes_of(one) for one in small]))
        sent += [
            (dist.isend(bytes_of(message), dst=rank, group=world.control), message)
            for message in messages
            for rank in far
        ]
    for one, _ in sent:
        _wait(one)


def receive(incoming: Mapping[int, Sequence[Tensor]], world: World) -> None:
    """Receive tensors from several ranks at once, which call `send`, and wait until all have come.

    `incoming` gives by sending rank the contiguous tensors to receive into, in the order in which it sends them. Raises
    torch's RuntimeError if a rank is gone.
    """
    coming: list[dist.Work | None] = []
    together: list[tuple[list[Tensor], Tensor]] = []
    for rank, given in incoming.items():
        tensors = [one.detach() for one in given]
        if _may_read(tensors, rank, world) and _read_from_peer(tensors, rank, world):
            continue
        small, messages = _by_size(tensors)
        if small:
            messages.append(torch.empty(sum(one.nbytes for one in small), dtype=torch.uint8))
            together.append((small, messages[-1]))
        coming += [dist.irecv(bytes_of(message), src=rank, group=world.control) for message in messages]
    for one in coming:
        _wait(one)
    for small, message in together:
        for tensor, part in zip(small, message.split([one.nbytes for one in small]), strict=True):
            bytes_of(tensor).copy_(part)


def _may_read(tensors: Sequence[Tensor], rank: int, world: World) -> bool:
    """Return whether the peer `rank` is on this node and the tensors have at least 1 MiB together.

    They are then read from the sender's memory. Sender and receiver get the same answer.
    """
    near = rank // world.local_size == world.rank // world.local_size
    return near and sum(one.nbytes for one in tensors) >= _LARGE_BYTES


def _let_peer_read(tensors: Sequence[Tensor], rank: int, world: World) -> bool:
    """Let rank `rank` read the tensors from this process's memory, and return whether it succeeded.

    That rank calls `_read_from_peer` meanwhile.
    """
    received: list[Any] = [None]
    dist.recv_object_list(received, src=rank, group=world.control)
    with readable(tensors, by=received[0]) as places:
        dist.send_object_list([places], dst=rank, group=world.control)
        dist.recv_object_list(received, src=rank, group=world.control)
    return bool(received[0])


def _read_from_peer(tensors: Sequence[Tensor], rank: int, world: World) -> bool:
    """Read the tensors from the memory of rank `rank`, which calls `_let_peer_read` and waits.

    Returns whether that succeeded.
    """
    dist.send_object_list([os.getpid()], dst=rank, group=world.control)
    received: list[Any] = [None]
    dist.recv_object_list(received, src=rank, group=world.control)
    try:
        read(received[0], tensors)
        done = True
    except OSError as error:
        log.info("rank %d sends its state over the network: %s", rank, error)
        done = False
    dist.send_object_list([done], dst=rank, group=world.control)
    return done


def bytes_of(tensor: Tensor) -> Tensor:
    """Return the bytes of a contiguous tensor as a flat tensor that shares its memory."""
    return tensor.view(-1).view(torch.uint8)


def _by_size(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return (the tensors of less than 1 MiB, the others); each of the others is sent in a message of its own."""
    small: list[Tensor] = []
    large: list[Tensor] = []
    for tensor in tensors:
        (large if tensor.nbytes >= _LARGE_BYTES else small).append(tensor)
    return small, large


def _wait(work: dist.Work | None) -> None:
    """Wait for the operation; do nothing for None, which means that this rank is not in the group."""
    if work is not None:
        work.wait()
