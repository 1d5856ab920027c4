"""A node's server: lists, gives and takes files of checkpoints, to agents of this attempt and to nobody else."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import assert_never

import msgspec

from launcher.copies import protocol as words
from launcher.copies.agreement import Agreement
from launcher.copies.bulk import STALL_S, Throttle, drain, receive, send_bytes, send_file
from launcher.copies.files import ReplicaFiles, SaveGone, entry
from launcher.copies.link import ReplicaLink
from launcher.wire.frames import Wire, WireError, WireServer
from trainer.checkpoint_files.layout import MANIFEST
from trainer.checkpoint_files.manifest import decode
from trainer.errors import CheckpointDamaged

_MOST_PEERS = 16_384  # all members wait here for what is decided, and each may ask for four files at once
_DRAIN_S = 5.0

_to_server: msgspec.json.Decoder[words.ToServer] = msgspec.json.Decoder(words.ToServer)


class ReplicaServer:
    """`start` listens on the node's own address."""

    def __init__(
        self, files: ReplicaFiles, address: str, key: bytes, pool: ThreadPoolExecutor, stall_s: float = STALL_S
    ) -> None:
        self.agreement = Agreement()
        self.port = 0
        self._files = files
        self._address = address
        self._pool, self._stall_s = pool, stall_s
        self._listener = WireServer(key, _to_server, self._serve, _MOST_PEERS, words.LINE_BYTES)

    async def start(self) -> None:
        self.port = await self._listener.start(self._address)

    async def close(self) -> None:
        await self._listener.close()

    async def _serve(self, wire: Wire[words.ToServer, words.FromServer]) -> None:
        link = ReplicaLink(wire, self._pool, self._stall_s)
        while (request := await wire.receive()) is not None:
            await self._answer(link, request)

    async def _answer(self, link: ReplicaLink, request: words.ToServer) -> None:
        match request:
            case words.List():
                await _give(link, msgspec.json.encode(await asyncio.to_thread(self._files.list)))
            case words.Decide(generation=generation):
                await _give(link, msgspec.json.encode(await self.agreement.decision(generation)))
            case words.Arrived(generation=generation, node=node):
                await self.agreement.arrive(generation, node)
                await link.say(words.Fine())
            case words.Get():
                await self._get(link, request)
            case words.Put():
                await self._put(link, request)
            case words.Doubt():
                await asyncio.to_thread(self._files.doubt, request.save, request.name)
                await link.say(words.Fine())
            case words.Go():
                raise WireError("nothing was offered")
            case _:
                assert_never(request)

    async def _get(self, link: ReplicaLink, get: words.Get) -> None:
        try:
            await asyncio.to_thread(self._files.settle, get.save)
            if get.name == MANIFEST:
                data = await asyncio.to_thread(self._files.manifest, get.save)
                await _give(link, data)
                return
            size = await asyncio.to_thread(self._files.size, get.save, get.name)
        except SaveGone as gone:
            await link.say(words.refusal(str(gone), gone=True))
            return
        await link.give(size, lambda peer: self._send(peer, get, size))

    def _send(self, peer: socket.socket, get: words.Get, size: int) -> None:
        """Send a file from a thread, which opens it: a cancel could leave open a file that crosses an await."""
        try:
            with self._files.open(get.save, get.name) as file:
                send_file(peer, file, size, Throttle(), lambda: False)
        except SaveGone as gone:
            raise WireError(str(gone)) from gone

    async def _put(self, link: ReplicaLink, put: words.Put) -> None:
        try:
            manifest = await asyncio.to_thread(self._wanted, put)
            if manifest is None:
                await link.say(words.InPlace())
                return
            await self._keep(link, put, manifest)
        except SaveGone as gone:
            await link.say(words.refusal(str(gone), gone=True))
        except (CheckpointDamaged, OSError) as error:
            await link.say(await asyncio.to_thread(self._why, put, error))
            await link.in_thread(lambda peer: drain(peer, _DRAIN_S))
            raise WireError("what the peer goes on sending is not wanted any more") from error
        else:
            await link.say(words.Fine())

    async def _keep(self, link: ReplicaLink, put: words.Put, manifest: bytes) -> None:
        await link.receive(lambda peer: self._files.receive(put.save, manifest, put.name, receive(peer, put.size)))

    def _wanted(self, put: words.Put) -> bytes | None:
        """Return the manifest for an offered file, or None if the file is here already. Raise SaveGone."""
        manifest = self._files.manifest(put.save)
        file = entry(decode(manifest), put.name)
        if file.size != put.size:
            raise SaveGone(f"{put.save}: {put.name} has {file.size} bytes, not {put.size}")
        return None if self._files.has(put.save, put.name, put.size) else manifest

    def _why(self, put: words.Put, error: Exception) -> words.Refusal:
        """Return the refusal of a file; a checkpoint that was removed meanwhile is no failure."""
        try:
            self._files.manifest(put.save)
        except SaveGone as gone:
            return words.refusal(str(gone), gone=True)
        return words.refusal(str(error))


async def _give(link: ReplicaLink, data: bytes) -> None:
    await link.give(len(data), lambda peer: send_bytes(peer, data))
