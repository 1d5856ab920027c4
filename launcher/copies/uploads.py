"""Upload copies of checkpoints to an object store in the background, and delete old ones there. A daemon thread does
it; only `settle` waits for it. A Start is the coordinator's order to start the ranks of one generation (a set of ranks
that train together) on a node. A Held is the entry of a disk's list about one checkpoint.
"""

import asyncio
import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import xxhash

from launcher.copies.bulk import PIECE_BYTES, Throttle, lower_priority
from launcher.wire.messages import Start
from trainer.checkpoint_files import partial
from trainer.checkpoint_files.layout import MANIFEST, data_name
from trainer.checkpoint_files.manifest import FileEntry, Manifest, decode
from trainer.checkpoint_files.object_store import ObjectStore, PackageMissing, StoreFailed, save_name
from trainer.checkpoint_files.partial import Held
from trainer.errors import CheckpointDamaged

Say = Callable[[Literal["checkpoint_stored", "copy_failed"], str], None]
_GONE = (FileNotFoundError, NotADirectoryError)


@dataclass(frozen=True, slots=True)
class UploadRules:
    """Rules for uploads: how many checkpoints stay in the store (`keep`), how many steps or seconds there are at least
    between two of them, and how fast they are sent; None for no rule. If `every_steps` is set, `every_s` is not used.

    `apart` means that each node's disk has the files of its own ranks only; otherwise the first node uploads all. A
    failure is retried after `retry_s`, then longer, up to `retry_max_s`; at the end of a run `give_up_s` without
    progress ends the wait.
    """

    keep: int = 3
    every_steps: int | None = None
    every_s: float | None = None
    limit_bytes_per_s: float | None = None
    apart: bool = False  # each node's disk has only its own ranks' files; else the first node has all files
    retry_s: float = 2.0  # after a failure, doubled each time up to `retry_max_s`
    retry_max_s: float = 60.0
    give_up_s: float = 120.0  # without progress, at the end of a run


class _Stopped(Exception):
    """Raised in the uploading thread when another generation has begun, or the agent exits."""


class _Superseded(Exception):
    """Raised in the uploading thread to abandon an older checkpoint, because the run has ended and all nodes now upload
    the newest one.
    """


class Uploads:
    """The upload of checkpoints to an object store.

    Call `follow` at the start of each generation, which begins to upload; `note` for each checkpoint that a rank
    reports as committed, which wakes the thread; and `settle` at the end, which waits for the newest checkpoint.
    """

    def __init__(self, folder: Path, open_store: Callable[[], ObjectStore], rules: UploadRules, say: Say) -> None:
        self._folder, self._open_store, self._rules, self._say = folder, open_store, rules, say
        self._work: _Work | None = None
        self._noted: int | None = None

    def follow(self, start: Start) -> None:
        """Upload checkpoints from now on, beginning with those that an earlier generation committed. If each node's
        disk has only its own ranks' files, this node uploads those of its ranks in `start`; else the first node uploads
        all, and the others nothing.
        """
        self.close()
        if start.group_rank == 0 or self._rules.apart:
            names = {data_name(start.first_rank + local) for local in range(start.local_world_size)}
            mine, loop = names if self._rules.apart else None, asyncio.get_running_loop()
            self._work = _Work(
                self._folder, self._open_store, self._rules, self._say, loop, mine, first=start.group_rank == 0
            )
            threading.Thread(target=self._work.run, name="uploads", daemon=True).start()

    def note(self, step: int) -> None:
        """Wake the uploading thread, because a rank reported that `step` is committed."""
        if self._work is not None and step != self._noted:
            self._noted = step
            self._work.more.set()

    async def settle(self) -> str:
        """Wait until the newest checkpoint is in the store, or no byte of it was sent for `give_up_s` of UploadRules;
        return "", or why it is not in the store.
        """
        work = self._work
        if work is None:
            return ""
        over = asyncio.Event()
        work.finish(over.set)
        while not over.is_set():
            try:
                async with asyncio.timeout(self._rules.give_up_s):
                    await over.wait()
            except TimeoutError:
                if time.monotonic() - work.moved_at >= self._rules.give_up_s:
                    return work.problem or "the newest checkpoint is not in the store yet"
        return work.problem if work.hopeless else ""

    def close(self) -> None:
        """Stop uploading before the next piece of a file, and return at once. Checkpoints that are not in the store by
        then are left to the next `follow`.
        """
        if self._work is not None:
            self._work.stop()
            self._work = None


