"""Measure the CPU time that a rank of up to 1,024 needs to plan, commit and find a checkpoint, without writing data.

    uv run python tests/benchmarks/many_ranks.py [--ranks 16 128 1024] [--layers 80] [--write]

A model of 80 layers with AdamW, sharded by FSDP, has 2,892 tensors. One process plays the ranks one after the other,
with the real code: what each brings is joined up the tree, the first one decides, all hear it and find their parts; the
checkpoint is committed, with a few bytes for data; and one rank of the same world and one of half of it look for what
they would read. What a rank brings is reckoned, and for one rank compared with what its sharded tensors say. Seconds
are those of the processor, of the rank that has most to do.
"""

import tempfile
import time
from pathlib import Path

import msgspec
import torch
from results import benchmark_parser, publish
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainer.checkpoint import planning, shares
from trainer.checkpoint.save_group import SaveGroup
from trainer.checkpoint.shares import Share, TensorShares
from trainer.checkpoint_files import catalog, commit, fence
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.layout import data_name, folder_name
from trainer.checkpoint_files.manifest import FileEntry, Manifest, TreeEntry, encode

WIDTH, INNER, KEYS, WORDS = 8192, 28672, 1024, 128256


def shapes(layers):
    """The parameters of a model of the kind that is trained on a thousand GPUs."""
    found = {"embed": (WORDS, WIDTH), "head": (WORDS, WIDTH), "norm": (WIDTH,)}
    for layer in range(layers):
        for name, shape in {
            "wq": (WIDTH, WIDTH), "wk": (KEYS, WIDTH), "wv": (KEYS, WIDTH), "wo": (WIDTH, WIDTH),
            "w1": (INNER, WIDTH), "w2": (WIDTH, INNER), "w3": (INNER, WIDTH), "norm1": (WIDTH,), "norm2": (WIDTH,),
        }.items():  # fmt: skip
            found[f"layers.{layer}.{name}.weight"] = shape
    return found


def names(layers):
    """Return the names of all tensors of the state: for each parameter itself, its two averages and its step count."""
    for name, shape in shapes(layers).items():
        yield f"model/{name}", shape
        yield f"optimizer/{name}/exp_avg", shape
        yield f"optimizer/{name}/exp_avg_sq", shape
        yield f"optimizer/{name}/step", ()


