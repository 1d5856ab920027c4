"""Predict on nodes that share no disk: copy the checkpoint to all nodes, and the answers to the first.

A shard is a range of samples; its answers are in one file.
"""

from collections.abc import Iterator
from pathlib import Path

from trainer.checkpoint.save_group import disk_leaders
from trainer.checkpoint_files import partial
from trainer.checkpoint_files.choice import named_best
from trainer.checkpoint_files.layout import parse_folder_name
from trainer.checkpoint_files.partial import Held
from trainer.errors import CheckpointDamaged, TrainerError
from trainer.loop.sums import gathered
from trainer.tasks.answers import Answers
from trainer.world import World, call_on_rank

_PIECE = 8 << 20


def leaders_of(world: World, *, apart: bool) -> tuple[int, ...]:
    """Return for each rank the rank that reads and writes files for all ranks on its disk; all ranks call it.

    With `apart` each node has a disk, for which its first rank acts; without it there is one disk, for which rank 0
    acts.
    """
    return disk_leaders(world) if apart else (0,) * world.size


def bring_checkpoint(wanted: Path, world: World, leaders: tuple[int, ...]) -> None:
    """Copy a checkpoint to every disk; all ranks call it.

    It is the one at `wanted`, or if that is a folder of checkpoints, the newest of which all files are on some disk.
    Nothing is copied if files of it are on no disk. `leaders` gives for each rank the rank that reads and writes files
    on its disk. Raises TrainerError on all ranks if a file could not be read or written.
    """
    if len(set(leaders)) == 1:
        return
    folder, best = named_best(wanted)
    parsed = parse_folder_name(folder.name)
    kind, step = parsed or ("best" if best else "step", None)
    folder = folder.parent if parsed else folder
    acts = leaders[world.rank] == world.rank
    disks: list[list[Held]] = gathered(partial.inventory(folder) if acts else [], world)
    found = [held for held in partial.whole_over(disks, kind) if step in (None, held.step)]
    if not found:
        return  # loading it reports what is missing
    newest = found[-1]
    mine = [
        next((one for one in disk if (one.step, one.digest, one.kind) == (newest.step, newest.digest, kind)), None)
        for disk in disks
    ]
    having = next(rank for rank, one in enumerate(mine) if one is not None and one.committed)
    manifest = call_on_rank(world, having, lambda: partial.read_manifest(folder, newest.step, kind))
    for name in (*newest.present, *newest.missing):
        lacking = [
            rank
            for rank, one in enumerate(mine)
            if leaders[rank] == rank and (one is None or not one.committed or name in one.missing)
        ]
        having = next(
            rank for rank, one in enumerate(mine) if one is not None and one.committed and name in one.present
        )
        if lacking:
            _send(folder, manifest, newest, name, having, world, takes=world.rank in lacking)


def _send(folder: Path, manifest: bytes, held: Held, name: str, having: int, world: World, *, takes: bool) -> None:
    """Send the file `name` of the checkpoint `held` from rank `having` to the ranks with `takes`; all ranks call it.

    The receiving ranks write it, with the encoded `manifest`, into `folder`. If one could not, TrainerError is raised
    on all ranks. If the file cannot be read, OSError or CheckpointDamaged is raised on rank `having` alone; the others
    wait until that rank's process ends.
    """
    pieces, trouble = _pieces(folder, held, name, having, world), ""
    try:
        if takes:
            partial.receive(folder, manifest, name, pieces, held.kind)
    except (CheckpointDamaged, OSError) as error:
        trouble = str(error)
    for _ in pieces:
        pass  # the others are still at it
    if troubles := [one for one in gathered(trouble, world) if one]:
        raise TrainerError(f"{name} of the checkpoint of step {held.step} could not be copied: {troubles[0]}")


def _pieces(folder: Path, held: Held, name: str, having: int, world: World) -> Iterator[bytes]:
    """Yield on all ranks the bytes of file `name` of the checkpoint `held`, read in `folder` on rank `having`.

    Each step is a broadcast, so every rank has to take all pieces. If the file cannot be read, OSError or
    CheckpointDamaged is raised on rank `having` alone; the others wait in the broadcast until that rank's process ends.
    """
    file = partial.open_file(folder, held.step, name, held.kind) if world.rank == having else None

    def read() -> bytes:
        """Return the next bytes of the file, or none at its end."""
        return b"" if file is None else file.read(_PIECE)

    try:
        while piece := call_on_rank(world, having, read):
            yield piece
    finally:
        if file is not None:
            file.close()


def missing_on_all(answers: Answers, world: World, leaders: tuple[int, ...]) -> list[range]:
    """Return the shards whose answers are complete on no disk; all ranks call it.

    `leaders` gives for each rank the rank that reads and writes files on its disk.
    """
    there = _there(answers, world, leaders)
    return [shard for shard in answers.shards if not any(shard in found for found in there)]


def bring_answers(answers: Answers, world: World, leaders: tuple[int, ...]) -> None:
    """Copy every complete shard of answers that rank 0's disk lacks to that disk; all ranks call it.

    `leaders` gives for each rank the rank that reads and writes files on its disk. One shared disk needs no copies.
    """
    if len(set(leaders)) == 1:
        return
    there = _there(answers, world, leaders)
    for shard in answers.shards:
        having = next((rank for rank, found in enumerate(there) if shard in found), 0)
        if having:
            content = call_on_rank(world, having, lambda shard=shard: answers.read_shard(shard))  # type: ignore[misc] # of a lambda
            if world.is_first:
                answers.keep_shard(shard, content)


def _there(answers: Answers, world: World, leaders: tuple[int, ...]) -> list[set[range]]:
    """Return, by rank, the shards whose answers are complete on the rank's disk; none if another rank reads that disk.

    `leaders` gives for each rank the rank that reads and writes files on its disk. All ranks call it.
    """
    acts = leaders[world.rank] == world.rank
    return gathered(answers.whole() if acts else set(), world)
