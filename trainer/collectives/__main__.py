"""Measure collectives on each rank: `python -m trainer.collectives --ranks 2,4 --sizes 1024,65536`.

Rank 0 writes a line of JSON for each result. The exit code is 1 if a result was wrong.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

import torch.distributed as dist

from trainer.collectives.measuring import copied, members, timed
from trainer.collectives.operations import OPERATIONS
from trainer.collectives.pairs import pairs
from trainer.errors import BadSettings
from trainer.world import World, join, leave

MARK = "collectives "


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure everything that the command line asks for; return 1 if a result was wrong, else 0.

    All ranks call it. `arguments` are those of the command line (None: the process's own). Raises BadSettings for
    options that cannot work.
    """
    options = _options(arguments)
    world = join(group=True, device={"gloo": "cpu", "nccl": "cuda"}.get(options.backend))
    try:
        return int(_measure(options, world) > 0)
    finally:
        leave(world)


def _measure(options: argparse.Namespace, world: World) -> int:
    """Measure everything that the options ask for, report it, and return the number of wrong results.

    All ranks call it. Raises BadSettings for numbers of ranks that the world does not have.
    """
    counts = options.ranks or [world.size]
    if bad := [count for count in counts if not 2 <= count <= world.size]:
        raise BadSettings(f"--ranks: expected numbers from 2 to {world.size}, which there are, got {bad[0]}")
    nodes = world.size // world.local_size
    _report(world, "place", backend=world.backend, device=world.device.type, ranks=world.size, nodes=nodes)
    for size in options.sizes:
        _report(world, "copy", size_bytes=size, bytes_per_s=copied(size, world.device))
    wrong = 0
    for count in counts:
        ranks = members(count, nodes, world.local_size)
        group = dist.new_group(ranks)  # ranks that take no part get no group
        if isinstance(group, dist.ProcessGroup):
            for one in timed(options.operations, options.sizes, ranks, group, world):
                wrong += one.wrong
                _report(world, "timed", **asdict(one))
        dist.barrier()
    objects = dist.new_group(backend="gloo") if nodes > 1 else None
    if isinstance(objects, dist.ProcessGroup):
        for pair in pairs(world, nodes, world.local_size, objects):
            _report(world, "pair", **asdict(pair))
    _report(world, "end")
    return wrong


def _report(world: World, what: str, **arguments: object) -> None:
    """Write a line of JSON with a result of the kind `what`, on rank 0; `arguments` are its further fields."""
    if world.is_first:
        sys.stdout.write(f"{MARK}{json.dumps({'what': what, **arguments})}\n")
        sys.stdout.flush()


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m trainer.collectives")
    parser.add_argument("--ranks", type=_numbers, default=[], metavar="N,...", help="how many take part (default: all)")
    parser.add_argument("--sizes", type=_numbers, default=[2**10, 2**16, 2**22], metavar="BYTES,...")
    parser.add_argument("--operations", type=_names, default=list(OPERATIONS), metavar="NAME,...")
    parser.add_argument("--backend", choices=("auto", "gloo", "nccl"), default="auto")
    return parser.parse_args(arguments)


def _numbers(text: str) -> list[int]:
    """Return the numbers in a list such as `2,4`."""
    return [int(word) for word in text.split(",")]


def _names(text: str) -> list[str]:
    """Return the operations in a list such as `all-reduce,broadcast`. Raises ArgumentTypeError for unknown ones."""
    names = text.split(",")
    if unknown := [name for name in names if name not in OPERATIONS]:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(OPERATIONS)}, got {unknown[0]!r}")
    return names


if __name__ == "__main__":
    sys.exit(main())
