"""With `checkpoint.buddy`, copy the snapshots that a node's ranks keep in its memory to the memory of the next node, so
that they survive the loss of the node. A Start is the coordinator's order to start the ranks of one generation, a set
of ranks that train together. Its members, the nodes with ranks in it, form a ring. A Held is an entry in a node's list
of snapshots.

    ranks of node 0: snapshot 20 ─► memory of node 0 ◄── List, Get ── agent of node 1 ─► its copies
                                                                      once its own ranks have theirs of step 20
    node 0 is lost: the agent that gets its ranks ── List, Get ─► whoever has copies ─► its own memory; ranks load it

Copying happens in the background, and no step waits for it. A late copy is of an older step; ranks load the newest step
that all of them have.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from launcher.copies import client as peer
from launcher.copies.bulk import Throttle, new_pool
from launcher.copies.client import DiskFailed
from launcher.copies.files import SaveGone
from launcher.copies.link import ReplicaLink, linked, ring_neighbour
from launcher.copies.node_memory import NodeMemory, Snapshots, names_of, whole
from launcher.copies.protocol import Get, Save
from launcher.copies.server import ReplicaServer
from launcher.wire.frames import WireError
from launcher.wire.messages import Copied, Noted, ReplicaAddress, Start
from trainer.checkpoint_files.partial import Held
from trainer.errors import CheckpointDamaged

_RETRY_S = 0.1
_LIST_S = 10.0  # for one answer: who is slower may be lost
_BROUGHT = 3  # so many of the newest, of which the other nodes have one
_FAILURES = (WireError, SaveGone, CheckpointDamaged, DiskFailed, OSError, TimeoutError)


class Buddies:
    """The copying of snapshots between nodes' memories, in the background.

    Call `bring` before ranks are forked, to fetch their newest snapshots from other nodes; `follow` for each
    generation, to keep copies for the previous node in its ring; and `note` for each snapshot of this node's ranks.
    """

    def __init__(
        self,
        node: int,
        address: str,
        key: bytes,
        memory: NodeMemory,
        say: Callable[[Copied | Noted], None],
        patience_s: float,
        limit_bytes_per_s: float | None = None,
    ) -> None:
        self._node, self._address, self._key, self._memory = node, address, key, memory
        self._say, self._patience_s, self._pace = say, patience_s, Throttle(limit_bytes_per_s)
        self._pool = new_pool()
        self._server = ReplicaServer(memory, address, key, self._pool)
        self._noted = 0
        self._more = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """Return the port on which other nodes fetch snapshots."""
        return self._server.port

    async def open(self) -> None:
        """Start to serve this node's snapshots to the agents of other nodes."""
        await self._server.start()

    async def close(self) -> None:
        """Stop copying and serving snapshots."""
        await self._stop_keeping()
        await self._server.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def note(self, step: int) -> None:
        """Record that ranks of this node have a snapshot of `step`, and wake the task that copies in the background: it
        then fetches the snapshot that the previous node in the ring has of that step, or will have soon.
        """
        if step != self._noted:
            self._noted = step
            self._more.set()

    async def bring(self, start: Start) -> None:
        """Fetch from other nodes the snapshots of the ranks that are about to be forked here, if these are newer than
        the ones here. A failure is recorded as an event.
        """
        names = names_of(start.group_rank, start.local_world_size)
        try:
            async with asyncio.timeout(self._patience_s):
                found = await asyncio.gather(*(self._look_at(one) for one in _others(start, self._node)))
                mine = await asyncio.to_thread(self._memory.own.whole, names)
                newest = {
                    held.step: (held, server)
                    for server, listed in found
                    for held in whole(listed, names)
                    if held.step > max((one.step for one in mine), default=-1)
                }
                for step in sorted(newest)[-_BROUGHT:]:
                    await self._bring(*newest[step])
        except _FAILURES as error:
            self._say(Noted(self._node, "copy_failed", f"of ranks that start on node {self._node}: {_said(error)}"))

    async def follow(self, start: Start) -> None:
        """Stop copying for an earlier generation, and from now on copy in the background the snapshots of the node
        before this one in the ring of `start`; copy none if there is no such node.
        """
        await self._stop_keeping()
        self._noted = 0
        charge = ring_neighbour(start, -1)
        if charge is not None and charge.port:
            names = names_of((start.group_rank - 1) % start.group_world_size, start.local_world_size)
            self._keeping = asyncio.create_task(self._keep(charge, names, start.generation))

    async def _stop_keeping(self) -> None:
        """Stop fetching copies of another node's snapshots, and wait until that has ended; copies that are here
        stay.
        """
        before, self._keeping = self._keeping, None
        if before is not None:
            before.cancel()
            await asyncio.wait([before])

    async def _look_at(self, server: ReplicaAddress) -> tuple[ReplicaAddress, list[Held]]:
        """Return (the server, the snapshots that it has). If it does not answer, record that as an event and return an
        empty list.
        """
        try:
            async with asyncio.timeout(_LIST_S), self._reach(server) as link:
                return server, await peer.inventory(link)
        except (WireError, TimeoutError) as error:
            text = f"node {server.node} does not say which copies it has: {_said(error)}"
            self._say(Noted(self._node, "copy_failed", text))
            return server, []

    async def _bring(self, held: Held, server: ReplicaAddress) -> None:
        """Fetch one snapshot from another node's `server` into the folder of this node's own snapshots, where its ranks
        can load it, and record that as an event. Raise WireError or another error of the transfer if it fails.
        """
        async with self._reach(server) as link:
            megabytes = await self._fetch(link, self._memory.own, held) / 1e6
        text = f"node {self._node} fetched {megabytes:.1f} MB of step {held.step} from the memory of node {server.node}"
        self._say(Noted(self._node, "checkpoint_fetched", text))

    async def _keep(self, charge: ReplicaAddress, names: frozenset[str], generation: int) -> None:
        """Keep copies of the snapshots of node `charge` in this node's memory, until the task is cancelled: after each
        snapshot of this node's ranks, fetch the newest one of that node.

        `names` are the files that a complete snapshot of that node has. Send the coordinator a Copied message with
        `generation` whenever there is a copy of a later step than before.
        """
        failed, told = False, -1
        while True:
            await self._more.wait()
            self._more.clear()
            until, step, problem = time.monotonic() + self._patience_s, -1, ""
            while True:
                try:
                    async with self._reach(charge) as link:
                        step, problem = await self._mirror(link, names), ""
                except _FAILURES as error:
                    problem = _said(error)
                if step >= self._noted or time.monotonic() > until:
                    break
                await asyncio.sleep(_RETRY_S)
            where = f"of what node {charge.node} has in memory"
            if problem and not failed:
                self._say(Noted(self._node, "copy_failed", f"node {self._node} has no copy {where}: {problem}"))
            elif step >= 0 and told < 0:
                text = f"node {self._node} keeps a copy {where}, from step {step} on"
                self._say(Noted(self._node, "memory_copied", text))
            if step > told:
                self._say(Copied(self._node, generation, step))
            told, failed = max(told, step), problem != ""

    async def _mirror(self, link: ReplicaLink, names: frozenset[str]) -> int:
        """Fetch the newest snapshot of the previous node that has all files in `names`, delete all copies but that one
        and the one before, and return its step.

        Return -1 if that node has no complete snapshot.
        """
        theirs = whole(await peer.inventory(link), names)
        if not theirs:
            return -1
        newest, copies = theirs[-1], self._memory.copies
        mine = await asyncio.to_thread(copies.whole, names)
        if newest.digest not in {held.digest for held in mine}:
            await self._fetch(link, copies, newest)
            mine = await asyncio.to_thread(copies.whole, names)
        before = [held for held in mine if held.step < newest.step][-1:]
        kept = [*before, *(held for held in mine if held.digest == newest.digest)]
        await asyncio.to_thread(copies.keep_only, kept)
        return newest.step

    async def _fetch(self, link: ReplicaLink, into: Snapshots, held: Held) -> int:
        """Fetch the snapshot `held` over `link` into the folder `into`, and return its size in bytes. If that fails,
        delete what has arrived, and raise the error.
        """
        save = Save.of(held)
        whole_manifest, manifest = await peer.manifest(link, save)
        await asyncio.to_thread(into.delete_conflicting, save)
        try:
            for file in manifest.files:
                await peer.fetch(link, into, whole_manifest, Get(save, file.name), file, self._pace.pay)
        except BaseException:
            into.drop_unfinished(save)  # at once: this may be cancelled, and ranks that are forked next look there
            raise
        return sum(file.size for file in manifest.files)

    def _reach(self, server: ReplicaAddress) -> AbstractAsyncContextManager[ReplicaLink]:
        """Return an authenticated connection to another node's server."""
        return linked(server, self._address, self._key, self._pool)


def _others(start: Start, node: int) -> list[ReplicaAddress]:
    """Return the addresses of the servers of copies on all nodes of the generation except `node`, without nodes that
    have none.
    """
    members = start.replicas[: start.group_world_size]
    return [one for one in members if one.node != node and one.port]


def _said(error: BaseException) -> str:
    """Return the error's text, or the name of its type if it has no text."""
    return str(error) or type(error).__name__
