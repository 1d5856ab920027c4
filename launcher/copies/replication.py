"""The agent's work with checkpoints where each node has its own disk: it serves its files, fetches what its ranks load,
and has second copies made. A Start is the coordinator's order to start the ranks of a generation, a set of ranks that
train together. Its members are the nodes with those ranks; the first member, with rank 0, decides which checkpoint is
loaded.

Before ranks of a generation are forked:

    first member    List of every server → choose() → SaveChoice          the others    Decide → SaveChoice
    each member     sets aside what is hopeless, commits its draft of the chosen one
    where some member lacks a file: each fetches what it lacks, then Arrived, until all have arrived
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import TypeVar

from launcher.copies import client as peer
from launcher.copies.bulk import new_pool
from launcher.copies.choice import choose, decide
from launcher.copies.client import DiskFailed
from launcher.copies.copier import Copier, Patience
from launcher.copies.files import ReplicaFiles, SaveGone
from launcher.copies.link import ReplicaLink, linked
from launcher.copies.protocol import REASON_CHARS, Get, LoadDecision, Save, SaveChoice
from launcher.copies.server import ReplicaServer
from launcher.errors import LaunchError
from launcher.wire.frames import WireError
from launcher.wire.messages import Copied, Noted, ReplicaAddress, Start
from trainer.checkpoint_files.manifest import FileEntry, Manifest, decode
from trainer.checkpoint_files.partial import Held
from trainer.errors import CheckpointDamaged

_AT_ONCE = 4  # files
_MOST_NOTED = 8


T = TypeVar("T")


class NotBrought(LaunchError):
    """Raised when a checkpoint that ranks must load is not on this node and cannot be fetched."""


class NothingToLoad(LaunchError):
    """Raised when the run has saved checkpoints, and none is complete on the nodes that answer."""


class Replication:
    """The agent's work with checkpoints where each node has its own disk.

    Call `bring` before ranks start and `note` for each step that they commit. `fetched` is the number of bytes fetched
    so far during a fetch, else None. `keeps` becomes True once this node's folder has a checkpoint of a step that ranks
    reported: from then on the run does not begin from nothing by itself.
    """

    def __init__(
        self,
        node: int,
        address: str,
        key: bytes,
        folder: Path,
        say: Callable[[Copied | Noted], None],
        patience: Patience,
        limit_bytes_per_s: float | None = None,
    ) -> None:
        self.fetched: int | None = None
        self.keeps = False
        self._seen: int | None = None  # the last step that was noted
        self._looking: asyncio.Task[None] | None = None
        self._node = node
        self._address = address
        self._key = key
        self._say = say
        self._patience = patience
        self._heard_at = 0.0
        self._pool = new_pool()
        self._files = ReplicaFiles(folder)
        self._server = ReplicaServer(self._files, address, key, self._pool, patience.stall_s)
        self._copier = Copier(self._files, address, key, self._pool, say, patience, limit_bytes_per_s)

    @property
    def port(self) -> int:
        """Return the port of this node's server."""
        return self._server.port

    async def open(self) -> None:
        """Start this node's server of checkpoint files."""
        await self._server.start()

    async def close(self) -> None:
        """Stop copying and serving checkpoints: cut off what is under way, and do not wait for threads."""
        if self._looking is not None:
            self._looking.cancel()
        await self._copier.close()
        await self._server.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def note(self, step: int) -> None:
        """Record that a rank of this node has committed the checkpoint of `step`, so that its files get copied."""
        self._copier.note(step)
        if not self.keeps and step != self._seen and (self._looking is None or self._looking.done()):
            self._seen = step
            self._looking = asyncio.create_task(self._look_for(step))

    async def _look_for(self, step: int) -> None:
        """Set `keeps`, which heartbeats report to the coordinator, to True if this node's folder has a checkpoint of
        the committed step `step`, else to False; leave it as it is if the disk cannot be read.
        """
        with suppress(OSError):  # the copier reports a disk that cannot be read
            self.keeps = await asyncio.to_thread(self._files.look_at, "step", step) is not None

    async def settle(self) -> str:
        """Wait until this node's files of the newest complete checkpoint have been copied to the next node, or the
        copier has given up after failing for some time; return why they were not copied, or "". Older checkpoints may
        still have no copy then.
        """
        return await self._copier.settle()

    async def bring(self, start: Start) -> None:
        """Fetch the checkpoint that the ranks of this generation load, if this node lacks it, and set aside newer ones
        that cannot be completed. If some member lacks a file, return once all members have theirs.

        Raise NothingToLoad if no complete one exists, NotBrought if it cannot be fetched, and DiskFailed if this node's
        disk fails.
        """
        try:
            decision = await self._decided(start)
            if decision.lacks:
                raise NothingToLoad(decision.lacks if start.group_rank == 0 else _as_reported(start, decision.lacks))
            if decision.load.passed_over and start.group_rank == 0:
                self._say(Noted(self._node, "checkpoint_passed_over", _passed_over(decision.load)))
            hopeless = await self._confirmed_hopeless(start, decision.load.hopeless)
            for text in await asyncio.to_thread(self._make_room, decision, hopeless):
                self._say(Noted(self._node, "checkpoint_set_aside", text))
            if decision.load.fetches or decision.best.fetches:
                await self._fetch(start, decision.load)
                await self._fetch_best(start, decision.best)
                await self._wait_for_others(start)
                await self._fetch(start, decision.load)  # what was set aside as damaged when others asked for it
        except SaveGone as error:
            raise NotBrought(str(error) if start.group_rank == 0 else _as_reported(start, str(error))) from error
        except (WireError, TimeoutError, CheckpointDamaged) as error:
            raise NotBrought(str(error) or type(error).__name__) from error
        except OSError as error:
            raise DiskFailed(str(error)) from error
        finally:
            self.fetched = None
        self._copier.follow(self._node, start)

    # -- which one

    async def _decided(self, start: Start) -> LoadDecision:
        """Return the decision which checkpoint is loaded: the first member makes it from the lists of checkpoints that
        the agents of all nodes in `start.replicas` send, and the other members ask the first one for it.

        If no checkpoint is complete without the lists still missing, the first member asks again for some seconds
        (`members_s` of Patience). Raise NotBrought if a member that has to answer does not do so in that time.
        """
        if start.group_rank != 0:
            return await self._ask_first(start, lambda link: peer.decision(link, start.generation))
        members = _members(start)
        until = time.monotonic() + self._patience.members_s
        while True:
            listed = await asyncio.gather(*(self._look_at(server, server.node in members) for server in start.replicas))
            inventories = dict(zip((server.node for server in start.replicas), listed, strict=True))
            decision = await asyncio.to_thread(
                decide, inventories, members, all_here=start.all_here, kept=start.kept, anew=start.anew
            )
            if not decision.lacks or None not in listed or time.monotonic() > until:
                break  # else what is missing may be on one that is only slow
        self._server.agreement.decide(start.generation, decision, members)
        return decision

    async def _ask_first(self, start: Start, ask: Callable[[ReplicaLink], Awaitable[T]]) -> T:
        """Return the answer of `ask`, called with a connection to the first member; repeat it for some seconds
        (`members_s` of Patience), because a server refuses connections when all members come at once.

        Then raise NotBrought if the first member has not answered.
        """
        until = time.monotonic() + self._patience.members_s
        while True:
            try:
                async with self._reach(start.replicas[0]) as link:
                    return await ask(link)
            except WireError as error:
                if time.monotonic() > until:
                    raise NotBrought(_said(start.replicas[0], error)) from error
            await asyncio.sleep(self._patience.retry_s)

    async def _look_at(self, server: ReplicaAddress, member: bool) -> Sequence[Held] | None:
        """Return the checkpoints that a server has.

        If it does not answer, return None unless it is a `member` of the generation; for a member, try for some seconds
        (`members_s` of Patience) and then raise NotBrought.
        """
        if server.node == self._node:
            return await asyncio.to_thread(self._files.list)
        patience = self._patience
        until = time.monotonic() + (patience.members_s if member else 0.0)
        answer_s = patience.list_s if member else patience.others_s
        while True:
            try:
                async with asyncio.timeout(answer_s), self._reach(server) as link:
                    return await peer.inventory(link)
            except (WireError, TimeoutError) as error:
                if not member:
                    return None
                if time.monotonic() > until:
                    raise NotBrought(f"no list of checkpoints: {_said(server, error)}") from error
            await asyncio.sleep(patience.retry_s)

    async def _confirmed_hopeless(self, start: Start, told: Collection[Save]) -> Collection[Save]:
        """Return those checkpoints of `told`, which the first member finds impossible to complete, that this node finds
        impossible too, from what the other nodes have. The caller may rename the folders of these alone, so that they
        do not count as checkpoints any more.

        The first member itself confirms all of them. Each that this node does not confirm is reported as an event, and
        stays.
        """
        if not told or start.group_rank == 0:
            return told
        listed = await asyncio.gather(*(self._look_at(server, False) for server in start.replicas))
        inventories = dict(zip((server.node for server in start.replicas), listed, strict=True))
        own = await asyncio.to_thread(choose, inventories, _members(start), all_here=start.all_here)
        seen = set(own.hopeless)
        for save in sorted(set(told) - seen)[:_MOST_NOTED]:
            text = _as_reported(
                start, f"files of {save} are on no node that is here; node {self._node} sees no such thing"
            )
            self._say(Noted(self._node, "checkpoint_passed_over", f"{text}: it stays"))
        return seen & set(told)

    def _make_room(self, decision: LoadDecision, hopeless: Collection[Save]) -> list[str]:
        """Set aside the checkpoints in `hopeless`, which cannot be completed, and commit the two that `decision`
        chooses, the one to load and the best one. Return a text about each checkpoint that was set aside. It runs in a
        thread.

        Each of the two is committed if this node has its manifest; files that are missing are fetched later. A
        committed checkpoint with the same folder name is set aside before. Raise SaveGone if that one is complete and
        newer, or if the chosen one is gone.
        """
        chosen = decision.load.save
        instead = "ranks begin anew" if chosen is None else f"ranks load {chosen}"
        said = [
            f"of {save} some files are on no node that is here: it is set aside, {instead}"
            for save in hopeless
            if self._files.set_aside(save)
        ]
        for choice in (decision.load, decision.best):
            if choice.save is not None and self._node in choice.with_manifest:
                if self._files.make_room_for_draft(choice.save):
                    said.append(_gave_way(choice.save, self._node))
                self._files.commit(choice.save)
        return said

    # -- fetching

    async def _fetch_best(self, start: Start, choice: SaveChoice) -> None:
        """Fetch the files that this node lacks of the best checkpoint, which the first member has decided in `choice`.

        No rank loads that one, so a failure is only recorded as an event.
        """
        try:
            await self._fetch(start, choice)
        except (NotBrought, SaveGone) as error:
            self._say(Noted(self._node, "copy_failed", str(error)))

    async def _fetch(self, start: Start, choice: SaveChoice) -> None:
        """Fetch the files of the chosen checkpoint that this node lacks; raise NotBrought if one cannot be had."""
        if choice.save is None or not choice.fetches:
            return
        save = choice.save
        self.fetched, self._heard_at = self.fetched or 0, time.monotonic()
        servers = {server.node: server for server in start.replicas if server.node != self._node}
        whole, manifest = await self._manifest(save, choice, servers)
        holders_of = {file: choice.holders.get(file.name, ()) for file in manifest.files}
        here = await asyncio.to_thread(self._files.present, save)
        lacking = [file for file in manifest.files if file.name not in here]
        turns = asyncio.Semaphore(_AT_ONCE)

        async def bring(file: FileEntry, place: int) -> None:
            """Fetch one file from one of its holders."""
            holders = [servers[node] for node in holders_of[file] if node in servers]
            if not holders:
                raise SaveGone(f"{file.name} of {save}, which node {choice.with_manifest[0]} has, is on no node")
            turn = (place + start.group_rank) % max(1, len(holders))
            async with turns:
                await self._bring(whole, Get(save, file.name), file, holders[turn:] + holders[:turn])

        try:
            async with asyncio.TaskGroup() as group:
                for place, file in enumerate(lacking):
                    group.create_task(bring(file, place))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        if await asyncio.to_thread(self._files.move_in, save):
            self._say(Noted(self._node, "checkpoint_set_aside", _gave_way(save, choice.with_manifest[0])))
        if lacking:
            megabytes = sum(file.size for file in lacking) / 1e6
            text = f"node {self._node} fetched {megabytes:.1f} MB of {save} from other nodes"
            self._say(Noted(self._node, "checkpoint_fetched", text))

    async def _manifest(
        self, save: Save, choice: SaveChoice, servers: dict[int, ReplicaAddress]
    ) -> tuple[bytes, Manifest]:
        """Return (the manifest's bytes, its decoded content) of the checkpoint `save`, from this node or from one of
        `servers` (by node); `choice` names the nodes that have it. Raise SaveGone if it names none of these, and
        NotBrought if none of them sends it.
        """
        if self._node in choice.with_manifest:
            here = await asyncio.to_thread(self._files.manifest, save)
            return here, await asyncio.to_thread(decode, here)
        with_manifest = [servers[node] for node in choice.with_manifest if node in servers]
        problem = ""
        for server in with_manifest:
            try:
                async with asyncio.timeout(self._patience.give_up_s), self._reach(server) as link:
                    return await peer.manifest(link, save)
            except (WireError, TimeoutError) as error:
                problem = _said(server, error)
        if not with_manifest:
            raise SaveGone(f"no node has the manifest of {save}")
        raise NotBrought(f"the manifest of {save}: {problem}")

    async def _bring(self, whole: bytes, get: Get, file: FileEntry, holders: Iterable[ReplicaAddress]) -> None:
        """Fetch the file that `get` asks for, with the entry `file` in the manifest `whole`, from one holder after
        another into this node's checkpoint directory. A holder whose file is damaged is left out from then on. Try all
        others again for as long as data still arrives in any fetch of this node; then raise NotBrought.
        """
        holders = list(holders)
        problem = "no node that is here has it"
        while holders:
            for server in tuple(holders):
                try:
                    async with self._reach(server) as link:
                        await peer.fetch(link, self._files, whole, get, file, self._count_fetched)
                    return
                except (WireError, CheckpointDamaged) as error:
                    problem = _said(server, error)
                    if isinstance(error, CheckpointDamaged):
                        holders.remove(server)
                        await self._report_damaged(server, get)
            if time.monotonic() >= self._heard_at + self._patience.give_up_s:
                break  # not before each was asked: this machine may have stood still
            await asyncio.sleep(self._patience.retry_s)
        raise NotBrought(f"{file.name} of {get.save}: {problem}")

    async def _report_damaged(self, server: ReplicaAddress, get: Get) -> None:
        """Ask the server to check its copy of the file that was requested by `get` and arrived damaged, so that a
        damaged copy is not offered again. Do nothing if the server cannot be reached.
        """
        with suppress(WireError):  # files of an unreachable node do not count
            async with self._reach(server) as link:
                await peer.report_damaged(link, get)

    def _count_fetched(self, count: int) -> None:
        """Add to the number of fetched bytes, from several threads; a lost update does no harm, because the number is
        only displayed.
        """
        self._heard_at = time.monotonic()
        self.fetched = (self.fetched or 0) + count

    async def _wait_for_others(self, start: Start) -> None:
        """Report to the first member that this node has the files of the checkpoint that its ranks load, and wait until
        all members have them, without a time limit. Raise NotBrought if the first member cannot be reached for some
        seconds.

        Ranks that started before that would wait for the other nodes as well, but with time limits of their own.
        """
        if start.group_rank == 0:
            await self._server.agreement.arrive(start.generation, self._node)
            return
        await self._ask_first(start, lambda link: peer.arrive(link, start.generation, self._node))

    def _reach(self, server: ReplicaAddress) -> AbstractAsyncContextManager[ReplicaLink]:
        """Return an authenticated connection to another node's server."""
        return linked(server, self._address, self._key, self._pool, self._patience.stall_s)


def _members(start: Start) -> list[int]:
    """Return the indexes of the generation's members in the order of their ranks."""
    return [server.node for server in start.replicas[: start.group_world_size]]


def _said(server: ReplicaAddress, error: Exception) -> str:
    """Return as text which node failed, and why."""
    return f"node {server.node}: {str(error) or 'no answer in time'}"[:REASON_CHARS]


def _as_reported(start: Start, text: str) -> str:
    """Return the text of a decision or error, preceded by the number of the node that sent it: the first member."""
    return f"node {start.replicas[0].node} says: {text}"


def _gave_way(save: Save, holder: int) -> str:
    """Return the text of an event: another checkpoint with the folder name of `save` was set aside, because the ranks
    load the one that node `holder` has.
    """
    return f"another {save} is set aside for that of node {holder}"


def _passed_over(choice: SaveChoice) -> str:
    """Return a text that a newer checkpoint is incomplete, and what ranks load instead."""
    newest = choice.passed_over[-1]
    instead = "ranks begin anew" if choice.save is None else f"ranks load {choice.save}"
    return f"of {newest} some files are on no node that is here: {instead}; it stays, for who is away may bring them"
