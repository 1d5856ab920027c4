"""Copy each node's own files of a committed checkpoint to the next node, in the background. The members of a generation
(a set of ranks that train together) are its nodes, which form a ring; the files on the next node are the second copies.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto

from launcher.copies import client as peer
from launcher.copies.bulk import STALL_S, Throttle
from launcher.copies.files import ReplicaFiles, SaveGone
from launcher.copies.link import Unwilling, linked, ring_neighbour
from launcher.copies.protocol import Put, Save
from launcher.wire.frames import WireError
from launcher.wire.messages import Copied, Noted, ReplicaAddress, Start
from trainer.checkpoint_files.layout import data_name
from trainer.checkpoint_files.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits in seconds for copying; `give_up_s` is how long a transfer may make no progress, over all its tries,
    and `stall_s` how long a peer may send or accept nothing on a connection.
    """

    give_up_s: float
    list_s: float = 5.0  # for the list of checkpoints of a member
    others_s: float = 2.0  # for the list of a node that is no member, and may be cut off
    members_s: float = 15.0  # until every member has sent its list
    retry_s: float = 0.2  # between two tries of a transfer for which ranks wait
    copy_retry_s: float = 2.0  # between two tries of a second copy, if the peer is busy or just coming back
    stall_s: float = STALL_S


class _Result(Enum):
    """How the copying of one checkpoint's files went."""

    COPIED = auto()
    GONE = auto()  # the files no longer exist
    FAILED = auto()  # it will be tried again


