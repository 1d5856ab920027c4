"""A node's replica server: it lists, sends and receives files of checkpoints, for agents of the same attempt only. The
server of the first member (the node of a generation's rank 0) passes on the decision which checkpoint all nodes load,
and lets them start together.

If each node chose by itself, two that see different nodes might choose two checkpoints, and their ranks would have none
in common.
"""

import asyncio
import socket
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from launcher.copies import protocol
from launcher.copies.bulk import STALL_S, Throttle, drain, receive, send_bytes, send_file
from launcher.copies.files import ReplicaFiles, SaveGone, entry
from launcher.copies.link import ReplicaLink
from launcher.copies.protocol import LoadDecision
from launcher.wire.frames import Wire, WireError, WireServer
from trainer.checkpoint_files.layout import MANIFEST
from trainer.checkpoint_files.manifest import decode
from trainer.errors import CheckpointDamaged

_MOST_PEERS = 16_384  # all members wait here for what is decided, and each may ask for four files at once
_DRAIN_S = 5.0

_to_server: msgspec.json.Decoder[protocol.ToServer] = msgspec.json.Decoder(protocol.ToServer)
MOST_SESSIONS = 64


@dataclass(slots=True, eq=False)
class _Session:
    """The first member's record of one generation: its decision which checkpoint all members load, and which members
    do not have all files of it yet.

    `decision` is set once it is made, and `complete` once every member has reported that it has all files. Both are
    cancelled when a decision for a newer generation is made.
    """

    decision: "asyncio.Future[LoadDecision]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    complete: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    awaited: set[int] = field(default_factory=set)  # the members that have not reported yet that they have all files


class Agreement:
    """The decisions that this node has made as first member (the node of rank 0), by generation: which checkpoint all
    members load. Requests of members wait here for the decision, and then until every member has the files.
    """

    def __init__(self) -> None:
        self._sessions: dict[int, _Session] = {}

    def decide(self, generation: int, decision: LoadDecision, members: Collection[int]) -> None:
        """Publish the decision for a generation, to be returned by `decision` now and later; callers that wait for an
        older generation are cancelled. `members` are the nodes that `arrive` waits for.
        """
        for number in [number for number in self._sessions if number < generation]:
            session = self._sessions.pop(number)
            session.decision.cancel()
            session.complete.cancel()
        session = self._sessions.setdefault(generation, _Session())
        session.awaited = set(members)
        session.decision.set_result(decision)

    async def decision(self, generation: int) -> LoadDecision:
        """Wait for the decision of this generation and return it; raise CancelledError if a newer generation replaces
        it.
        """
        return await asyncio.shield(self._session(generation).decision)

    async def arrive(self, generation: int, node: int) -> None:
        """Record that node `node` has all files of the generation's checkpoint, and return once all members (the nodes
        that `decide` named) have. Raise CancelledError if a newer generation is decided meanwhile.
        """
        session = self._session(generation)
        session.awaited.discard(node)
        if not session.awaited and session.decision.done() and not session.complete.done():
            session.complete.set_result(None)
        await asyncio.shield(session.complete)

    def _session(self, generation: int) -> _Session:
        """Return the record (_Session) of a generation's decision and of the members that lack files. Make one for a
        generation not asked about before; raise WireError if MOST_SESSIONS others are kept.
        """
        if generation not in self._sessions and len(self._sessions) >= MOST_SESSIONS:
            raise WireError(f"it asks of generation {generation}, and others of {MOST_SESSIONS} more")
        return self._sessions.setdefault(generation, _Session())


