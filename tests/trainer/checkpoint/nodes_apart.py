"""Nodes with a disk each, as folders beside each other, and what agents do to bring such disks together."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ranks import Ranks

from trainer.checkpoint_files import partial
from trainer.checkpoint_files.partial import Held

_PIECE_BYTES = 1 << 16


def disk(base: Path, node: int) -> Path:
    return base / f"node-{node}"


def disks(base: Path) -> list[Path]:
    return sorted(base.glob("node-*"))


def _on_its_node(work: Callable[..., Any], base: Path, sizes: Sequence[int], args: Sequence[Any]) -> Any:
    rank = int(os.environ["RANK"])
    node, local_rank = [(node, local) for node, size in enumerate(sizes) for local in range(size)][rank]
    os.environ.update(
        {
            "LAUNCH_DISK": "apart",
            "GROUP_RANK": str(node),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(sizes[node]),
        }
    )
    return work(disk(base, node), *args)


def start_apart(work: Callable[..., Any], base: Path, *args: Any, nodes: int | Sequence[int] = 2) -> Ranks:
    """Ranks on several nodes, two on each or as many as is said; the first argument of each one's work is the folder
    on its node's disk."""
    base.mkdir(exist_ok=True)
    sizes = [2] * nodes if isinstance(nodes, int) else nodes
    return Ranks(_on_its_node, sum(sizes), work, base, sizes, args)


def run_apart(work: Callable[..., Any], base: Path, *args: Any, **options: Any) -> list[Any]:
    return start_apart(work, base, *args, **options).results()


def bring_together(folders: Sequence[Path]) -> Held | None:
    """Every folder gets all files of the newest checkpoint that is whole over all of them; which one that is."""
    held = [partial.inventory(folder) for folder in folders]
    found = partial.whole_over(held)
    if not found:
        return None
    newest = found[-1]
    for folder, here in zip(folders, held, strict=True):
        mine = [one for one in here if (one.step, one.digest, one.kind) == (newest.step, newest.digest, "step")]
        if mine and not any(one.committed for one in mine):
            partial.promote(folder, newest.step, newest.nonce)
    for folder in folders:
        for other in folders:
            copy_missing(other, folder, newest)
    return newest


def copy_missing(source: Path, target: Path, what: Held) -> None:
    """Copy the files of a checkpoint that one folder has and the other lacks."""
    theirs, mine = find(source, what), find(target, what)
    if theirs is None:
        return
    manifest = partial.read_manifest(source, what.step, what.kind)
    for name in theirs.present:
        if mine is None or name in mine.missing:
            with partial.open_file(source, what.step, name, what.kind) as file:
                pieces = iter(lambda: file.read(_PIECE_BYTES), b"")
                partial.receive(target, manifest, name, pieces, what.kind)


def find(folder: Path, what: Held) -> Held | None:
    same = [one for one in partial.inventory(folder) if (one.digest, one.kind) == (what.digest, what.kind)]
    return next((one for one in same if one.committed), None)
