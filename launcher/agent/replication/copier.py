"""Second copies: each member's own files of a committed checkpoint, brought to the next member in the background."""

import asyncio
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

from launcher.agent.messages import Copied, Noted, ReplicaAddress, Start
from launcher.agent.replication import client as peer
from launcher.agent.replication.bulk import Throttle
from launcher.agent.replication.files import ReplicaFiles, SaveGone
from launcher.agent.replication.link import Unwilling, linked
from launcher.agent.replication.protocol import Put, Save
from launcher.agent.wire import WireError
from trainer.checkpoint_files.layout import data_name
from trainer.checkpoint_files.manifest import Manifest

_PAUSE_S = 2.0  # between two tries: a peer that is busy or just comes back


class Copier:
    """`follow` each generation, `note` each commit that a rank reports. One step at a time, the newest first.

    A step is tried again as long as a lost peer may take to be known, unless a newer one comes. `settle` returns once
    the newest has its copy, or that was given up; it says why.
    """

    def __init__(
        self,
        files: ReplicaFiles,
        address: str,
        token: str,
        pool: ThreadPoolExecutor,
        say: Callable[[Copied | Noted], None],
        patience_s: float,
        limit_bytes_per_s: float | None = None,
    ) -> None:
        self._files = files
        self._address = address
        self._token = token
        self._pool = pool
        self._say = say
        self._patience_s = patience_s
        self._problem = ""
        self._pace = Throttle(limit_bytes_per_s)
        self._known: set[int] = set()
        self._waiting: set[int] = set()
        self._more = asyncio.Event()
        self._rest = asyncio.Event()  # of the generation that it follows: its newest does not wait any more
        self._working: asyncio.Task[None] | None = None

    def follow(self, node: int, start: Start) -> None:
        """From now on this node's files are those of these ranks, and they go to the next in the ring."""
        before, self._working = self._working, None
        if before is not None:
            before.cancel()
        self._known, self._waiting, self._rest = set(), set(), asyncio.Event()
        self._problem = ""
        self._rest.set()
        target = next_of(start)
        if target is not None:
            self._working = asyncio.create_task(self._work(node, start, target, before))

    def note(self, step: int) -> None:
        """A rank has reported that this step is committed; to hear it again does no harm."""
        if self._working is None or step in self._known:
            return
        self._known.add(step)
        self._waiting.add(step)
        self._rest.clear()
        self._more.set()

    async def settle(self) -> str:
        rest, working = self._rest, self._working
        if working is not None:
            resting = asyncio.create_task(rest.wait())
            await asyncio.wait([resting, working], return_when=asyncio.FIRST_COMPLETED)
            resting.cancel()
        return self._problem

    async def close(self) -> None:
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait([self._working])

    async def _work(self, node: int, start: Start, target: ReplicaAddress, before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.wait([before])  # what it was sending has been cut off by then
        names = [data_name(start.first_rank + local) for local in range(start.local_world_size)]
        best: Save | None = None
        while True:
            while not self._waiting:
                self._rest.set()
                self._more.clear()
                await self._more.wait()
            step = max(self._waiting)
            self._waiting.discard(step)
            self._problem = ""
            try:
                found = await asyncio.to_thread(self._files.look_at, "step", step)
                if found is not None and await self._copied(node, *found, names, target):
                    self._say(Copied(node, start.generation, step))
                found = await asyncio.to_thread(self._files.best)
                if found is not None and found[0] != best and await self._copied(node, *found, names, target):
                    best = found[0]
                if step == max(self._known):
                    self._rest.set()
            except OSError as error:
                self._give_up(node, f"step {step}: node {node} cannot read its disk: {error}")

    async def _copied(
        self, node: int, save: Save, manifest: Manifest, names: Collection[str], target: ReplicaAddress
    ) -> bool:
        """True where it is done; where it failed it was said, and where nobody needs it any more nothing was."""
        until = time.monotonic() + self._patience_s
        while True:
            try:
                async with linked(target, self._address, self._token, self._pool) as link:
                    for file in (file for file in manifest.files if file.name in names):
                        await peer.copy(link, self._files, Put(save, file.name, file.size), self._pace)
                return True
            except SaveGone:
                return False  # pruned: a newer one has taken its place
            except Unwilling as refused:
                if refused.gone:
                    return False
                problem = str(refused)
            except (WireError, OSError) as error:
                problem = str(error) or type(error).__name__
            if time.monotonic() > until or any(step > save.step for step in self._waiting):
                break
            await asyncio.sleep(_PAUSE_S)
        self._give_up(node, f"{save}: the files of node {node} have no second copy on node {target.node}: {problem}")
        return False

    def _give_up(self, node: int, problem: str) -> None:
        self._problem = problem
        self._say(Noted(node, "copy_failed", problem))


def next_of(start: Start) -> ReplicaAddress | None:
    """The member after this one, the first after the last; None for one that is alone."""
    if start.group_world_size < 2 or len(start.replicas) < start.group_world_size:
        return None
    return start.replicas[(start.group_rank + 1) % start.group_world_size]