class ReplicaServer:
    """A server of this node's checkpoints, which listens on its own address from `start` on."""

    def __init__(
        self, files: ReplicaFiles, address: str, key: bytes, pool: ThreadPoolExecutor, stall_s: float = STALL_S
    ) -> None:
        self.agreement = Agreement()
        self.port = 0
        self._files = files
        self._address = address
        self._pool, self._stall_s = pool, stall_s
        self._listener = WireServer(key, _to_server, self._serve, _MOST_PEERS, protocol.LINE_BYTES)

    async def start(self) -> None:
        """Listen for peers at any free port, and set `port` to it. Raise OSError if that fails."""
        self.port = await self._listener.start(self._address)

    async def close(self) -> None:
        """Stop listening and close all connections."""
        await self._listener.close()

    async def _serve(self, wire: Wire[protocol.ToServer, protocol.FromServer]) -> None:
        """Answer the requests of one peer until it closes the connection."""
        link = ReplicaLink(wire, self._pool, self._stall_s)
        while (request := await wire.receive()) is not None:
            await self._answer(link, request)

    async def _answer(self, link: ReplicaLink, request: protocol.ToServer) -> None:
        """Carry out one request of the peer.

        A Go is the peer's answer to an offer of contents, and is received where the offer is made (`ReplicaLink.give`).
        A Go that arrives here answers no offer, so WireError is raised.
        """
        match request:
            case protocol.List():
                await _give(link, msgspec.json.encode(await asyncio.to_thread(self._files.list)))
            case protocol.Decide(generation=generation):
                await _give(link, msgspec.json.encode(await self.agreement.decision(generation)))
            case protocol.Arrived(generation=generation, node=node):
                await self.agreement.arrive(generation, node)
                await link.send(protocol.Fine())
            case protocol.Get():
                await self._get(link, request)
            case protocol.Put():
                await self._put(link, request)
            case protocol.Doubt():
                await asyncio.to_thread(self._files.check_reported, request.save, request.name)
                await link.send(protocol.Fine())
            case protocol.Go():
                raise WireError("nothing was offered")
            case _:
                assert_never(request)

    async def _get(self, link: ReplicaLink, get: protocol.Get) -> None:
        """Send the file or manifest that the peer asks for, or a refusal if this node does not have it."""
        try:
            await asyncio.to_thread(self._files.commit, get.save)
            if get.name == MANIFEST:
                data = await asyncio.to_thread(self._files.manifest, get.save)
                await _give(link, data)
                return
            size = await asyncio.to_thread(self._files.size, get.save, get.name)
        except SaveGone as gone:
            await link.send(protocol.refusal(str(gone), gone=True))
            return
        await link.give(size, lambda peer: self._send(peer, get, size))

    def _send(self, peer: socket.socket, get: protocol.Get, size: int) -> None:
        """Send `size` bytes of the file that `get` requests to the peer; raise WireError if the checkpoint no longer
        exists. The sending thread opens the file itself, because a cancelled call could otherwise leave it open.
        """
        try:
            with self._files.open(get.save, get.name) as file:
                send_file(peer, file, size, Throttle(), lambda: False)
        except SaveGone as gone:
            raise WireError(str(gone)) from gone

    async def _put(self, link: ReplicaLink, put: protocol.Put) -> None:
        """Receive a file that a peer offers, or answer that this node has it, or that it lacks the checkpoint to which
        the file belongs. Raise WireError after a failure, of which the peer is told.
        """
        try:
            manifest = await asyncio.to_thread(self._wanted, put)
            if manifest is None:
                await link.send(protocol.InPlace())
                return
            await self._keep(link, put, manifest)
        except SaveGone as gone:
            await link.send(protocol.refusal(str(gone), gone=True))
        except (CheckpointDamaged, OSError) as error:
            await link.send(await asyncio.to_thread(self._why, put, error))
            await link.in_thread(lambda peer: drain(peer, _DRAIN_S))
            raise WireError("the peer keeps sending what is no longer wanted") from error
        else:
            await link.send(protocol.Fine())

    async def _keep(self, link: ReplicaLink, put: protocol.Put, manifest: bytes) -> None:
        """Receive the file that the peer offers with `put`, and write it to this node's disk. Raise CheckpointDamaged
        if it differs from its entry in `manifest`, the bytes of the checkpoint's manifest here, OSError if this disk
        fails, and WireError if the peer does.
        """
        await link.receive(lambda peer: self._files.receive(put.save, manifest, put.name, receive(peer, put.size)))

    def _wanted(self, put: protocol.Put) -> bytes | None:
        """Return the checkpoint's manifest, against which a file that a peer offers is checked, or None if this node
        already has the file; raise SaveGone if it lacks the checkpoint.
        """
        manifest = self._files.manifest(put.save)
        file = entry(decode(manifest), put.name)
        if file.size != put.size:
            raise SaveGone(f"{put.save}: {put.name} has {file.size} bytes, not {put.size}")
        return None if self._files.has(put.save, put.name, put.size) else manifest

    def _why(self, put: protocol.Put, error: Exception) -> protocol.Refusal:
        """Return the refusal for an error while receiving a file; if the checkpoint was removed meanwhile, the refusal
        says so.
        """
        try:
            self._files.manifest(put.save)
        except SaveGone as gone:
            return protocol.refusal(str(gone), gone=True)
        return protocol.refusal(str(error))


async def _give(link: ReplicaLink, data: bytes) -> None:
    """Offer the data to the peer, and send it once the peer wants it."""
    await link.give(len(data), lambda peer: send_bytes(peer, data))
