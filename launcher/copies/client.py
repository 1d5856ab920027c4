"""Send requests to another agent's replica server, which serves the checkpoint files of its node. Each request raises
WireError, and its subclass Unwilling if the server refuses. The members of a generation (a set of ranks that train
together) are the nodes with those ranks; the first has rank 0.
"""

import asyncio
import functools
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

import msgspec

from launcher.copies import protocol
from launcher.copies.bulk import Heard, Throttle, receive, receive_all, send_file
from launcher.copies.files import ReplicaFiles
from launcher.copies.link import ReplicaLink, Unwilling
from launcher.decoding import converted, decoder_of
from launcher.run.durable import NOT_JSON
from launcher.wire.frames import WireError
from trainer.checkpoint_files.layout import MANIFEST
from trainer.checkpoint_files.manifest import FileEntry, Manifest, decode
from trainer.checkpoint_files.partial import Held, digest_of
from trainer.errors import CheckpointDamaged

_ON_DISK_S = 120.0  # from the last byte to the answer that it is durable
_LAST_ANSWER_S = 1.0

T = TypeVar("T")


class DiskFailed(Exception):
    """Raised when this node's own disk refuses to store what was fetched."""


async def inventory(link: ReplicaLink) -> list[Held]:
    """Return the peer's list of the checkpoints on its disk, committed ones and drafts. Raise WireError if an entry is
    malformed.
    """
    listed = await _ask_for(link, protocol.List(), list[Held])
    try:  # others receive it from the caller
        converted([(one.kind, one.step, one.digest) for one in listed], list[protocol.Save])
    except msgspec.ValidationError as error:
        raise WireError(f"it has checkpoints that cannot be: {error}") from error
    return listed


async def decision(link: ReplicaLink, generation: int) -> protocol.LoadDecision:
    """Wait until the generation's first member (the node of rank 0) has decided which checkpoint is loaded, and return
    the decision. `link` leads to that member. Raise WireError if no node has the manifest of the chosen one.
    """
    decided = await _ask_for(link, protocol.Decide(generation), protocol.LoadDecision)
    if any(choice.save is not None and not choice.with_manifest for choice in (decided.load, decided.best)):
        raise WireError("it chose a checkpoint that no node has")
    return decided


async def arrive(link: ReplicaLink, generation: int, node: int) -> None:
    """Report to the first member (the node of rank 0) that node `node` has all files of the checkpoint, and return once
    all members have theirs.
    """
    await link.send(protocol.Arrived(generation, node))
    await link.expect(protocol.Fine)


async def manifest(link: ReplicaLink, save: protocol.Save) -> tuple[bytes, Manifest]:
    """Return (the manifest's bytes, its decoded content) of a checkpoint that the peer has committed; raise WireError
    if the peer has another one of that name, or a damaged one.
    """
    data = await link.take(protocol.Get(save, MANIFEST), _at_most(protocol.MOST_MANIFEST_BYTES), receive_all)
    if digest_of(data) != save.digest:
        raise WireError(f"{save}: the peer has another manifest")
    try:
        manifest = await asyncio.to_thread(decode, data)
    except CheckpointDamaged as error:
        raise WireError(f"{save}: {error}") from error
    if manifest.step != save.step:
        raise WireError(f"{save}: the peer's manifest is of step {manifest.step}")
    return data, manifest


async def fetch(
    link: ReplicaLink, files: ReplicaFiles, whole: bytes, get: protocol.Get, file: FileEntry, heard: Heard
) -> None:
    """Fetch into `files` the checkpoint's file that `get` asks for, and compare it with `file`, its entry in the
    checkpoint's manifest; `whole` is that manifest as bytes. `heard` is called with the size of each piece.

    Raise CheckpointDamaged if the peer's file is damaged, and DiskFailed if this node's disk refuses it.
    """

    def keep(peer: socket.socket, size: int) -> None:
        """Write the file as it arrives."""
        try:
            files.receive(get.save, whole, file.name, receive(peer, size, heard))
        except OSError as error:
            raise DiskFailed(str(error)) from error

    await link.take(get, lambda size: size == file.size, keep)


async def report_damaged(link: ReplicaLink, get: protocol.Get) -> None:
    """Ask the peer to check its copy of the file that `get` asked for, which arrived here damaged; return once it has
    checked.
    """
    await link.send(protocol.Doubt(get.save, get.name))
    await link.expect(protocol.Fine)


async def copy(link: ReplicaLink, files: ReplicaFiles, put: protocol.Put, pace: Throttle) -> None:
    """Offer the peer the file that `put` describes, and send it from `files`, at the pace of the throttle, unless the
    peer has it already. On return the file is on the peer's disk.

    Raise SaveGone if the file is not in `files`, TimeoutError if the peer does not answer the offer, and WireError if
    the file has another size here or the connection breaks.
    """
    size = await asyncio.to_thread(files.size, put.save, put.name)
    if size != put.size:
        raise WireError(f"{put.name} has {size} bytes here, not {put.size}")
    await link.send(put)
    async with asyncio.timeout(_ON_DISK_S):  # a peer without power never answers
        wanted = isinstance(await link.expect(protocol.Go, protocol.InPlace), protocol.Go)
    if not wanted:
        return
    enough = threading.Event()
    answer = asyncio.create_task(link.expect(protocol.Fine))
    answer.add_done_callback(lambda _: enough.set())  # a refusal may come before the last byte

    def send(peer: socket.socket) -> None:
        """Send the file until the peer wants no more."""
        with files.open(put.save, put.name) as file:
            send_file(peer, file, size, pace, enough.is_set)

    try:
        await link.in_thread(send)
    except OSError as error:
        await asyncio.wait([answer], timeout=_LAST_ANSWER_S)
        if not answer.done() or not isinstance(answer.exception(), Unwilling):
            raise WireError(f"{put.name}: the peer was cut off: {error}") from error
    else:
        await asyncio.wait([answer], timeout=_ON_DISK_S)
    finally:
        answer.cancel()
    if not answer.done():
        raise WireError(f"the peer did not say within {_ON_DISK_S:g} s that it has {put.name} on its disk")
    answer.result()


async def _ask_for(link: ReplicaLink, ask: msgspec.Struct, kind: type[T]) -> T:
    """Send the request `ask` and return its answer, decoded as `kind`; raise WireError if it cannot be decoded."""
    data = await link.take(ask, _at_most(protocol.MOST_LISTED_BYTES), receive_all)
    try:
        return decoder_of(kind).decode(data)
    except NOT_JSON as error:
        raise WireError(f"an answer that is none: {error}") from error


def _at_most(most: int) -> Callable[[int], bool]:
    """Return a function that tells whether a size is at most `most`."""
    return functools.partial(_within, most)


def _within(most: int, size: int) -> bool:
    """Return whether the size is at most `most`."""
    return size <= most
