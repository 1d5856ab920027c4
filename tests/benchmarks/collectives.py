"""Compare the times that `launch doctor --collectives` reports with those of a plain loop of the same operation.

    uv run python tests/benchmarks/collectives.py [--write]

Gloo ranks on this machine. In turns each operation is timed as the doctor does it (a barrier before each repetition,
its result checked after each, the slowest rank counts), and in a loop that only calls it, until all ranks are through.
The bus bandwidth of the first stands beside a copy in memory, which no message between processes exceeds.
"""

import statistics
import time

import torch.distributed as dist
from replica import on_ranks, ratio
from results import benchmark_parser, publish

from launcher.apps.collectives.measuring import algorithm_bandwidth, bus_factor
from launcher.apps.collectives.tables import size
from trainer.collectives.measuring import copied, repetitions, rounded, timed
from trainer.collectives.operations import OPERATIONS, Place


def by_hand(name, nbytes, world):
    """Seconds of one call in a loop of them."""
    ranks = tuple(range(world.size))
    place = Place(dist.group.WORLD, world.rank, ranks, rounded(nbytes, world.size), world.device)
    one = OPERATIONS[name](place)
    one.fill()
    one.call()
    dist.barrier()
    began = time.perf_counter()
    for _ in range(repetitions(nbytes)):
        one.call()
    dist.barrier()
    return (time.perf_counter() - began) / repetitions(nbytes)


def on_rank(world, names, sizes, pairs):
    """Return seconds of each operation and size in pairs, as reported and measured by hand, and a copy's speed."""
    found, ranks = {}, tuple(range(world.size))
    for _ in range(pairs):
        for name in names:
            for nbytes in sizes:
                [told] = timed([name], [nbytes], ranks, dist.group.WORLD, world)
                row = statistics.median(told.times_s), by_hand(name, nbytes, world), told.wrong
                found.setdefault((name, nbytes), []).append(row)
    return found, {nbytes: copied(nbytes, world.device) for nbytes in sizes}


def table(pairs, counts, names, sizes):
    lines = [
        "| | by doctor | range | in a loop | doctor / loop | bus bandwidth | of a copy in memory | wrong |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for ranks in counts:
        found, copies = on_ranks(on_rank, ranks, names, sizes, pairs)
        for (name, nbytes), rows in found.items():
            told, looped, wrong = zip(*rows, strict=True)
            bus = bus_factor(name, ranks) * algorithm_bandwidth(nbytes, statistics.median(told))
            lines.append(
                f"| {name}, {ranks} ranks, {size(nbytes)} | {statistics.median(told) * 1e3:.2f} ms "
                f"| {min(told) * 1e3:.2f}-{max(told) * 1e3:.2f} | {statistics.median(looped) * 1e3:.2f} ms "
                f"| {ratio(told, looped):.2f} | {bus / 1e6:,.0f} MB/s | {bus / copies[nbytes]:.2f} | {sum(wrong)} |"
            )
    return "\n".join(lines)


NOTES = (
    "The first column has the operation, the number of ranks (gloo, on this machine) and the size of a "
    "message. `by doctor` is the time that `launch doctor --collectives` reports: a barrier precedes each "
    "call, the slowest rank counts, and the result is checked. `in a loop` is the time of a call in a loop "
    "that does nothing else. `doctor / loop` is the median of the ratios of these two times. `bus "
    "bandwidth` is computed from `by doctor`, as nccl-tests defines it. `of a copy in memory` is this "
    "bandwidth divided by the speed of copying as many bytes in memory, which no message between processes "
    "can exceed. `wrong` is the number of wrong results."
)


def main():
    parser = benchmark_parser(__doc__.partition("\n")[0], pairs=11)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=[2**12, 2**20, 2**24], help="bytes")
    kinds = ["broadcast", "all-gather", "reduce-scatter", "all-reduce", "send/recv", "all-to-all"]
    parser.add_argument(
        "--operations", nargs="+", default=kinds, choices=[name for name in OPERATIONS if name != "barrier"]
    )
    options = parser.parse_args()
    lines = table(options.pairs, options.ranks, options.operations, options.sizes)
    publish("collectives", f"{lines}\n\n{NOTES}", write=options.write)


if __name__ == "__main__":
    main()