class _Work:
    """The uploads of one generation, in a thread.

    `mine` has the names of the files that this node uploads, or is None for all. `first` says that this is the node of
    rank 0, which commits each checkpoint in the store once all nodes' files are there.
    """

    def __init__(
        self, folder: Path, open_store: Callable[[], ObjectStore], rules: UploadRules, say: Say,
        loop: asyncio.AbstractEventLoop, mine: set[str] | None, *, first: bool,
    ) -> None:  # fmt: skip
        self._folder, self._open_store, self._rules, self._say = folder, open_store, rules, say
        self._loop, self._mine, self._first = loop, mine, first
        self._pace = Throttle(rules.limit_bytes_per_s)
        self._passed_over = set[str]()  # digests of those that are not to be loaded
        self._at_end: Callable[[], None] | None = None
        self._stopped = threading.Event()
        self.problem = ""  # why the last try failed
        self.hopeless = False  # and every other one would
        self.moved_at = time.monotonic()
        self.more = threading.Event()
        self.more.set()

    def finish(self, over: Callable[[], None]) -> None:
        """Have the newest checkpoint uploaded, as the run has ended, without waiting for that.

        `over` is called once that checkpoint is in the store, or uploading has failed in a way that another try cannot
        mend: a package is missing. After other failures it is tried again.
        """
        self._at_end, self.moved_at = over, time.monotonic()
        self.more.set()
        if self.hopeless:
            over()

    def stop(self) -> None:
        """Ask the thread to stop before it uploads the next piece of a file; return at once, without waiting for it. A
        checkpoint of which only some pieces were uploaded is not complete in the store.
        """
        self._stopped.set()
        self.more.set()

    def run(self) -> None:
        """Upload each checkpoint that `checkpoint.copy_to_every` of the spec selects, until `stop` is called or the
        run's last checkpoint is in the store. After an error try again, after growing pauses; give up only if the
        store's package is missing.
        """
        lower_priority()
        store, wait_s = None, self._rules.retry_s
        while True:
            self.more.wait()
            self.more.clear()
            at_end = self._at_end
            try:
                store = store or self._open_store()
                again = self._upload_due(store, ends=at_end is not None)
                wait_s, self.problem = self._rules.retry_s, ""
                if again:
                    self.more.set()
                elif at_end is not None:
                    self._call(at_end)
                    return
            except _Stopped:
                return
            except (StoreFailed, CheckpointDamaged, OSError) as error:
                text = f"no copy in the store: {'; '.join(str(error).splitlines())}"
                if not self.problem:
                    self._call(functools.partial(self._say, "copy_failed", text))
                self.problem = text
                if isinstance(error, PackageMissing):
                    self.hopeless = True
                    self._call(self._at_end or (lambda: None))
                    return
                self.more.set()
                if self._stopped.wait(wait_s):
                    return
                wait_s = min(2 * wait_s, self._rules.retry_max_s)

    def _upload_due(self, store: ObjectStore, *, ends: bool) -> bool:
        """Upload one checkpoint that is due by `checkpoint.copy_to_every`, if there is one: the newest, or the oldest
        if several nodes upload parts of it. Return whether to look again at once. Raise _Stopped if `stop` was called.

        With `ends`, when the run has ended, the newest is due in any case, and is the one that is uploaded.
        """
        if self._stopped.is_set():
            raise _Stopped
        stored = store.saves()
        newest = stored[-1] if stored else None
        found = [one for one in partial.inventory(self._folder) if one.committed and one.kind == "step"]
        held = [one for one in found if one.digest not in self._passed_over]
        due = [one for one in held if self._is_due(one, newest, last=ends and one is held[-1])]
        if not due:
            return False
        # Nodes that have a part each take the same one only if all take the oldest.
        wanted = due[0] if self._rules.apart and not ends else due[-1]
        try:
            data = partial.read_manifest(self._folder, wanted.step)
            manifest = decode(data)
            if not manifest.finite:
                self._passed_over.add(wanted.digest)
                return True
            self._upload(store, manifest, ends=ends)
            if self._first:
                store.put(save_name(manifest), MANIFEST, [data])
        except (*_GONE, _Superseded):
            return True  # it was pruned, or is to be no more: newer ones have taken its place
        except CheckpointDamaged:
            self._passed_over.add(wanted.digest)
            raise
        if self._first:
            text = f"the checkpoint of step {wanted.step} is in {store.url}"
            self._call(functools.partial(self._say, "checkpoint_stored", text))
            self._prune(store)
        return self._first

    def _is_due(self, held: Held, newest: Held | None, *, last: bool) -> bool:
        """Return whether the checkpoint is to be uploaded now, given `newest`, the newest one in the store (None: it
        has none, and any checkpoint is due).

        A newer one is due once `checkpoint.copy_to_every` of the spec, in steps or time, lies between the two, or
        always if the spec does not set that. The run's `last` one is due unless the store has it or a newer one.
        """
        if newest is None or (last and held.step >= newest.step and held.digest != newest.digest):
            return True
        if held.step <= newest.step:
            return False
        if self._rules.every_steps is not None:
            return held.step - newest.step >= self._rules.every_steps
        return self._rules.every_s is None or held.saved_unix_s - newest.saved_unix_s >= self._rules.every_s

    def _upload(self, store: ObjectStore, manifest: Manifest, *, ends: bool) -> None:
        """Upload those files of the checkpoint with this manifest that this node has to upload. The first node returns
        only once the other nodes' files are in the store as well, so that the caller can upload the manifest, last.

        Raise _Superseded if the run ends during that wait; with `ends` the run had ended before, and it goes on.
        """
        folder = save_name(manifest)
        files = [file for file in manifest.files if self._mine is None or file.name in self._mine]
        with ExitStack() as stack:
            # All are opened first: what is pruned meanwhile can still be read.
            opened = [
                (file, stack.enter_context(partial.open_file(self._folder, manifest.step, file.name))) for file in files
            ]
            there = store.sizes(folder)
            for file, contents in opened:
                if there.get(file.name) != file.size:
                    store.put(folder, file.name, self._pieces(file, contents))
        while self._first and (missing := _missing(store, folder, manifest)):
            if self._mine is None:
                raise StoreFailed(f"{store.url}: of step {manifest.step} {', '.join(missing)} did not arrive")
            if self._at_end is not None and not ends:
                raise _Superseded
            partial.read_manifest(self._folder, manifest.step)  # once it is pruned here, no other node uploads the rest
            self._pause(self._rules.retry_s)

    def _pieces(self, file: FileEntry, contents: BinaryIO) -> Iterator[bytes]:
        """Yield the bytes of a file; raise CheckpointDamaged at its end if they are not what the trainer wrote."""
        digest = xxhash.xxh3_128()
        while piece := contents.read(min(PIECE_BYTES, self._pace.piece_bytes)):
            if self._stopped.is_set():
                raise _Stopped
            digest.update(piece)
            self._pace.pay(len(piece))
            yield piece
            self.moved_at = time.monotonic()
        if digest.hexdigest() != file.digest:
            raise CheckpointDamaged(f"{file.name}: is damaged here, and is not copied")

    def _prune(self, store: ObjectStore) -> None:
        """Delete from the store old checkpoints, so that the newest `keep` of the rules stay, and unfinished uploads of
        steps up to the newest checkpoint's. Do nothing if no checkpoint is complete.
        """
        saves = store.saves()
        kept = {held.folder for held in saves[-self._rules.keep :]}
        for folder, step in store.folders().items():
            if folder not in kept and saves and step <= saves[-1].step:
                store.remove(folder)

    def _call(self, function: Callable[[], None]) -> None:
        """Call the function in the agent's event loop; do nothing if the loop has ended."""
        with contextlib.suppress(RuntimeError):  # the agent has left
            self._loop.call_soon_threadsafe(function)

    def _pause(self, seconds: float) -> None:
        """Wait for `seconds`; raise _Stopped if stopped meanwhile."""
        if self._stopped.wait(seconds):
            raise _Stopped


def _missing(store: ObjectStore, folder: str, manifest: Manifest) -> list[str]:
    """Return the names of the manifest's files that the folder `folder` of the store lacks or has in another size."""
    there = store.sizes(folder)
    return [file.name for file in manifest.files if there.get(file.name) != file.size]
