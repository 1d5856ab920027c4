"""Several nodes on one machine, each with a disk of its own: their checkpoints, and their agents' replications."""

import asyncio
import contextlib
import hashlib
import shutil
import time

from lab import BOUND_S

from launcher.copies.copier import Patience
from launcher.copies.replication import Replication
from launcher.wire.frames import wire_key
from launcher.wire.messages import ReplicaAddress, Start
from trainer.checkpoint_files import partial
from trainer.checkpoint_files.durable import make_folder, sync_folder, write_new
from trainer.checkpoint_files.layout import MANIFEST, data_name, draft_name, folder_name
from trainer.checkpoint_files.manifest import FileEntry, Manifest, encode

TOKEN = hashlib.sha256(b"token").hexdigest()
KEY, OTHER = wire_key(TOKEN, "replicas", "run", 1), wire_key("0e" * 32, "replicas", "run", 1)
BRING_S = min(60.0, BOUND_S)


def content(rank, step, size=1000):
    return hashlib.sha256(f"{rank} {step}".encode()).digest() * (size // 32 + 1)


def save_apart(folders, step, *, size=1000, attempt=1, ranks_each=1, prepared=(), nonce=None):
    """A save of the ranks of these nodes; on the nodes `prepared` it got no further than a draft. Its digest."""
    nonce = nonce or f"{attempt:04x}{step:08x}"
    files = {}
    for node, folder in enumerate(folders):
        make_folder(folder)
        draft = folder / draft_name(step, attempt, nonce)
        draft.mkdir()
        for rank in range(node * ranks_each, (node + 1) * ranks_each):
            written = write_new(draft / data_name(rank), [content(rank, step, size)])
            files[rank] = FileEntry(data_name(rank), written.size, written.digest)
    entries = tuple(files[rank] for rank in sorted(files))
    manifest = encode(Manifest(step, len(files), nonce, entries, {}, {}, apart=True, attempt=attempt))
    for node, folder in enumerate(folders):
        draft = folder / draft_name(step, attempt, nonce)
        write_new(draft / MANIFEST, [manifest])
        if node not in prepared:
            draft.rename(folder / folder_name(step))
        sync_folder(folder)
    return next(held.digest for held in partial.inventory(folders[0]) if held.nonce == nonce)


def keep_best(folders, step):
    """On each node, keep its files of this step as the best checkpoint."""
    for folder in folders:
        shutil.copytree(folder / folder_name(step), folder / folder_name(step, "best"))


def held(folder, step, kind="step"):
    """Names of the files of a committed checkpoint that are there; None where there is no such checkpoint."""
    found = [one for one in partial.inventory(folder) if one.committed and (one.step, one.kind) == (step, kind)]
    return set(found[0].present) if found else None


def names(*ranks):
    return {data_name(rank) for rank in ranks}


class Pool:
    """Nodes 127.0.0.1, .2, ...: a replication each, on a folder each."""

    def __init__(self, root, nodes, *, give_up_s=2.0, limit=None, **patience):
        self.folders = [root / f"node-{node}" / "checkpoints" for node in range(nodes)]
        self.said = [[] for _ in range(nodes)]
        self._how = {"patience": Patience(give_up_s, **patience), "limit_bytes_per_s": limit}
        self.replications = []

    async def __aenter__(self):
        for node, folder in enumerate(self.folders):
            replication = Replication(node, address(node), KEY, folder, self.said[node].append, **self._how)
            await replication.open()
            self.replications.append(replication)
        return self

    async def __aexit__(self, *_):
        for replication in self.replications:
            await replication.close()

    def server(self, node):
        return ReplicaAddress(node, address(node), self.replications[node].port)

    def starts(self, members, *, generation=1, others=(), ranks_each=1, **search):
        servers = tuple(self.server(node) for node in (*members, *others))
        world = len(members) * ranks_each
        return {
            node: Start(
                generation,
                place * ranks_each,
                ranks_each,
                world,
                place,
                len(members),
                address(members[0]),
                1,
                0,
                servers,
                **search,
            )
            for place, node in enumerate(members)
        }

    async def bring(self, members, **how):
        """Have all members fetch at once, and return what each raised, or None."""
        starts = self.starts(members, **how)
        work = (self.replications[node].bring(start) for node, start in starts.items())
        async with asyncio.timeout(BRING_S):
            return await asyncio.gather(*work, return_exceptions=True)

    def kinds(self, node):
        return [getattr(message, "kind", type(message).__name__) for message in self.said[node]]


def address(node):
    return f"127.0.0.{node + 1}"


@contextlib.contextmanager
def quick():
    """Measure the block; append the seconds to the list that is yielded."""
    seconds = []
    began = time.perf_counter()
    yield seconds
    seconds.append(time.perf_counter() - began)
