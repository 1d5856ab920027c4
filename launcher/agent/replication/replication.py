"""All that an agent does for checkpoints on disks apart: its server, what its ranks load, and second copies.

Before ranks of a generation are forked:

    first member    List of every server → choose() → SaveChoice          the others    Decide → SaveChoice
    each member     sets aside what is hopeless, commits its draft of the chosen one
    where some member lacks a file: each fetches what it lacks, then Arrived, until all have arrived
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

from launcher.agent.messages import Copied, Noted, ReplicaAddress, Start
from launcher.agent.replication import client as peer
from launcher.agent.replication.bulk import new_pool
from launcher.agent.replication.choice import decide
from launcher.agent.replication.client import DiskFailed
from launcher.agent.replication.copier import Copier
from launcher.agent.replication.files import ReplicaFiles, SaveGone
from launcher.agent.replication.link import ReplicaLink, linked
from launcher.agent.replication.protocol import Get, LoadDecision, Save, SaveChoice
from launcher.agent.replication.server import ReplicaServer
from launcher.agent.wire import WireError
from launcher.errors import LaunchError
from trainer.checkpoint_files.manifest import FileEntry, decode
from trainer.checkpoint_files.partial import Held
from trainer.errors import CheckpointDamaged

_AT_ONCE = 4  # files
_RETRY_S = 0.2
_LIST_S = 5.0  # for one answer
_OTHERS_S = 2.0  # for that of a node that is no member, and may be cut off
_MEMBERS_S = 15.0  # until each member has given one: without it nobody knows what it has


class NotBrought(LaunchError):
    """What the ranks are to load is not here, and could not be fetched."""


class Replication:
    """`bring` before ranks start; `note` what they commit. `fetched`: bytes so far, while it brings something."""

    def __init__(
        self,
        node: int,
        address: str,
        token: str,
        folder: Path,
        say: Callable[[Copied | Noted], None],
        patience_s: float,
        limit_bytes_per_s: float | None = None,
    ) -> None:
        self.fetched: int | None = None
        self._node = node
        self._address = address
        self._token = token
        self._say = say
        self._patience_s = patience_s  # without a single byte
        self._heard_at = 0.0
        self._pool = new_pool()
        self._files = ReplicaFiles(folder)
        self._server = ReplicaServer(self._files, address, token, self._pool)
        self._copier = Copier(self._files, address, token, self._pool, say, patience_s, limit_bytes_per_s)

    @property
    def port(self) -> int:
        return self._server.port

    async def open(self) -> None:
        await self._server.start()

    async def close(self) -> None:
        await self._copier.close()
        await self._server.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def note(self, step: int) -> None:
        """A rank of this node has reported a commit."""
        self._copier.note(step)

    async def settle(self) -> str:
        """Returns once no file of this node's ranks waits for its second copy; why the newest has none."""
        return await self._copier.settle()

    async def bring(self, start: Start) -> None:
        """Have here what the ranks of this generation load. Raises NotBrought, and DiskFailed where this disk does."""
        try:
            decision = await self._decided(start)
            for text in await asyncio.to_thread(self._make_room, decision):
                self._say(Noted(self._node, "checkpoint_set_aside", text))
            if decision.load.fetches or decision.best.fetches:
                await self._fetch(start, decision.load)
                await self._fetch_best(start, decision.best)
                await self._wait_for_others(start)
        except (WireError, TimeoutError, SaveGone, CheckpointDamaged) as error:
            raise NotBrought(str(error) or type(error).__name__) from error
        except OSError as error:
            raise DiskFailed(str(error)) from error
        finally:
            self.fetched = None
        self._copier.follow(self._node, start)

    # -- which one

    async def _decided(self, start: Start) -> LoadDecision:
        if start.group_rank != 0:
            return await self._ask_first(start)
        members = [server.node for server in start.replicas[: start.group_world_size]]
        listed = await asyncio.gather(*(self._look_at(server, server.node in members) for server in start.replicas))
        inventories = dict(zip((server.node for server in start.replicas), listed, strict=True))
        decision = await asyncio.to_thread(decide, inventories, members)
        self._server.agreement.decide(start.generation, decision, members)
        return decision

    async def _ask_first(self, start: Start) -> LoadDecision:
        async with self._reach(start.replicas[0]) as link:
            return await peer.decision(link, start.generation)

    async def _look_at(self, server: ReplicaAddress, member: bool) -> Sequence[Held] | None:
        """What it has; None for one that does not say, and is no member."""
        if server.node == self._node:
            return await asyncio.to_thread(self._files.list)
        until = time.monotonic() + (_MEMBERS_S if member else 0.0)
        while True:
            try:
                async with asyncio.timeout(_LIST_S if member else _OTHERS_S), self._reach(server) as link:
                    return await peer.inventory(link)
            except (WireError, TimeoutError) as error:
                if not member:
                    return None
                if time.monotonic() > until:
                    raise NotBrought(f"the server of node {server.node} does not answer: {error}") from error
            await asyncio.sleep(_RETRY_S)

    def _make_room(self, decision: LoadDecision) -> list[str]:
        """In a thread: what cannot be loaded must not be found by ranks, what is chosen must. What was set aside."""
        chosen = decision.load.save
        instead = "ranks begin anew" if chosen is None else f"ranks load {chosen}"
        said = [
            f"of {save} some files are on no node that is here: it is set aside, {instead}"
            for save in decision.load.hopeless
            if self._files.set_aside(save)
        ]
        for choice in (decision.load, decision.best):
            if choice.save is not None and self._files.make_room(choice.save):
                said.append(f"another {choice.save} is set aside for that of node {choice.keepers[0]}")
            if choice.save is not None and self._node in choice.keepers:
                self._files.settle(choice.save)
        return said

    # -- fetching

    async def _fetch_best(self, start: Start, choice: SaveChoice) -> None:
        """No rank waits for it."""
        try:
            await self._fetch(start, choice)
        except NotBrought as error:
            self._say(Noted(self._node, "copy_failed", str(error)))

    async def _fetch(self, start: Start, choice: SaveChoice) -> None:
        if choice.save is None or not choice.fetches:
            return
        save = choice.save
        self.fetched, self._heard_at = self.fetched or 0, time.monotonic()
        servers = {server.node: server for server in start.replicas if server.node != self._node}
        whole = await self._manifest(save, choice, servers)
        manifest = await asyncio.to_thread(decode, whole)
        lacking = [file for file in manifest.files if self._node not in choice.holders[file.name]]
        turns = asyncio.Semaphore(_AT_ONCE)

        async def bring(file: FileEntry, place: int) -> None:
            holders = [servers[node] for node in choice.holders[file.name] if node in servers]
            turn = (place + start.group_rank) % max(1, len(holders))
            async with turns:
                await self._bring(whole, Get(save, file.name), file, holders[turn:] + holders[:turn])

        try:
            async with asyncio.TaskGroup() as group:
                for place, file in enumerate(lacking):
                    group.create_task(bring(file, place))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        if lacking:
            megabytes = sum(file.size for file in lacking) / 1e6
            text = f"node {self._node} fetched {megabytes:.1f} MB of {save} from other nodes"
            self._say(Noted(self._node, "checkpoint_fetched", text))

    async def _manifest(self, save: Save, choice: SaveChoice, servers: dict[int, ReplicaAddress]) -> bytes:
        if self._node in choice.keepers:
            return await asyncio.to_thread(self._files.manifest, save)
        problem = "no node has it"
        for server in (servers[node] for node in choice.keepers if node in servers):
            try:
                async with asyncio.timeout(self._patience_s), self._reach(server) as link:
                    return await peer.manifest(link, save)
            except (WireError, TimeoutError) as error:
                problem = f"node {server.node}: {error}"
        raise NotBrought(f"the manifest of {save}: {problem}")

    async def _bring(self, whole: bytes, get: Get, file: FileEntry, holders: Iterable[ReplicaAddress]) -> None:
        """Ask one after the other, and again, as long as anything at all comes here."""
        holders = list(holders)
        problem = "no node has it"
        while holders and time.monotonic() < self._heard_at + self._patience_s:
            for server in tuple(holders):
                try:
                    async with self._reach(server) as link:
                        await peer.fetch(link, self._files, whole, get, file, self._hear)
                    return
                except WireError as error:
                    problem = f"node {server.node}: {error}"
                except CheckpointDamaged as error:
                    problem = f"node {server.node}: {error}"
                    holders.remove(server)
                    await self._doubt(server, get)
            await asyncio.sleep(_RETRY_S)
        raise NotBrought(f"{file.name} of {get.save}: {problem}")

    async def _doubt(self, server: ReplicaAddress, get: Get) -> None:
        """So that the next choice does not count on that file."""
        with suppress(WireError):  # whoever cannot be reached has nothing that counts
            async with self._reach(server) as link:
                await peer.doubt(link, get)

    def _hear(self, count: int) -> None:
        """In the threads that fetch; a number that one of them overtakes is only shown."""
        self._heard_at = time.monotonic()
        self.fetched = (self.fetched or 0) + count

    async def _wait_for_others(self, start: Start) -> None:
        """Ranks that come early would wait for late ones with their own, shorter patience."""
        if start.group_rank == 0:
            await self._server.agreement.arrive(start.generation, self._node)
            return
        async with self._reach(start.replicas[0]) as link:
            await peer.arrive(link, start.generation, self._node)

    def _reach(self, server: ReplicaAddress) -> AbstractAsyncContextManager[ReplicaLink]:
        return linked(server, self._address, self._token, self._pool)