class Copier:
    """The copying of checkpoints to the next node.

    Call `follow` for each generation, `note` for each commit that a rank reports, and `settle` at the end of the
    generation. The checkpoint of one step is copied at a time, that of the oldest step first, or after `settle` that of
    the newest. The trainer deletes no checkpoint that is the oldest one waiting to be copied on some node, so that all
    nodes copy the same ones, however slow they are. A failed copy is reported once and tried again for as long as the
    checkpoint exists.
    """

    def __init__(
        self,
        files: ReplicaFiles,
        address: str,
        key: bytes,
        pool: ThreadPoolExecutor,
        say: Callable[[Copied | Noted], None],
        patience: Patience,
        limit_bytes_per_s: float | None = None,
    ) -> None:
        self._files = files
        self._address = address
        self._key = key
        self._pool = pool
        self._say = say
        self._patience = patience
        self._problem = ""
        self._pace = Throttle(limit_bytes_per_s)
        self._known: set[int] = set()
        self._waiting: set[int] = set()
        self._failed: set[str] = set()  # that were reported
        self._ends = False
        self._more = asyncio.Event()
        self._rest = asyncio.Event()  # of the generation that it follows: its newest does not wait any more
        self._working: asyncio.Task[None] | None = None

    def follow(self, node: int, start: Start) -> None:
        """Begin to copy in the background, in place of the copying for the generation before: from now on the files
        that the ranks in `start`, those on this node (`node`), write go to the next node in the ring, if there is one.
        """
        before, self._working = self._working, None
        if before is not None:
            before.cancel()
        self._known, self._waiting, self._failed, self._rest = set(), set(), set(), asyncio.Event()
        self._problem, self._ends = "", False
        self._rest.set()
        target = ring_neighbour(start, 1)
        if target is not None:
            self._working = asyncio.create_task(self._work(node, start, target, before))

    def note(self, step: int) -> None:
        """Take note that a rank has committed the checkpoint of `step`, so that it is copied in the background.

        Repeated reports of a step do nothing, nor does any report while there is no next node.
        """
        if self._working is None or step in self._known:
            return
        self._known.add(step)
        self._waiting.add(step)
        self._rest.clear()
        self._more.set()

    async def settle(self) -> str:
        """Wait until the checkpoint of the newest step has been copied to the next node, or was given up; until then,
        copy it before older ones. Return "" if it was copied or there is no next node, else why there is no copy.

        Call it at the end of a generation: the order stays the same until the next one begins.
        """
        rest, working = self._rest, self._working
        self._ends = True
        if working is not None:
            resting = asyncio.create_task(rest.wait())
            await asyncio.wait([resting, working], return_when=asyncio.FIRST_COMPLETED)
            resting.cancel()
        return self._problem

    async def close(self) -> None:
        """Stop copying checkpoints; a copy in progress is cut off."""
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait([self._working])

    async def _work(self, node: int, start: Start, target: ReplicaAddress, before: "asyncio.Task[None] | None") -> None:
        """Copy each checkpoint to the next node, whose server is `target`, once it is committed, for ever; after it,
        copy the best checkpoint if that is another than before. Begin after the task `before`, which an earlier
        generation left, has ended.

        `node` is the number of this node, and `start` has the ranks whose files are copied.
        """
        if before is not None:
            await asyncio.wait([before])  # what it was sending has been cut off by then
        names = [data_name(start.first_rank + local) for local in range(start.local_world_size)]
        best: Save | None = None
        failed: int | None = None  # just now: another one is tried in between
        while True:
            while not self._waiting:
                self._rest.set()
                self._more.clear()
                await self._more.wait()
            step = self._next(failed)
            if step == failed:
                await asyncio.sleep(self._patience.copy_retry_s)
            result = _Result.GONE
            try:
                if (found := await asyncio.to_thread(self._files.look_at, "step", step)) is not None:
                    result = await self._copied(node, *found, names, target)
                kept = await asyncio.to_thread(self._files.best)
                if kept is not None and kept[0] != best:
                    done = await self._copied(node, *kept, names, target)
                    best = kept[0] if done is _Result.COPIED else best
            except OSError as error:
                result = _Result.FAILED
                self._record_failure(node, f"step {step}", f"node {node} cannot read its disk: {error}")
            failed = step if result is _Result.FAILED else None
            if failed is None:
                self._waiting.discard(step)
            if result is _Result.COPIED:
                self._say(Copied(node, start.generation, step))
            if step == max(self._known):
                self._problem = self._problem if failed is not None else ""
                self._rest.set()

    def _next(self, failed: int | None) -> int:
        """Return the step to copy next: the oldest waiting one, but not `failed`, the one that has just failed, if
        there is another. At the end of a generation, after `settle` was called, the newest goes first.
        """
        if self._ends:
            return max(self._waiting)
        return min(self._waiting - {failed} or self._waiting)

    async def _copied(
        self, node: int, save: Save, manifest: Manifest, names: Collection[str], target: ReplicaAddress
    ) -> _Result:
        """Copy the files `names` of the checkpoint `save` from this node, `node`, to `target`.

        A copy that fails is tried again until `give_up_s` of Patience is over, or only until a newer checkpoint waits
        if the generation is ending. The failure is then recorded by `_record_failure`. Return COPIED, FAILED, or GONE
        if the files no longer exist here or are damaged here.
        """
        until = time.monotonic() + self._patience.give_up_s
        name, refused = "", False
        while True:
            try:
                async with linked(target, self._address, self._key, self._pool, self._patience.stall_s) as link:
                    for file in (file for file in manifest.files if file.name in names):
                        name = file.name
                        await peer.copy(link, self._files, Put(save, name, file.size), self._pace)
                return _Result.COPIED
            except SaveGone:
                return _Result.GONE  # pruned: newer ones have taken its place
            except Unwilling as error:
                if error.gone:
                    return _Result.GONE
                refused, problem = True, str(error)
            except (WireError, OSError) as error:
                refused, problem = False, str(error) or type(error).__name__
            if time.monotonic() > until or (self._ends and any(step > save.step for step in self._waiting)):
                break
            await asyncio.sleep(self._patience.copy_retry_s)
        first = self._record_failure(
            node, str(save), f"the files of node {node} have no second copy on node {target.node}: {problem}"
        )
        if first and refused and await asyncio.to_thread(self._files.check_reported, save, name):
            return _Result.GONE  # it is damaged here: there is nothing to copy
        return _Result.FAILED

    def _record_failure(self, node: int, what: str, problem: str) -> bool:
        """Record that copying `what`, such as `step 12`, from node `node` has failed because of `problem`. Return True,
        and report an event, if `what` has not failed before in this generation; else return False.
        """
        self._problem = f"{what}: {problem}"
        first = what not in self._failed
        if first:
            self._failed.add(what)
            self._say(Noted(node, "copy_failed", self._problem))
        return first