def reckoned(layers, rank, ranks):
    """Return a rank's shards as FSDP makes them: by rows, with fewer or none on the last ranks."""
    found = {}
    for name, shape in names(layers):
        one = found[name] = TensorShares("float32", shape, [])
        if not shape:
            one.shares.append(Share(rank, (), ()))
            continue
        rows = -(-shape[0] // ranks)
        begin = min(rank * rows, shape[0])
        if length := min(rows, shape[0] - begin):
            one.shares.append(Share(rank, (begin, *(0,) * (len(shape) - 1)), (length, *shape[1:])))
    return found


def sharded(layers, rank, ranks):
    """The tensors of one rank, without memory."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    found = {}
    for name, shape in names(layers):
        if not shape:
            found[name] = torch.empty((), device="meta")
            continue
        rows = -(-shape[0] // ranks)
        mine = max(0, min(rows, shape[0] - rank * rows))
        local = torch.empty((mine, *shape[1:]), device="meta")
        stride = torch.empty(shape, device="meta").stride()
        found[name] = DTensor.from_local(local, mesh, (Shard(0),), run_check=False, shape=shape, stride=stride)
        assert found[name].placements != (Replicate(),)
    return found


class Clock:
    """Seconds of the processor since it was last asked."""

    def __init__(self):
        self._at = time.process_time()

    def lap(self):
        before, self._at = self._at, time.process_time()
        return self._at - before


def up_the_tree(words, ranks):
    """The first rank's word; and of the rank that has most to do, its bytes and seconds."""
    busy, heard = [0.0] * ranks, [0] * ranks
    for place in reversed(range(ranks)):
        for level in SaveGroup(None, tuple(range(ranks)), place).children:
            clock = Clock()
            got = [words[other] for other in level]
            words[place] = shares.merge([words[place], *got])
            busy[place] += clock.lap()
            heard[place] += sum(map(len, got))
    return words[0], max(heard), critical(busy, ranks)


def critical(busy, ranks):
    """A rank's word is ready when those of the ranks below are and it has joined them."""
    ready = list(busy)
    for place in reversed(range(ranks)):
        waits = [ready[other] for level in SaveGroup(None, tuple(range(ranks)), place).children for other in level]
        ready[place] += max(waits, default=0.0)
    return ready[0]


def measure(folder, ranks, layers):
    me = ranks // 2
    tensors = sharded(layers, me, ranks)
    clock = Clock()
    mine = shares.encode(shares.local_shares(tensors, me))
    bring_s = clock.lap()
    planning.signature(tensors)
    again_s = clock.lap()
    words = [shares.encode(reckoned(layers, rank, ranks)) for rank in range(ranks)]
    assert shares.decode(words[me]) == shares.decode(mine)
    whole, heard, join_s = up_the_tree(words, ranks)
    clock.lap()
    decided = msgspec.msgpack.encode(planning.decide(shares.decode(whole), ranks))
    decide_s = clock.lap()
    entries = planning.decode(decided)
    plan = planning.plan_of(entries, me, 0)
    plan_s = clock.lap()

    manifest, data = committed(folder, ranks, entries, clock)
    commit_s = clock.lap()
    read = catalog.read_manifest(Entry("step", 1, folder / folder_name(1)))
    read_s = clock.lap()
    assert read == manifest
    found = planning.needs(tensors, read.tensors)
    pieces_s = clock.lap()
    torch.distributed.destroy_process_group()
    assert sum(part.size for part in plan.parts) > 0 and len(found) == len(tensors)
    half = sharded(layers, me // 2, ranks // 2)
    clock.lap()
    assert len(planning.needs(half, read.tensors)) > len(tensors)
    resharded_s = clock.lap()
    torch.distributed.destroy_process_group()
    return {
        "received_mb": max(heard, len(decided)) / 1e6,
        "plan_s": bring_s + join_s + decide_s + plan_s,
        "again_s": again_s,
        "manifest_mb": len(data) / 1e6,
        "commit_s": commit_s,
        "load_s": read_s + pieces_s,
        "resharded_s": read_s + resharded_s,
    }


def committed(folder, ranks, entries, clock):
    """The manifest in its final place, beside files that claim their sizes and hold nothing."""
    claim = fence.take_token(folder)
    draft = commit.begin(folder, 1, claim)
    files = []
    for rank in range(ranks):
        plan = planning.plan_of(entries, rank, 0)
        path = draft / data_name(rank)
        path.touch()
        with path.open("r+b") as file:
            file.truncate(plan.size + 10)
        files.append(FileEntry(path.name, plan.size + 10, "0" * 32))
    trees = {f"rank/{rank:05d}": TreeEntry(rank, file.size - 10, 10) for rank, file in enumerate(files)}
    clock.lap()
    manifest = Manifest(1, ranks, "n", tuple(files), entries, trees)
    commit.publish(draft, manifest, claim)
    return manifest, encode(manifest)


def main():
    parser = benchmark_parser(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 128, 1024])
    parser.add_argument("--layers", type=int, default=80)
    args = parser.parse_args()
    rows = [
        "| ranks | received, MB | first plan, s | later, s | manifest, MB | commit, s | load plan, s | of half, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for ranks in args.ranks:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(Path(folder), ranks, args.layers)
        rows.append(
            "| {} | {received_mb:.2f} | {plan_s:.2f} | {again_s:.3f} | {manifest_mb:.2f} | {commit_s:.2f} "
            "| {load_s:.2f} | {resharded_s:.2f} |".format(ranks, **found)
        )
    notes = (
        f"One process played all ranks, one after the other, with a model of {args.layers} layers that FSDP shards "
        f"({len(list(names(args.layers))):,} tensors with those of AdamW). Times are CPU times of the rank that has "
        "most to do. `received` are the bytes that it gets from other ranks. `first plan` decides which rank writes "
        "which part of which tensor, and `later` is the same for a further save of the same tensors. `commit` writes "
        "the manifest (the list of the checkpoint's tensors and files). `load plan` finds what a rank has to read; "
        "`of half` is the same with half as many ranks."
    )
    publish("many_ranks", "\n".join([*rows, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
